//! Packed counts: the format of the blobs in the tables of hits.
//!
//! Owns encoding and decoding. Numbers are LEB128: seven bits in a byte, the lowest first, the top
//! bit set on all but the last. Never knows which times the counts are of.

use crate::store::StoreError;
use kprobed_lang::model::Hits;

/// Most slots of a block: a bit of a `u64` each.
const MAX_SLOTS: usize = 64;

/// The counter of one series in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) series: i64,
    /// The kernel's counter.
    pub(super) now: Hits,
    /// Hits since the previous sample.
    pub(super) happened: Hits,
}

/// The counts of one series in as many intervals of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    slots: Vec<Hits>,
}

impl Block {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: vec![Hits::default(); slots.min(MAX_SLOTS)] }
    }

    /// Adds to one slot. A slot beyond the end counts as the last one: nothing is dropped.
    pub(super) fn add(&mut self, slot: usize, hits: Hits) {
        let last = self.slots.len().saturating_sub(1);
        if let Some(slot) = self.slots.get_mut(slot.min(last)) {
            slot.hits = slot.hits.saturating_add(hits.hits);
            slot.nmissed = slot.nmissed.saturating_add(hits.nmissed);
        }
    }

    /// Adds all of another block, slot by slot.
    pub(super) fn merge(&mut self, other: &Self) {
        other.slots().for_each(|(slot, hits)| self.add(slot, hits));
    }

    /// The slots that are not zero.
    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, Hits)> {
        self.slots.iter().copied().enumerate().filter(|(_, hits)| *hits != Hits::default())
    }

    /// The sum of all slots.
    pub(super) fn sum(&self) -> Hits {
        self.slots.iter().fold(Hits::default(), |sum, slot| Hits {
            hits: sum.hits.saturating_add(slot.hits),
            nmissed: sum.nmissed.saturating_add(slot.nmissed),
        })
    }

    /// Two columns, hits and skipped runs. Each is a mask of the slots that are not zero, and their
    /// values.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 + 3 * self.slots.len());
        for column in [|hits: &Hits| hits.hits, |hits: &Hits| hits.nmissed] {
            let values = || self.slots.iter().map(column);
            let mask = values().enumerate().filter(|(_, value)| *value != 0);
            push(&mut bytes, mask.fold(0, |mask, (slot, _)| mask | (1 << slot)));
            values().filter(|value| *value != 0).for_each(|value| push(&mut bytes, value));
        }
        bytes
    }

    /// # Errors
    /// [`StoreError::Corrupt`] for bytes that [`Block::encode`] does not make of a block with so
    /// many slots.
    pub(super) fn decode(slots: usize, bytes: &[u8]) -> Result<Self, StoreError> {
        let mut block = Self::new(slots);
        let mut rest = bytes;
        let mut fill = |set: fn(&mut Hits, u64)| {
            let mask = pull(&mut rest)?;
            // Bits of slots that do not exist.
            if slots < MAX_SLOTS && mask >> slots != 0 {
                return None;
            }
            let marked = block.slots.iter_mut().enumerate().filter(|(slot, _)| (mask >> slot) & 1 == 1);
            for (_, hits) in marked {
                set(hits, pull(&mut rest).filter(|value| *value != 0)?);
            }
            Some(())
        };
        let filled =
            fill(|hits, value| hits.hits = value).and_then(|()| fill(|hits, value| hits.nmissed = value));
        match filled {
            Some(()) if rest.is_empty() => Ok(block),
            _ => Err(corrupt("block of hits", bytes)),
        }
    }
}

/// Packs the counts of a sample, which are in the order of their series.
pub(super) fn encode_counts(counts: &[Count]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * counts.len());
    let mut before = 0;
    for Count { series, now, happened } in counts {
        push(&mut bytes, series.wrapping_sub(before).unsigned_abs());
        for value in [now.hits, now.nmissed, happened.hits, happened.nmissed] {
            push(&mut bytes, value);
        }
        before = *series;
    }
    bytes
}

