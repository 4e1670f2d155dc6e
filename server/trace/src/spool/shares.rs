//! Shares: how many bytes of a segment each account has.
//!
//! Owns these sums and their form in a record. An account is a text of the module that writes
//! entries: the spool does not know what it stands for. What belongs to no account is in no share.
//! Never decides how much an account may have.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fields::Fields;
use super::record::HEAD_BYTES;

/// Bytes before the text of an account: its bytes in the segment, and the length of the text.
const SHARE_HEAD_BYTES: u64 = 12;

/// Bytes of each account. The record of them is the last one of a segment but one:
///
/// ```text
/// for each account: 0 bytes u64 | 8 length u32 | 12 text
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(BTreeMap<Arc<str>, u64>);

impl Shares {
    /// Adds bytes of an account.
    pub fn add(&mut self, account: &Arc<str>, bytes: u64) {
        let held = self.0.entry(Arc::clone(account)).or_default();
        *held = held.saturating_add(bytes);
    }

    /// Adds those of another.
    pub(super) fn add_all(&mut self, other: &Self) {
        for (account, bytes) in &other.0 {
            self.add(account, *bytes);
        }
    }

    /// Bytes of an account.
    pub fn of(&self, account: &str) -> u64 {
        self.0.get(account).copied().unwrap_or(0)
    }

    /// All accounts with their bytes, by account.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        self.0.iter().map(|(account, bytes)| (account, *bytes))
    }

    /// Bytes of the record of these accounts and of those of another; none if there is no account.
    pub(super) fn record_bytes_with(&self, other: &Self) -> u64 {
        let new = other.0.keys().filter(|account| !self.0.contains_key(*account));
        let bytes =
            self.0.keys().chain(new).map(|account| SHARE_HEAD_BYTES.saturating_add(account.len() as u64));
        match bytes.fold(0, u64::saturating_add) {
            0 => 0,
            bytes => bytes.saturating_add(HEAD_BYTES),
        }
    }

    /// The payload of the record. Empty if there is no account: then there is no record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for (account, bytes) in &self.0 {
            payload.extend_from_slice(&bytes.to_le_bytes());
            payload.extend_from_slice(&u32::try_from(account.len()).unwrap_or(u32::MAX).to_le_bytes());
            payload.extend_from_slice(account.as_bytes());
        }
        payload
    }

    /// Reads the payload of a record. `None` if it is not one.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        let mut shares = Self::default();
        while !fields.0.is_empty() {
            let (bytes, length) = (fields.u64()?, fields.u32()?);
            let (text, rest) = fields.0.split_at_checked(usize::try_from(length).ok()?)?;
            fields.0 = rest;
            shares.add(&Arc::from(std::str::from_utf8(text).ok()?), bytes);
        }
        Some(shares)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(all: &[(&str, u64)]) -> Shares {
        let mut shares = Shares::default();
        for (account, bytes) in all {
            shares.add(&Arc::from(*account), *bytes);
        }
        shares
    }

    #[test]
    fn sums_of_accounts() {
        let mut all = shares(&[("uid:1", 10), ("uid:2", 5), ("uid:1", 1)]);
        all.add_all(&shares(&[("uid:2", u64::MAX), ("", 3)]));
        let expected = [("", 3), ("uid:1", 11), ("uid:2", u64::MAX)];
        assert_eq!(all.iter().map(|(account, bytes)| (&**account, bytes)).collect::<Vec<_>>(), expected);
        assert_eq!((all.of("uid:1"), all.of("uid:3")), (11, 0));
        assert_eq!(Shares::default().record_bytes_with(&Shares::default()), 0, "no record");
        let both = HEAD_BYTES + all.encode().len() as u64;
        assert_eq!(all.record_bytes_with(&shares(&[("uid:1", 1)])), both);
        assert_eq!(shares(&[("", 1)]).record_bytes_with(&shares(&[("uid:1", 1), ("uid:2", 2)])), both);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn a_payload_comes_back_or_is_refused(
            all in prop::collection::btree_map("[a-z:]{0,6}", any::<u64>(), 0..4),
            any in prop::collection::vec(any::<u8>(), 0..60),
            cut in 1_usize..12,
        ) {
            let all: Vec<_> = all.iter().map(|(account, bytes)| (account.as_str(), *bytes)).collect();
            let shares = shares(&all);
            let payload = shares.encode();
            prop_assert_eq!(Shares::decode(&payload), Some(shares));
            if let Some(cut) = payload.len().checked_sub(cut) {
                // Never more than was there.
                let part = payload.get(..cut).and_then(Shares::decode).unwrap_or_default();
                prop_assert!(part.iter().all(|(account, bytes)| all.contains(&(&**account, bytes))));
            }
            if let Some(read) = Shares::decode(&any) {
                prop_assert_eq!(Shares::decode(&read.encode()), Some(read));
            }
        }
    }
}
