//! Principals: who asks, as the transport has proven it.
//!
//! Owns the names of a principal. Never identifies a client: the front end of the daemon does,
//! from the kernel's credentials of a socket or from a verified certificate.

use std::fmt;

use super::PatternError;

/// Who asks. Everything in it is proven by the kernel or by a verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A process of this host, on the unix socket (`SO_PEERCRED`, unix(7)).
    User {
        /// User id of the process when it connected.
        uid: u32,
        /// Its group id then.
        gid: u32,
        /// Its process id then. Absent for a process of another pid namespace.
        pid: Option<i32>,
        /// The name of the user, if the host knows one.
        user: Option<String>,
        /// Names of all groups that the process had then.
        groups: Vec<String>,
        /// Path of the process in the cgroup hierarchy (version 2).
        cgroup: Option<String>,
    },
    /// The owner of a verified certificate.
    Certificate {
        /// Names of the subject: URIs, such as `spiffe://prod/ns/ops/sa/tracer`.
        uris: Vec<String>,
        /// Names of the subject: DNS names.
        dns: Vec<String>,
    },
    /// Any process of this host, over TCP on a loopback address without TLS. Nothing is proven.
    Loopback,
    /// The daemon itself: declarations in files, repairs, ends of leases.
    Daemon,
}

impl Principal {
    /// Every name that patterns are compared with, as a pattern for it alone would be written.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::User { uid, gid, user, groups, cgroup, .. } => {
                let user = user.iter().map(|user| format!("user:{user}"));
                let ids = [format!("uid:{uid}"), format!("gid:{gid}")];
                let groups = groups.iter().map(|group| format!("group:{group}"));
                let cgroup = cgroup.iter().map(|cgroup| format!("cgroup:{cgroup}"));
                user.chain(ids).chain(groups).chain(cgroup).collect()
            }
            Self::Certificate { uris, dns } => {
                let uris = uris.iter().map(|uri| format!("uri:{uri}"));
                uris.chain(dns.iter().map(|dns| format!("dns:{dns}"))).collect()
            }
            Self::Loopback => vec!["loopback".to_owned()],
            Self::Daemon => Vec::new(),
        }
    }

    /// The name under which the daemon counts what it holds, also on disk. Unlike the name of a user it
    /// does not change while the account exists. Empty for the daemon itself, which is not limited.
    pub fn account(&self) -> String {
        match self {
            Self::User { uid, .. } => format!("uid:{uid}"),
            Self::Certificate { .. } | Self::Loopback => self.to_string(),
            Self::Daemon => String::new(),
        }
    }

    /// The principal that has exactly these names, for questions about another principal. An id
    /// that is not among them is one that no user has.
    ///
    /// # Errors
    /// [`PatternError`] for a text that is not a name, or is one of another kind of principal than the
    /// first.
    pub fn of_names(names: &[String]) -> Result<Self, PatternError> {
        let (mut user, mut groups, mut cgroup) = (None, Vec::new(), None);
        let (mut uid, mut gid) = (u32::MAX, u32::MAX);
        let (mut uris, mut dns, mut loopback) = (Vec::new(), Vec::new(), false);
        let number =
            |name: &str| name.parse().map_err(|_not_a_number| PatternError::NotANumber(name.to_owned()));
        for name in names {
            match name.split_once(':') {
                Some(("user", name)) => user = Some(name.to_owned()),
                Some(("uid", id)) => uid = number(id)?,
                Some(("gid", id)) => gid = number(id)?,
                Some(("group", name)) => groups.push(name.to_owned()),
                Some(("cgroup", path)) => cgroup = Some(path.to_owned()),
                Some(("uri", uri)) => uris.push(uri.to_owned()),
                Some(("spiffe", _)) => uris.push(name.clone()),
                Some(("dns", name)) => dns.push(name.to_ascii_lowercase()),
                Some((kind, _)) => return Err(PatternError::UnknownKind(kind.to_owned())),
                None if name == "loopback" => loopback = true,
                None => return Err(PatternError::NoKind(name.clone())),
            }
        }
        let is_certificate = !(uris.is_empty() && dns.is_empty());
        let is_user =
            user.is_some() || uid != u32::MAX || gid != u32::MAX || !groups.is_empty() || cgroup.is_some();
        match (is_user, is_certificate, loopback) {
            (false, true, false) => Ok(Self::Certificate { uris, dns }),
            (false, false, true) => Ok(Self::Loopback),
            (true, false, false) => Ok(Self::User { uid, gid, pid: None, user, groups, cgroup }),
            _ => Err(PatternError::Mixed),
        }
    }
}

/// As messages show it: `user:alice`, `uid:1000`, the first name of a certificate.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { user: Some(user), .. } => write!(f, "user:{user}"),
            Self::User { uid, groups, .. } => match groups.first() {
                Some(group) if *uid == u32::MAX => write!(f, "group:{group}"),
                _ => write!(f, "uid:{uid}"),
            },
            Self::Certificate { uris, dns } => match (uris.first(), dns.first()) {
                (Some(uri), _) => write!(f, "uri:{uri}"),
                (None, Some(dns)) => write!(f, "dns:{dns}"),
                (None, None) => f.write_str("a certificate without names"),
            },
            Self::Loopback => f.write_str("loopback"),
            Self::Daemon => f.write_str("kprobed"),
        }
    }
}
