//! Evidence of a log away from its host: entries and heads that have arrived somewhere else, in any
//! order and some of them twice.
//!
//! Owns whether they can all belong to one log, and what is missing of it. Everything that an entry or a
//! head says of the digest of a number must agree. It keeps the digest of each entry (some 80 bytes).
//! Never reads a file.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::chain::{Broken, Chain, Digest, Head};
use crate::exported::ExportedEntry;

/// Entries and heads of one host.
#[derive(Debug)]
pub struct Evidence {
    /// Digests of the entries that are there.
    entries: BTreeMap<u64, Digest>,
    /// Digests that heads, and the entries that follow, say of entries that are not there.
    said: BTreeMap<u64, Digest>,
    repeated: u64,
}

impl Default for Evidence {
    fn default() -> Self {
        // Before the first entry there is nothing: its digest is known.
        let said = BTreeMap::from([(0, Digest::default())]);
        Self { entries: BTreeMap::new(), said, repeated: 0 }
    }
}

impl Evidence {
    /// Takes an entry.
    ///
    /// # Errors
    /// [`Broken`] if it is not what its digest says, or contradicts what was taken before.
    pub fn entry(&mut self, entry: &ExportedEntry) -> Result<(), Broken> {
        let mut alone = Chain::after(entry.after(), None)?;
        alone.verify(entry.sequence, &entry.record, entry.digest)?;
        self.agree(entry.after())?;
        self.agree(entry.head())?;
        self.said.remove(&entry.sequence);
        self.repeated += u64::from(self.entries.insert(entry.sequence, entry.digest).is_some());
        Ok(())
    }

    /// Takes a head that the host has sent, or that was noted.
    ///
    /// # Errors
    /// [`Broken::Contradiction`] if it contradicts what was taken before.
    pub fn head(&mut self, head: Head) -> Result<(), Broken> {
        self.agree(head)
    }

    /// Compares the digest of a number with what is known of it, and keeps it if nothing is.
    fn agree(&mut self, said: Head) -> Result<(), Broken> {
        let Head { sequence, digest } = said;
        let known = match self.entries.get(&sequence) {
            Some(known) => *known,
            None => *self.said.entry(sequence).or_insert(digest),
        };
        if known == digest {
            return Ok(());
        }
        Err(Broken::Contradiction { sequence, one: known, other: digest })
    }

    /// How many entries there are.
    pub fn entries(&self) -> u64 {
        self.entries.len() as u64
    }

    /// How many of them came again.
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether an entry is there, or is the one before the oldest.
    pub fn has(&self, sequence: u64) -> bool {
        self.entries.contains_key(&sequence) || sequence == self.after().sequence
    }

    /// The entry before the oldest. The chain begins there.
    pub fn after(&self) -> Head {
        let before = self.entries.keys().next().map_or(0, |first| first.saturating_sub(1));
        let digest = self.said.get(&before).copied().unwrap_or_default();
        Head { sequence: before, digest }
    }

    /// The last entry.
    pub fn last(&self) -> Head {
        let last = self.entries.last_key_value().map(|(sequence, digest)| (*sequence, *digest));
        last.map_or_else(|| self.after(), |(sequence, digest)| Head { sequence, digest })
    }

    /// The numbers between the first entry and the last one that are not there.
    pub fn missing(&self) -> Vec<RangeInclusive<u64>> {
        let following = self.entries.keys().skip(1);
        let pairs = self.entries.keys().zip(following);
        pairs.filter(|(one, next)| **next > **one + 1).map(|(one, next)| one + 1..=next - 1).collect()
    }

    /// The last head that the host has sent, if it is of an entry that is not there.
    pub fn later(&self) -> Option<Head> {
        let (sequence, digest) = self.said.last_key_value()?;
        let head = Head { sequence: *sequence, digest: *digest };
        (head.sequence > self.last().sequence).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Action, Entry, Record};

