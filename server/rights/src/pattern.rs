//! Patterns over principals, as role files write them.
//!
//! Owns their syntax and matching. Never resolves a name.

use std::str::FromStr;

use kprobed_lang::model::Glob;
use thiserror::Error;

#[cfg(doc)]
use super::Principal;

/// Some principals: `user:alice`, `uid:1000`, `group:tracers`, `gid:100`, `cgroup:/system.slice/*`,
/// `uri:spiffe://prod/ns/*/sa/tracer` (or without `uri:`), `dns:*.ops.example.com`, `loopback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalPattern(Glob);

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
    /// Whether a principal with these names ([`Principal::names`]) is one of these.
    pub fn matches(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.0.matches(name))
    }
}

impl FromStr for PrincipalPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text == "loopback" {
            return Ok(Self(Glob::new(text)));
        }
        let (kind, name) = match text.split_once(':') {
            _ if text.starts_with("spiffe://") => ("uri", text),
            Some(kind_and_name) => kind_and_name,
            None => return Err(PatternError::NoKind(text.to_owned())),
        };
        if name.is_empty() {
            return Err(PatternError::Empty(kind.to_owned()));
        }
        let name = match kind {
            "user" | "group" | "cgroup" | "uri" => name.to_owned(),
            "uid" | "gid" => number(name)?.to_string(),
            // Names of hosts do not differ in case (RFC 4343).
            "dns" => name.to_ascii_lowercase(),
            _ => return Err(PatternError::UnknownKind(kind.to_owned())),
        };
        Ok(Self(Glob::new(format!("{kind}:{name}"))))
    }
}

/// The number of an id.
pub(super) fn number(text: &str) -> Result<u32, PatternError> {
    text.parse().map_err(|_not_a_number| PatternError::NotANumber(text.to_owned()))
}
