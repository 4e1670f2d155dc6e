//! Events that are left out of the history for a limit, and wait to be written as one entry.
//!
//! Owns how those of consecutive batches add up, and that what is said of them is short, so that a
//! flood of them takes no room. Never decides what is left out: `quota` does.

use std::collections::BTreeMap;

use crate::pipeline::{Delivery, Span};

/// One entry stands for so many events at most.
const MOST: u64 = 1 << 30;

/// One entry says of so many schemas how many events were left out. Of more it says only the sum: the
/// entry is on no account, and a principal could fill the history with entries about its probes.
const MOST_SCHEMAS: usize = 16;

/// Events that were left out one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// The log position at which they begin.
    pub(super) sequence: u64,
    /// How many they are.
    pub(super) events: u64,
    /// How many are of each schema. Empty if they are of too many.
    pub(super) by_schema: BTreeMap<u32, u64>,
    /// Time stamps of the first and the last.
    pub(super) span: Span,
    /// Wall clock minus trace clock, in nanoseconds.
    pub(super) wall_offset_ns: i64,
}

impl LeftOut {
    /// The first events of a batch, so many of each schema.
    pub(super) fn of(delivery: &Delivery, by_schema: BTreeMap<u32, u64>) -> Self {
        let mut left_out = Self {
            sequence: delivery.sequence,
            events: by_schema.values().sum(),
            by_schema,
            span: delivery.span,
            wall_offset_ns: delivery.wall_offset_ns,
        };
        left_out.shorten();
        left_out
    }

    fn shorten(&mut self) {
        if self.by_schema.len() > MOST_SCHEMAS {
            self.by_schema.clear();
        }
    }

    /// The log position after them.
    pub(super) fn end(&self) -> u64 {
        self.sequence.saturating_add(self.events)
    }

    /// Adds those that follow. Gives them back if they do not follow at once, or are too many for one entry.
    pub(super) fn absorb(&mut self, later: Self) -> Result<(), Self> {
        if later.sequence != self.end() || self.events.saturating_add(later.events) > MOST {
            return Err(later);
        }
        self.events += later.events;
        if self.by_schema.is_empty() || later.by_schema.is_empty() {
            self.by_schema.clear();
        } else {
            for (schema_id, events) in later.by_schema {
                *self.by_schema.entry(schema_id).or_default() += events;
            }
            self.shorten();
        }
        self.span.first_ns = self.span.first_ns.min(later.span.first_ns);
        self.span.last_ns = self.span.last_ns.max(later.span.last_ns);
        self.wall_offset_ns = later.wall_offset_ns;
        Ok(())
    }
}
