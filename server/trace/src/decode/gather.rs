//! Batch decoder for events whose fields all have a fixed size: many records become many rows,
//! column by column.
//!
//! Owns the fast path for events whose fields all have a fixed size and cannot fault: one tight
//! loop for each column, over records that are still in the cache, instead of one walk through all
//! columns for each record. It reads every record through a window of the same size, so that the
//! loops have no bounds to check. It never appends anything other than what `row` would append.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::columns::{ADDRESS_BYTES, Columns};
use super::compiled::{Action, CompiledFormat};
use super::packed::Packed;

/// Size of a [`Window`] in bytes: the common fields, two addresses, and nine arguments of 64 bits.
pub const WINDOW_BYTES: usize = 96;

/// The common fields of a record: the event, flags, preempt count and thread id
/// (include/linux/trace_events.h:struct trace_entry).
const HEAD_BYTES: usize = 8;

/// The beginning of a record, and bytes that follow it on its page if it is shorter.
#[derive(Clone, Copy, Debug)]
pub struct Window<'p> {
    /// Time of the event, in nanoseconds of the trace clock.
    pub timestamp_ns: u64,
    /// The bytes.
    pub bytes: &'p [u8; WINDOW_BYTES],
}

impl CompiledFormat {
    /// Whether all fields are plain copies from a window, so that [`CompiledFormat::decode_fixed`] takes the
    /// records of this event.
    pub const fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Size in bytes of the part of a record that [`CompiledFormat::decode_fixed`] reads.
    pub const fn fixed_bytes(&self) -> usize {
        self.fixed_bytes
    }

    /// Appends events of this plan, in their order. At least [`CompiledFormat::fixed_bytes`] of each window
    /// must be of the record itself, or its row includes bytes of what follows it. For fixed plans
    /// only: others append nothing.
    pub fn decode_fixed(&self, windows: &[Window<'_>], columns: &mut Columns) {
        if !self.is_fixed || !columns.is_of(&self.schema) {
            return;
        }
        let head = &self.head;
        columns.timestamps_ns.extend(windows.iter().map(|window| window.timestamp_ns));
        // Most events are of the same task as the one before, in the same context: one comparison
        // finds out for all three.
        let is_usual = head.pid <= HEAD_BYTES - 4 && head.flags.max(head.preempt_count) < HEAD_BYTES;
        let same_head = is_usual && are_equal::<HEAD_BYTES>(windows, 0);
        gather::<4>(&mut columns.tids, windows, head.pid, same_head);
        gather::<1>(&mut columns.flags, windows, head.flags, same_head);
        gather::<1>(&mut columns.preempt_counts, windows, head.preempt_count, same_head);
        for (at, column) in [(head.ip, &mut columns.ips), (head.return_ip, &mut columns.return_ips)] {
            if let Some(at) = at {
                gather::<ADDRESS_BYTES>(column, windows, at, false);
            }
        }
        for (step, column) in self.steps.iter().zip(&mut columns.fields) {
            let Action::Copy { bytes } = step.action else { continue };
            let values = &mut column.values;
            match bytes {
                8 => gather::<8>(values, windows, step.at, false),
                4 => gather::<4>(values, windows, step.at, false),
                2 => gather::<2>(values, windows, step.at, false),
                1 => gather::<1>(values, windows, step.at, false),
                // Arrays, such as the six arguments of a system call.
                16 => gather::<16>(values, windows, step.at, false),
                24 => gather::<24>(values, windows, step.at, false),
                32 => gather::<32>(values, windows, step.at, false),
                48 => gather::<48>(values, windows, step.at, false),
                64 => gather::<64>(values, windows, step.at, false),
                bytes => {
                    let end = step.at.saturating_add(bytes);
                    for window in windows {
                        values.push(window.bytes.get(step.at..end).unwrap_or_default());
                    }
                }
            }
        }
    }
}

/// Appends the bytes at one offset of all windows. The plan ensures that the offset is within them.
/// `are_same`: they are known to be the same in all windows.
fn gather<const N: usize>(values: &mut Packed, windows: &[Window<'_>], at: usize, are_same: bool) {
    let Some(first) = windows.first() else { return };
    let first = load::<N>(first, at);
    if values.takes_once(&first) && (are_same || are_equal::<N>(windows, at)) {
        values.push_once(&first, windows.len());
        return;
    }
    // Room for all at once, so that the loop only loads and stores.
    let (room, _) = values.room(windows.len()).as_chunks_mut::<N>();
    for (value, window) in room.iter_mut().zip(windows) {
        *value = load(window, at);
    }
}

/// Whether the bytes at one offset are the same in all windows. The last window tells for most
/// columns that they are not; the loop over the others has no exit, and compares several at a time.
fn are_equal<const N: usize>(windows: &[Window<'_>], at: usize) -> bool {
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return true };
    let first = load::<N>(first, at);
    let differ = |window: &Window<'_>| difference(&load(window, at), &first);
    differ(last) == 0 && windows.iter().fold(0, |all, window| all | differ(window)) == 0
}

/// The bits in which two values differ, one over the other. Word by word: a comparison of so many
/// bytes would be a call.
#[inline]
fn difference<const N: usize>(one: &[u8; N], other: &[u8; N]) -> u64 {
    let ((one, one_rest), (other, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let words =
        one.iter().zip(other).map(|(one, other)| u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other));
    let rest = one_rest.iter().zip(other_rest).map(|(one, other)| u64::from(*one ^ *other));
    words.chain(rest).fold(0, |all, bits| all | bits)
}

#[inline]
fn load<const N: usize>(window: &Window<'_>, at: usize) -> [u8; N] {
    window.bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}
