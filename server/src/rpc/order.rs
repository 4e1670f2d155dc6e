//! Time order of events: late events, and rows sorted by time.
//!
//! Owns the watermark, before which no further row is expected. Never reads a clock.

use std::collections::BTreeMap;

use kprobed_proto::v1;

use kprobed_trace::pipeline::Delivery;

/// Counts events that arrive after a watermark that is later than they are.
#[derive(Debug, Default)]
pub(super) struct Late {
    watermark_ns: u64,
    events: u64,
}

impl Late {
    /// Events are delivered. If an entry begins before the watermark, all of its events count,
    /// since their times are not compared one by one here: an upper bound.
    pub(super) const fn delivered(&mut self, delivery: &Delivery) {
        if delivery.span.first_ns < self.watermark_ns {
            self.events += delivery.events;
        }
    }

    /// The clock was restarted.
    pub(super) const fn begin(&mut self) {
        self.watermark_ns = 0;
    }

    /// The watermark rises. Returns how many events were late so far.
    pub(super) const fn passed(&mut self, watermark_ns: u64) -> u64 {
        self.watermark_ns = watermark_ns;
        self.events
    }
}

/// Rows that wait for the watermark.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    /// By time, and among equals by arrival.
    rows: BTreeMap<(u64, u64), v1::EventRow>,
    arrived: u64,
    /// Entries of the log with rows that wait, by their beginning: their end, and the time of their
    /// last row.
    entries: BTreeMap<u64, (u64, u64)>,
}

impl Sorter {
    /// Takes the rows of an entry of the log, which ends at `end`.
    pub(super) fn add(&mut self, rows: Vec<v1::EventRow>, sequence: u64, end: u64) {
        let last_ns = rows.iter().map(|row| row.timestamp_ns).max().unwrap_or_default();
        self.entries.insert(sequence, (end, last_ns));
        for row in rows {
            self.rows.insert((row.timestamp_ns, self.arrived), row);
            self.arrived += 1;
        }
    }

    /// Returns all rows older than the watermark, in order, and the position in the log before
    /// which all rows were returned, if that has changed.
    pub(super) fn release(&mut self, watermark_ns: u64) -> (Vec<v1::EventRow>, Option<u64>) {
        let later = self.rows.split_off(&(watermark_ns, 0));
        let released = std::mem::replace(&mut self.rows, later);
        let mut done = None;
        while let Some(entry) = self.entries.first_entry() {
            let (end, last_ns) = *entry.get();
            if last_ns >= watermark_ns {
                break;
            }
            done = Some(end);
            entry.remove();
        }
        (released.into_values().collect(), done)
    }
}