/// # Errors
/// [`StoreError::Corrupt`] for bytes that [`encode_counts`] does not make.
pub(super) fn decode_counts(bytes: &[u8]) -> Result<Vec<Count>, StoreError> {
    let mut rest = bytes;
    let mut counts = Vec::new();
    let mut before = 0_i64;
    let mut next = || {
        let gap = i64::try_from(pull(&mut rest)?).ok().filter(|gap| *gap > 0)?;
        let series = before.checked_add(gap)?;
        before = series;
        let mut hits = || Some(Hits { hits: pull(&mut rest)?, nmissed: pull(&mut rest)? });
        let count = Count { series, now: hits()?, happened: hits()? };
        Some((count, rest.is_empty()))
    };
    let mut done = bytes.is_empty();
    while !done {
        let (count, last) = next().ok_or_else(|| corrupt("sample of hits", bytes))?;
        counts.push(count);
        done = last;
    }
    Ok(counts)
}

fn corrupt(what: &'static str, bytes: &[u8]) -> StoreError {
    let begin = bytes.get(..16).unwrap_or(bytes);
    StoreError::Corrupt { what, value: format!("{} bytes that begin with {begin:02x?}", bytes.len()) }
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return bytes.push(low & 0x7f);
        }
        bytes.push(low | 0x80);
    }
}

/// Takes a number from the front. `None` if the bytes are empty, if it is longer than a `u64`, or
/// longer than it had to be.
fn pull(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (shift == 63 && part > 1) || (shift > 0 && *byte == 0) {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hits() -> impl Strategy<Value = Hits> {
        let number = || prop_oneof![4 => Just(0_u64), 4 => 0_u64..1000, 1 => any::<u64>()];
        (number(), number()).prop_map(|(hits, nmissed)| Hits { hits, nmissed })
    }

    proptest! {
        #[test]
        fn blocks_come_back(slots in prop::collection::vec(hits(), 1..=MAX_SLOTS)) {
            let block = Block { slots };
            let bytes = block.encode();
            prop_assert_eq!(Block::decode(block.slots.len(), &bytes).unwrap(), block);
        }

        #[test]
        fn samples_come_back(
            gaps in prop::collection::vec((1_i64..1 << 40, hits(), hits()), 0..40),
        ) {
            let mut series = 0;
            let counts: Vec<_> = gaps
                .into_iter()
                .map(|(gap, now, happened)| {
                    series += gap;
                    Count { series, now, happened }
                })
                .collect();
            prop_assert_eq!(decode_counts(&encode_counts(&counts)).unwrap(), counts);
        }

        /// Whatever is decoded was encoded so: bad bytes are refused, and never panic.
        #[test]
        fn bytes_are_read_as_they_were_written_or_not_at_all(
            bytes in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..40),
            slots in 1..=MAX_SLOTS,
        ) {
            if let Ok(block) = Block::decode(slots, &bytes) {
                prop_assert_eq!(block.encode(), bytes.clone());
            }
            if let Ok(counts) = decode_counts(&bytes) {
                prop_assert_eq!(encode_counts(&counts), bytes);
            }
        }
    }

    #[test]
    fn a_minute_of_an_hour_takes_few_bytes() {
        let mut block = Block::new(60);
        block.add(3, Hits { hits: 90, nmissed: 0 });
        assert_eq!(block.encode(), [8, 90, 0]);
        assert_eq!(block.sum(), Hits { hits: 90, nmissed: 0 });
        let mut busy = Block::new(60);
        (0..60).for_each(|minute| busy.add(minute, Hits { hits: 5000, nmissed: 0 }));
        assert_eq!(busy.encode().len(), 9 + 60 * 2 + 1);
        block.merge(&busy);
        assert_eq!(block.slots().nth(3), Some((3, Hits { hits: 5090, nmissed: 0 })));
        // Nothing is dropped after the last slot.
        block.add(60, Hits { hits: 1, nmissed: 1 });
        assert_eq!(block.slots().last(), Some((59, Hits { hits: 5001, nmissed: 1 })));
    }
}
