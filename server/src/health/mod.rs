//! Health checks of the host that do not depend on probes: findings, and what to do about them.
//!
//! Owns the checks of the database and the disks, of reloads of the configuration, of the
//! file with the labels of the host, of the certificate, and of the daemon's sandbox. Never changes anything.

mod declarations;
mod labels_file;
mod reloads;
mod sandbox;
mod storage;

pub use declarations::{DeclarationState, Declarations, in_words};
pub use labels_file::{LabelsFile, read as read_labels};
pub use reloads::Reloads;
pub use sandbox::{files_check, sandbox_check};
pub use storage::Storage;

pub use kprobed_proto::v1::{CheckStatus, HostCheck};

use std::io;
use std::net::UdpSocket;
use std::time::SystemTime;

/// What opens the network. The unit file of systemd closes it (`RestrictAddressFamilies=`), since most hosts need none.
pub const NETWORK_HINT: &str = "the service manager keeps the daemon from the network: `systemctl edit kprobed`, with the lines \
     `[Service]` and `RestrictAddressFamilies=AF_INET AF_INET6`, then restart the daemon";

/// Whether a socket could not be made for that reason.
pub fn is_of_closed_network(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Whether no socket for the network can be made, neither of IPv4 nor of IPv6. Makes one to find out: no file says it.
pub fn network_is_closed() -> bool {
    let is_refused = |made: io::Result<UdpSocket>| made.is_err_and(|error| is_of_closed_network(&error));
    is_refused(UdpSocket::bind("127.0.0.1:0")) && is_refused(UdpSocket::bind("[::1]:0"))
}

pub(crate) fn check(
    id: &str,
    status: CheckStatus,
    finding: impl Into<String>,
    fix: impl Into<String>,
) -> HostCheck {
    HostCheck { id: id.to_owned(), status: status.into(), finding: finding.into(), fix: fix.into() }
}

pub(crate) fn ok(id: &str, finding: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Ok, finding, "")
}

pub(crate) fn warning(id: &str, finding: impl Into<String>, fix: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Warning, finding, fix)
}

pub(crate) fn failed(id: &str, finding: impl Into<String>, fix: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Failed, finding, fix)
}

/// Most things that one finding names.
const NAMED: usize = 3;

/// The first of many things as a part of a finding. `command` shows all.
pub(crate) fn named(things: impl ExactSizeIterator<Item = String>, command: &str) -> String {
    let more = things.len().saturating_sub(NAMED);
    let rest = (more > 0).then(|| format!("{more} more (`{command}`)"));
    things.take(NAMED).chain(rest).collect::<Vec<_>>().join("; ")
}

/// Days before its expiry from which on the check is a warning.
const RENEWAL_DAYS: u64 = 30;

/// Whether the certificate for clients expires soon.
pub fn certificate_check(end: SystemTime, now: SystemTime) -> HostCheck {
    const ID: &str = "certificate";
    let fix = "put the renewed certificate and its key in its place, then `systemctl reload kprobed`";
    let Ok(left) = end.duration_since(now) else {
        return failed(ID, "the certificate for clients has ended: they cannot connect over TCP", fix);
    };
    let days = left.as_secs() / 86_400;
    let finding = format!("the certificate for clients ends in {days} days");
    if days < RENEWAL_DAYS { warning(ID, finding, fix) } else { ok(ID, finding) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_certificate_is_a_warning_a_month_before_it_ends() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 100);
        let after =
            |days: u64| certificate_check(end, SystemTime::UNIX_EPOCH + Duration::from_hours(24 * days));
        assert_eq!(
            (after(70).status(), after(70).finding.as_str()),
            (CheckStatus::Ok, "the certificate for clients ends in 30 days")
        );
        assert_eq!(after(71).status(), CheckStatus::Warning);
        assert_eq!(after(100).status(), CheckStatus::Warning);
        assert_eq!(after(101).status(), CheckStatus::Failed);
        assert!(!after(101).fix.is_empty());
    }
}
