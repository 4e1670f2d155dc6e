//! Hist triggers: tables in which the kernel counts the events of a probe
//! (kernel/trace/trace_events_hist.c).
//!
//! Owns the text of such triggers, and the grammar of `hist` files. Never decides what to count: the
//! daemon's `control` does.

mod table;
#[cfg(test)]
mod tests;
mod trigger;

pub use table::{HistError, HistRow, HistTable, HistValue};
pub use trigger::{HistAction, HistKey, HistTrigger, HistVariable, KeyForm};

/// Keys that one trigger can have (kernel/trace/tracing_map.h:TRACING_MAP_KEYS_MAX).
pub const MAX_KEYS: usize = 3;

/// Sums that one trigger can have: one less than `TRACING_MAP_VALS_MAX`, because the count of hits
/// is one of them.
pub const MAX_SUMS: usize = 2;

/// Rows that a table can be asked to have room for. The kernel takes 2^7 to 2^17
/// (`TRACING_MAP_BITS_MIN`, `_MAX`) and allocates all of them at once, some hundred bytes each.
pub const TABLE_ROWS: std::ops::RangeInclusive<u32> = 128..=16384;
