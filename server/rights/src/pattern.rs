//! Patterns over principals, as role files write them.
//!
//! Owns their syntax and matching. Never resolves a name.

use std::fmt;
use std::str::FromStr;

use kprobed_lang::model::Glob;
use thiserror::Error;

use super::Principal;

/// Some principals: `user:alice`, `uid:1000`, `group:tracers`, `gid:100`, `cgroup:/system.slice/*`,
/// `uri:spiffe://prod/ns/*/sa/tracer` (or without `uri:`), `dns:*.ops.example.com`, `loopback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalPattern {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    User(Glob),
    Uid(u32),
    Group(Glob),
    Gid(u32),
    Cgroup(Glob),
    Uri(Glob),
    Dns(Glob),
    Loopback,
}

/// Why a text is not a pattern of principals.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatternError {
    /// It does not say of what kind the principal is.
    #[error("`{0}` does not say what kind of principal it is")]
    NoKind(String),
    /// There is no such kind.
    #[error("`{0}` is not a kind of principal")]
    UnknownKind(String),
    /// An id that is no number.
    #[error("`{0}` is not a number from 0 to 4294967295")]
    NotANumber(String),
    /// Names of more than one kind of principal, for one.
    #[error("one principal is a user, or a certificate, or `loopback`")]
    Mixed,
    /// Nothing after the kind.
    #[error("`{0}:` has no name after it")]
    Empty(String),
}

impl PatternError {
    /// What to write instead.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Mixed => "give the names of one of them",
            Self::NotANumber(_) => "write the number of the id, or use `user:NAME` or `group:NAME`",
            Self::NoKind(_) | Self::UnknownKind(_) | Self::Empty(_) => {
                "write `user:NAME`, `uid:N`, `group:NAME`, `gid:N`, `cgroup:PATH`, `uri:NAME`, `spiffe://NAME`, `dns:NAME` or `loopback`"
            }
        }
    }
}

impl PrincipalPattern {
    /// Whether a principal is one of these.
    pub fn matches(&self, principal: &Principal) -> bool {
        match (&self.kind, principal) {
            (Kind::User(glob), Principal::User { user: Some(user), .. }) => glob.matches(user),
            (Kind::Uid(wanted), Principal::User { uid, .. }) => wanted == uid,
            (Kind::Group(glob), Principal::User { groups, .. }) => {
                groups.iter().any(|group| glob.matches(group))
            }
            (Kind::Gid(wanted), Principal::User { gid, .. }) => wanted == gid,
            (Kind::Cgroup(glob), Principal::User { cgroup: Some(cgroup), .. }) => glob.matches(cgroup),
            (Kind::Uri(glob), Principal::Certificate { uris, .. }) => {
                uris.iter().any(|uri| glob.matches(uri))
            }
            (Kind::Dns(glob), Principal::Certificate { dns, .. }) => {
                dns.iter().any(|name| glob.matches(name))
            }
            (Kind::Loopback, Principal::Loopback) => true,
            _ => false,
        }
    }
}

impl FromStr for PrincipalPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let kind = if text == "loopback" {
            Kind::Loopback
        } else if text.starts_with("spiffe://") {
            Kind::Uri(Glob::new(text))
        } else {
            let (kind, name) = text.split_once(':').ok_or_else(|| PatternError::NoKind(text.to_owned()))?;
            if name.is_empty() {
                return Err(PatternError::Empty(kind.to_owned()));
            }
            let number = || name.parse().map_err(|_not_a_number| PatternError::NotANumber(name.to_owned()));
            match kind {
                "user" => Kind::User(Glob::new(name)),
                "uid" => Kind::Uid(number()?),
                "group" => Kind::Group(Glob::new(name)),
                "gid" => Kind::Gid(number()?),
                "cgroup" => Kind::Cgroup(Glob::new(name)),
                "uri" => Kind::Uri(Glob::new(name)),
                // Names of hosts do not differ in case (RFC 4343).
                "dns" => Kind::Dns(Glob::new(name.to_ascii_lowercase())),
                _ => return Err(PatternError::UnknownKind(kind.to_owned())),
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

impl fmt::Display for PrincipalPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
