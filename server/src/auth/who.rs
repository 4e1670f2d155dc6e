//! Who is at the other end of a connection.
//!
//! Owns what is taken from the kernel's credentials of a unix socket and from a verified certificate, and that it is
//! found out when it is needed first: a connection that says nothing costs no look at the user database, which may be
//! slow. Never verifies a certificate: the handshake has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kprobed_rights::Principal;
use nix::unistd::{Gid, Group, Uid, User};
use tokio::sync::OnceCell;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// A process at the other end of a unix socket, as the kernel knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// Its id. Absent for a process of another pid namespace.
    pub pid: Option<i32>,
}

/// The user at the other end of a unix socket. Asks the user database of the host for names, which may
/// take its time: not on the async runtime.
fn of_user(procfs: &Path, peer: Peer) -> Principal {
    let Peer { uid, gid, groups, pid } = peer;
    let mut gids = vec![gid];
    gids.extend(groups.into_iter().filter(|group| *group != gid));
    let names = gids.into_iter().filter_map(|gid| Group::from_gid(Gid::from_raw(gid)).ok().flatten());
    Principal::User {
        uid,
        gid,
        pid,
        user: User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name),
        groups: names.map(|group| group.name).collect(),
        cgroup: pid.and_then(|pid| cgroup(&fs::read_to_string(procfs.join(format!("{pid}/cgroup"))).ok()?)),
    }
}

/// The path of a process in the unified hierarchy (cgroups(7), `/proc/[pid]/cgroup`).
fn cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Who {
    found: OnceCell<Arc<Principal>>,
    peer: Option<(Peer, PathBuf)>,
    /// When the proof ends. Absent for one that holds as long as the connection.
    pub(crate) not_after: Option<SystemTime>,
}

impl Who {
    /// A process, to be looked up at its first call. `procfs` is usually `/proc`.
    pub fn process(peer: Peer, procfs: PathBuf) -> Self {
        Self { found: OnceCell::new(), peer: Some((peer, procfs)), not_after: None }
    }

    /// A principal that is known already.
    pub(crate) fn known(principal: Principal) -> Self {
        Self { found: OnceCell::new_with(Some(Arc::new(principal))), peer: None, not_after: None }
    }

    /// The owner of a verified certificate, by the names of its subject. One that cannot be read has no
    /// names, and so no role.
    pub(crate) fn certificate(certificate: &CertificateDer<'_>) -> Self {
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
        let not_after = read.as_ref().and_then(certificate_end);
        Self { not_after, ..Self::known(Principal::Certificate { uris, dns }) }
    }

    /// The principal, if it was needed before.
    pub(crate) fn found(&self) -> Option<&Arc<Principal>> {
        self.found.get()
    }

    /// The principal. Asks the user database of the host, on a thread of its own.
    ///
    /// # Errors
    /// When the look cannot be made: the daemon is stopping.
    pub(crate) async fn principal(&self) -> io::Result<&Arc<Principal>> {
        self.found
            .get_or_try_init(|| async {
                let (peer, procfs) = self.peer.clone().ok_or(io::ErrorKind::NotFound)?;
                let look = tokio::task::spawn_blocking(move || of_user(&procfs, peer));
                Ok(Arc::new(look.await.map_err(io::Error::other)?))
            })
            .await
    }
}

/// When a certificate ends, as far as a clock here can say it.
pub(crate) fn certificate_end(certificate: &X509Certificate<'_>) -> Option<SystemTime> {
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
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
        let who = Who::certificate(certificate.der());
        assert_eq!(who.found().unwrap().as_ref(), &expected);
        // 1 January 2030.
        assert_eq!(who.not_after, Some(SystemTime::UNIX_EPOCH + Duration::from_hours(525_960)));
        let nameless = Principal::Certificate { uris: Vec::new(), dns: Vec::new() };
        let who = Who::certificate(&CertificateDer::from(&b"no certificate"[..]));
        assert_eq!((who.found().unwrap().as_ref(), who.not_after), (&nameless, None));
    }

    #[test]
    fn a_user_has_a_name_and_groups() {
        let root = Peer { uid: 0, gid: 0, groups: vec![0, 1], pid: None };
        let Principal::User { uid, user, groups, .. } = of_user(Path::new("/proc"), root) else {
            panic!("no user");
        };
        assert_eq!((uid, user.as_deref()), (0, Some("root")));
        assert_eq!(groups, ["root", "daemon"]);
        let unknown = Peer { uid: 3_999_999_999, gid: 3_999_999_999, groups: Vec::new(), pid: Some(-1) };
        let nobody = of_user(Path::new("/proc"), unknown);
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
