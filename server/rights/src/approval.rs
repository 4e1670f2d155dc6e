//! Approved definitions: what a second person has signed off.
//!
//! Owns the digest of a definition, and for whom an approval counts. Never stores one.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use thiserror::Error;

use super::Principal;

/// SHA-256 of a definition as one canonical line without group and event: the same for every spelling of
/// it, and on every kernel. Other arguments, or another place, are another definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefinitionDigest([u8; 32]);

/// A text that is not the digest of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not the digest of a definition: write `sha256:` and its 64 hexadecimal digits")]
pub struct BadDigest(String);

impl DefinitionDigest {
    /// Of a canonical line without names, as [`kprobed_lang::definition::ProbeDefinition::render_unnamed`]
    /// writes it.
    pub fn of(line: &str) -> Self {
        let mut bytes = [0; 32];
        for (byte, computed) in bytes.iter_mut().zip(digest(&SHA256, line.as_bytes()).as_ref()) {
            *byte = *computed;
        }
        Self(bytes)
    }

    /// Its 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for DefinitionDigest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for DefinitionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for DefinitionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DefinitionDigest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let mut bytes = [0; 32];
        let digits = text.strip_prefix("sha256:").ok_or_else(|| BadDigest(text.to_owned()))?;
        hex::decode_to_slice(digits, &mut bytes).map_err(|_not_hex| BadDigest(text.to_owned()))?;
        Ok(Self(bytes))
    }
}

/// Who has approved a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approver {
    /// The account: the name of a user can be missing when the user database does not answer.
    pub account: String,
    /// The name that people read, such as `user:alice`.
    pub name: String,
}

impl Approver {
    /// This principal.
    pub fn of(principal: &Principal) -> Self {
        Self { account: principal.account(), name: principal.to_string() }
    }
}

/// Who has approved which definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    by: HashMap<DefinitionDigest, Vec<Approver>>,
}

impl Approvals {
    /// Whether a principal may use a definition as an approved one: another principal has approved it.
    /// Its own approval does not count.
    pub fn hold_for(&self, digest: DefinitionDigest, principal: &Principal) -> bool {
        let Some(by) = self.by.get(&digest) else { return false };
        let own = Approver::of(principal);
        by.iter().any(|by| by.account != own.account && by.name != own.name)
    }
}

/// From definitions and the principals that approved them.
impl FromIterator<(DefinitionDigest, Approver)> for Approvals {
    fn from_iter<I: IntoIterator<Item = (DefinitionDigest, Approver)>>(approvals: I) -> Self {
        let mut by: HashMap<_, Vec<Approver>> = HashMap::new();
        for (digest, approver) in approvals {
            by.entry(digest).or_default().push(approver);
        }
        Self { by }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ones_own_approval_does_not_count() {
        let digest = DefinitionDigest::of("p vfs_read");
        let user = |names: &[&str]| {
            Principal::of_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
        };
        let (alice, bob) = (user(&["user:alice", "uid:1"]), user(&["user:bob", "uid:2"]));
        let by = |principals: &[&Principal]| {
            principals.iter().map(|one| (digest, Approver::of(one))).collect::<Approvals>()
        };
        assert!(!by(&[]).hold_for(digest, &alice));
        assert!(!by(&[&alice]).hold_for(digest, &alice));
        assert!(by(&[&alice]).hold_for(digest, &bob));
        assert!(by(&[&alice, &bob]).hold_for(digest, &alice));
        assert!(!by(&[&alice]).hold_for(DefinitionDigest::of("p vfs_write"), &bob));
        // The same user while the user database does not answer, and one asked about by name alone.
        assert!(!by(&[&alice]).hold_for(digest, &user(&["uid:1"])));
        assert!(!by(&[&user(&["uid:1"])]).hold_for(digest, &alice));
        assert!(!by(&[&alice]).hold_for(digest, &user(&["user:alice"])));
    }

    #[test]
    fn a_digest_is_that_of_the_line() {
        // echo -n 'p vfs_read' | sha256sum
        let expected = "sha256:2c81ab705711b19b1aba31da0405b032f00c069b492e68bf7434f4da9633061e";
        assert_eq!(DefinitionDigest::of("p vfs_read").to_string(), expected);
    }

    proptest! {
        #[test]
        fn a_digest_is_read_as_it_is_written(bytes: [u8; 32], other in ".{0,80}") {
            let digest = DefinitionDigest::from(bytes);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            if let Ok(digest) = other.parse::<DefinitionDigest>() {
                prop_assert_eq!(digest.to_string(), other.to_lowercase());
            }
        }
    }
}
