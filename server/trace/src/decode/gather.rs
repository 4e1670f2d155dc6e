//! Batch decoder for events whose fields all have a fixed size: many records become many rows,
//! column by column.
//!
//! Owns the fast path for events whose fields all have a fixed size and cannot fault: one tight
//! loop for each column, over records that are still in the cache, instead of one walk through all
//! columns for each record. It reads every record through a window of the same size, so that the
//! loops have no bounds to check. It never appends anything other than what `row` would append.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::columns::Columns;
use super::compiled::{Action, CompiledFormat};

/// Size of a [`Window`] in bytes: the common fields, two addresses, and nine arguments of 64 bits.
pub const WINDOW_BYTES: usize = 96;

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
        extend(&mut columns.tids, windows, head.pid, i32::from_le_bytes);
        extend(&mut columns.flags, windows, head.flags, u8::from_le_bytes);
        extend(&mut columns.preempt_counts, windows, head.preempt_count, u8::from_le_bytes);
        for (at, column) in [(head.ip, &mut columns.ips), (head.return_ip, &mut columns.return_ips)] {
            if let Some(at) = at {
                extend(column, windows, at, u64::from_le_bytes);
            }
        }
        for (step, column) in self.steps.iter().zip(&mut columns.fields) {
            let Action::Copy { bytes } = step.action else { continue };
            let values = &mut column.values;
            match bytes {
                8 => gather::<8>(values, windows, step.at),
                4 => gather::<4>(values, windows, step.at),
                2 => gather::<2>(values, windows, step.at),
                1 => gather::<1>(values, windows, step.at),
                // Arrays, such as the six arguments of a system call.
                16 => gather::<16>(values, windows, step.at),
                24 => gather::<24>(values, windows, step.at),
                32 => gather::<32>(values, windows, step.at),
                48 => gather::<48>(values, windows, step.at),
                64 => gather::<64>(values, windows, step.at),
                bytes => {
                    let end = step.at.saturating_add(bytes);
                    for window in windows {
                        values.extend_from_slice(window.bytes.get(step.at..end).unwrap_or_default());
                    }
                }
            }
        }
    }
}

/// Appends the bytes at one offset of all windows. The plan ensures that the offset is within them.
fn extend<T, const N: usize>(
    column: &mut Vec<T>,
    windows: &[Window<'_>],
    at: usize,
    value: impl Fn([u8; N]) -> T,
) {
    column.extend(windows.iter().map(|window| value(load(window, at))));
}

/// As [`extend`], for the bytes of values. It reserves room once, so that the loop only loads and
/// stores.
fn gather<const N: usize>(values: &mut Vec<u8>, windows: &[Window<'_>], at: usize) {
    let start = values.len();
    values.resize(start.saturating_add(windows.len().saturating_mul(N)), 0);
    let (room, _) = values.get_mut(start..).unwrap_or_default().as_chunks_mut::<N>();
    for (value, window) in room.iter_mut().zip(windows) {
        *value = load(window, at);
    }
}

#[inline]
fn load<const N: usize>(window: &Window<'_>, at: usize) -> [u8; N] {
    window.bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}