    fn log(length: u64, principal: &str) -> Vec<ExportedEntry> {
        let mut head = Head::default();
        (1..=length)
            .map(|sequence| {
                let entry = Entry::new(Action::Changed, principal);
                let record = Record { sequence, time_unix_nano: sequence, entry }.to_text().unwrap();
                let before = head;
                head = before.then(&record);
                ExportedEntry { sequence, before: before.digest, digest: head.digest, record }
            })
            .collect()
    }

    fn take(entries: &[ExportedEntry]) -> Result<Evidence, Broken> {
        let mut evidence = Evidence::default();
        entries.iter().try_for_each(|entry| evidence.entry(entry))?;
        Ok(evidence)
    }

    #[test]
    fn a_part_of_a_log_says_what_is_missing() {
        let log = log(10, "uid:1");
        let evidence = take(&log).unwrap();
        assert_eq!(
            (evidence.entries(), evidence.after(), evidence.last()),
            (10, Head::default(), log[9].head())
        );
        let part = [&log[2..4], &log[6..7], &log[2..3]].concat();
        let mut evidence = take(&part).unwrap();
        assert_eq!((evidence.entries(), evidence.repeated()), (3, 1));
        assert_eq!((evidence.after(), evidence.last()), (log[1].head(), log[6].head()));
        assert_eq!((evidence.missing(), evidence.later()), (vec![5..=6], None));
        assert!(evidence.has(2) && evidence.has(3) && !evidence.has(1) && !evidence.has(5));
        evidence.head(log[8].head()).unwrap();
        evidence.head(log[3].head()).unwrap();
        assert_eq!(evidence.later(), Some(log[8].head()));
        assert_eq!(Evidence::default().last(), Head::default());
    }

    #[test]
    fn a_log_that_was_written_anew_contradicts_what_has_left_the_host() {
        let (first, second) = (log(5, "uid:1"), log(7, "uid:2"));
        let both = [&first[..], &second[..1]].concat();
        assert!(matches!(take(&both), Err(Broken::Contradiction { sequence: 1, .. })));
        // Entries 1 to 5 are those of one log, and what follows is of another one.
        let joined = [&first[..], &second[5..]].concat();
        assert!(matches!(take(&joined), Err(Broken::Contradiction { sequence: 5, .. })));
        // Only a head of the first log has left the host.
        let mut evidence = take(&second).unwrap();
        assert!(matches!(evidence.head(first[3].head()), Err(Broken::Contradiction { sequence: 4, .. })));
        let mut evidence = Evidence::default();
        evidence.head(first[3].head()).unwrap();
        assert!(matches!(evidence.entry(&second[3]), Err(Broken::Contradiction { sequence: 4, .. })));
    }

    proptest! {
        #[test]
        fn any_order_and_repeats_are_one_log_and_any_change_is_found(
            length in 1_u64..20,
            order in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
            at in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), how in 0..4,
        ) {
            let log = log(length, "uid:1");
            let mut some: Vec<_> = order.iter().map(|index| log[index.index(log.len())].clone()).collect();
            let evidence = take(&some).unwrap();
            let missing: u64 = evidence.missing().into_iter().map(|range| range.count() as u64).sum();
            prop_assert_eq!(evidence.entries() + missing, evidence.last().sequence - evidence.after().sequence);
            prop_assert_eq!(evidence.entries() + evidence.repeated(), some.len() as u64);

            let changed = &mut some[at.index(order.len())];
            match how {
                0 => {
                    let place = byte.index(changed.record.len());
                    let mut text = changed.record.clone().into_bytes();
                    text[place] = if text[place] == b'x' { b'y' } else { b'x' };
                    changed.record = String::from_utf8(text).unwrap();
                }
                1 => changed.before.0[byte.index(32)] ^= 1,
                2 => changed.digest.0[byte.index(32)] ^= 1,
                _ => changed.sequence += 1,
            }
            prop_assert!(take(&some).is_err());
        }
    }
}
