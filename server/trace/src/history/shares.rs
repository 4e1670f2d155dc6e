//! Shares of entries: which bytes of the history belong to whom.
//!
//! Owns the attribution of an entry to the accounts of those who made the probes of its events. The
//! recorder uses it for what it writes, and the spool for what a crash has left without sums. Never
//! decides how much an account may have: `quota` does.

use std::collections::HashMap;
use std::sync::Arc;

use super::stored;
use crate::spool::{EntryKind, Record, RecordKind, Shares};
use crate::wire::{GroupPlace, groups_of};

/// Accounts by schema, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Attribution(HashMap<u32, Arc<str>>);

impl Attribution {
    /// The shares of a record. A schema has none, and says whose the events after it are.
    pub(super) fn of_record(&mut self, record: &Record<'_>) -> Shares {
        match record.kind {
            RecordKind::Entry(EntryKind::Schema) => {
                match stored::account(record.payload) {
                    Some(account) => self.0.insert(record.key, account.into()),
                    None => self.0.remove(&record.key),
                };
                Shares::default()
            }
            RecordKind::Entry(EntryKind::Events) if !self.0.is_empty() => {
                let groups = groups_of(record.payload).unwrap_or_default();
                shares(&groups, record.bytes(), |schema_id| self.0.get(&schema_id).cloned())
            }
            _ => Shares::default(),
        }
    }
}

/// What accounts have of a record of so many bytes with these groups: in proportion to the bytes of the groups.
pub(super) fn shares(
    groups: &[GroupPlace],
    record_bytes: u64,
    account_of: impl Fn(u32) -> Option<Arc<str>>,
) -> Shares {
    let all: u128 = groups.iter().map(|group| group.bytes.len() as u128).sum();
    let mut shares = Shares::default();
    for group in groups {
        let Some(account) = account_of(group.schema_id) else { continue };
        let part = (u128::from(record_bytes) * group.bytes.len() as u128).checked_div(all).unwrap_or(0);
        shares.add(&account, u64::try_from(part).unwrap_or(u64::MAX));
    }
    shares
}
