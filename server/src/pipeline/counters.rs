//! The counters of the ledger that the pipeline keeps.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread adds to and others read.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        // Nothing else is published through these: a reader that wants a consistent picture asks for a drain first, and the reply to
        // that orders the counts before it.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where the events of one CPU's buffer went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferCounts {
    /// The CPU.
    pub cpu: u32,
    /// Events decoded.
    pub read: u64,
    /// Events overwritten in the buffer before they were read.
    pub overrun: u64,
    /// Events that the buffer refused: too many nested writers, or full. Known as of the last drain.
    pub refused: u64,
    /// Events that could not be decoded, or are not ours.
    pub undecodable: u64,
    /// Pages that held events.
    pub pages: u64,
}

/// Where the events of one probe went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Events decoded.
    pub read: u64,
    /// Events that could not be decoded.
    pub undecodable: u64,
}

/// Counters of one CPU's buffer.
#[derive(Debug, Default)]
pub(super) struct BufferCounters {
    pub(super) read: Counter,
    pub(super) overrun: Counter,
    pub(super) refused: Counter,
    pub(super) undecodable: Counter,
    pub(super) pages: Counter,
}

impl BufferCounters {
    pub(super) fn counts(&self, cpu: u32) -> BufferCounts {
        BufferCounts {
            cpu,
            read: self.read.get(),
            overrun: self.overrun.get(),
            refused: self.refused.get(),
            undecodable: self.undecodable.get(),
            pages: self.pages.get(),
        }
    }
}
