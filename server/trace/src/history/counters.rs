//! Ledger terms of the history: events stored, in memory, not stored, and expired.
//!
//! Owns the recorder's counters, and how they and the spool's statistics form the terms. Never
//! reads the spool itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::spool::SpoolStats;

/// What the recorder counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    stored: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    pub(super) fn stored(&self, events: u64) {
        self.stored.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, events: u64) {
        self.refused.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn counts(
        &self,
        dropped: u64,
        read: u64,
        expired_before: u64,
        stats: SpoolStats,
    ) -> HistoryCounts {
        let in_memory = stats.unwritten_events;
        let stored = self.stored.load(Ordering::Relaxed).saturating_sub(in_memory);
        let not_stored = self.refused.load(Ordering::Relaxed) + dropped;
        HistoryCounts {
            read,
            stored,
            in_memory,
            not_stored,
            expired: stats.expired_events.saturating_sub(expired_before),
            stats,
        }
    }
}

/// Ledger terms of the history: read = stored + `in_memory` + `not_stored` + events that the
/// recorder has not taken yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Events that were read while the daemon kept a history.
    pub read: u64,
    /// Events that the spool has written to its files.
    pub stored: u64,
    /// Events that the spool has taken, and not written yet.
    pub in_memory: u64,
    /// Events that the spool refused, or that the recorder's queue dropped.
    pub not_stored: u64,
    /// Events of any run that have expired since the daemon was started.
    pub expired: u64,
    /// Statistics of the spool.
    pub stats: SpoolStats,
}
