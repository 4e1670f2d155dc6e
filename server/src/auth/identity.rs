//! Finding out who is at the other end of a connection.
//!
//! Owns what is taken from the kernel's credentials of a unix socket and from a verified
//! certificate. Never verifies a certificate: the handshake has.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kprobed_rights::Principal;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// The user at the other end of a unix socket. Asks the user database of the host, which may take
/// its time: not on the async runtime.
pub fn of_user(procfs: &Path, uid: u32, gid: u32, pid: Option<i32>) -> Principal {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    // The groups of the process itself may be fewer or more: they are its own, and not to be read
    // without a race. The database says what the user is in.
    let groups = match user.as_ref().and_then(|user| CString::new(user.name.as_str()).ok()) {
        Some(name) => getgrouplist(&name, Gid::from_raw(gid)).unwrap_or_default(),
        None => vec![Gid::from_raw(gid)],
    };
    let groups = groups.into_iter().filter_map(|gid| Group::from_gid(gid).ok().flatten());
    Principal::User {
        uid,
        gid,
        pid,
        user: user.map(|user| user.name),
        groups: groups.map(|group| group.name).collect(),
        cgroup: pid.and_then(|pid| cgroup(&fs::read_to_string(procfs.join(format!("{pid}/cgroup"))).ok()?)),
    }
}

/// The path of a process in the unified hierarchy (cgroups(7), `/proc/[pid]/cgroup`).
fn cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// A principal, and how long the proof holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who it is.
    pub principal: Principal,
    /// When the certificate ends. Absent without one.
    pub not_after: Option<SystemTime>,
}

impl Identity {
    /// One that holds as long as its connection.
    pub fn lasting(principal: Principal) -> Self {
        Self { principal, not_after: None }
    }
}

/// The owner of a verified certificate, by the names of its subject. One that cannot be read has no
/// names, and so no role.
pub fn of_certificate(certificate: &CertificateDer<'_>) -> Identity {
    let (mut uris, mut dns) = (Vec::new(), Vec::new());
    let read = x509_parser::parse_x509_certificate(certificate).ok().map(|(_, certificate)| certificate);
    if let Some(certificate) = &read
        && let Ok(Some(names)) = certificate.subject_alternative_name()
    {
        for name in &names.value.general_names {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) => dns.push(name.to_ascii_lowercase()),
                _ => {}
            }
        }
    }
    let not_after = read.and_then(|certificate| {
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    });
    Identity { principal: Principal::Certificate { uris, dns }, not_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    #[test]
    fn a_certificate_is_its_names() {
        let mut params = CertificateParams::new(vec!["Ops.Example.com".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.subject_alt_names.push(SanType::URI("spiffe://prod/ns/ops/sa/x".try_into().unwrap()));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let expected = Principal::Certificate {
            uris: vec!["spiffe://prod/ns/ops/sa/x".to_owned()],
            dns: vec!["ops.example.com".to_owned()],
        };
        let found = of_certificate(certificate.der());
        assert_eq!(found.principal, expected);
        // 1 January 2030.
        assert_eq!(found.not_after, Some(SystemTime::UNIX_EPOCH + Duration::from_hours(525_960)));
        let nameless = Principal::Certificate { uris: Vec::new(), dns: Vec::new() };
        assert_eq!(
            of_certificate(&CertificateDer::from(&b"no certificate"[..])),
            Identity::lasting(nameless)
        );
    }

    #[test]
    fn a_user_has_a_name_and_groups() {
        let Principal::User { uid, user, groups, .. } = of_user(Path::new("/proc"), 0, 0, None) else {
            panic!("no user");
        };
        assert_eq!((uid, user.as_deref()), (0, Some("root")));
        assert!(groups.contains(&"root".to_owned()), "{groups:?}");
        let nobody = of_user(Path::new("/proc"), 3_999_999_999, 3_999_999_999, Some(-1));
        assert_eq!(nobody.to_string(), "uid:3999999999");
    }

    #[test]
    fn the_unified_hierarchy_counts() {
        assert_eq!(
            cgroup("12:cpu:/a\n0::/system.slice/x.service\n"),
            Some("/system.slice/x.service".to_owned())
        );
        assert_eq!(cgroup("12:cpu:/a\n"), None);
    }
}
