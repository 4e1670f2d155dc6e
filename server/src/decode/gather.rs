//! Many records become many rows, column by column.
//!
//! Owns the quick way for events whose fields are all of fixed size and can not fault: one tight loop for each column, over records that are
//! still in the cache, instead of one walk through all columns for each record. What it appends is what `row` would append.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::columns::Columns;
use super::plan::{Action, Plan};
use super::row::DecodeError;
use crate::ring::Record;

impl Plan {
    /// Whether all fields are plain copies, so that [`Plan::decode_fixed`] takes the records of this event.
    pub const fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Bytes that a record needs for everything that [`Plan::decode_fixed`] takes from it.
    pub const fn fixed_bytes(&self) -> usize {
        self.fixed_bytes
    }

    /// Whether a record has room for everything that [`Plan::decode_fixed`] takes from it.
    ///
    /// # Errors
    /// [`DecodeError::TooShort`].
    #[inline]
    pub const fn admit(&self, record: &[u8]) -> Result<(), DecodeError> {
        if record.len() < self.fixed_bytes {
            return Err(DecodeError::TooShort { needed: self.fixed_bytes, found: record.len() });
        }
        Ok(())
    }

    /// Appends events of this plan that were admitted, in their order. For fixed plans only: others append nothing. A record that was not
    /// admitted becomes a row with zeros for what it does not have.
    pub fn decode_fixed(&self, records: &[Record<'_>], columns: &mut Columns) {
        if !self.is_fixed || !columns.is_of(&self.schema) {
            return;
        }
        let head = &self.head;
        columns.timestamps_ns.extend(records.iter().map(|record| record.timestamp_ns));
        columns.tids.extend(records.iter().map(|record| i32::from_le_bytes(load(record, head.pid))));
        columns.flags.extend(records.iter().map(|record| u8::from_le_bytes(load(record, head.flags))));
        columns
            .preempt_counts
            .extend(records.iter().map(|record| u8::from_le_bytes(load(record, head.preempt_count))));
        for (at, column) in [(head.ip, &mut columns.ips), (head.return_ip, &mut columns.return_ips)] {
            if let Some(at) = at {
                column.extend(records.iter().map(|record| u64::from_le_bytes(load(record, at))));
            }
        }
        for (step, column) in self.steps.iter().zip(&mut columns.fields) {
            let Action::Copy { bytes } = step.action else { continue };
            let values = &mut column.values;
            match bytes {
                8 => gather::<8>(records, step.at, values),
                4 => gather::<4>(records, step.at, values),
                2 => gather::<2>(records, step.at, values),
                1 => gather::<1>(records, step.at, values),
                bytes => {
                    let end = step.at.saturating_add(bytes);
                    for record in records {
                        match record.payload.get(step.at..end) {
                            Some(array) => values.extend_from_slice(array),
                            None => values.resize(values.len().saturating_add(bytes), 0),
                        }
                    }
                }
            }
        }
    }
}

#[inline]
fn load<const N: usize>(record: &Record<'_>, at: usize) -> [u8; N] {
    record.payload.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// The values of `N` bytes at one place of all records. Room is made once, so that the loop does nothing but load and store.
fn gather<const N: usize>(records: &[Record<'_>], at: usize, values: &mut Vec<u8>) {
    let start = values.len();
    values.resize(start.saturating_add(records.len().saturating_mul(N)), 0);
    let (room, _) = values.get_mut(start..).unwrap_or_default().as_chunks_mut::<N>();
    for (value, record) in room.iter_mut().zip(records) {
        *value = load(record, at);
    }
}
