//! Ledger counters of the pipeline: events read, lost and undecodable, per CPU and per probe.
//!
//! Owns the counters' atomics, which any thread may read. Never decides which event counts in which
//! term.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread adds to and others read.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        // These counters order no other memory access: whoever wants consistent counts asks for a
        // drain first, and the reply to the drain orders the counts before it.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Times of the first and the last event counted, in nanoseconds of the trace clock; 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First.
    pub first_ns: u64,
    /// Last.
    pub last_ns: u64,
}

impl Span {
    /// Grows to cover a time. 0 is no time.
    pub(super) fn note(&mut self, time_ns: u64) {
        if time_ns == 0 {
            return;
        }
        if self.first_ns == 0 || time_ns < self.first_ns {
            self.first_ns = time_ns;
        }
        self.last_ns = self.last_ns.max(time_ns);
    }
}

/// A [`Span`] that several threads may grow and others read.
#[derive(Debug)]
pub(super) struct SpanCounter {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Default for SpanCounter {
    fn default() -> Self {
        Self { first_ns: AtomicU64::new(u64::MAX), last_ns: AtomicU64::new(0) }
    }
}

impl SpanCounter {
    /// Grows to cover a time. 0 is no time.
    pub(super) fn note(&self, time_ns: u64) {
        if time_ns != 0 {
            self.first_ns.fetch_min(time_ns, Ordering::Relaxed);
            self.last_ns.fetch_max(time_ns, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Span {
        match self.last_ns.load(Ordering::Relaxed) {
            0 => Span::default(),
            last_ns => Span { first_ns: self.first_ns.load(Ordering::Relaxed), last_ns },
        }
    }
}

/// Ledger terms of one CPU's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferCounts {
    /// The CPU.
    pub cpu: u32,
    /// Events decoded.
    pub read: u64,
    /// Times of the events decoded.
    pub read_span: Span,
    /// Events overwritten in the buffer before they were read.
    pub overrun: u64,
    /// Times of the first events after those gaps.
    pub overrun_span: Span,
    /// Events that the kernel gave up because too many writers were nested. Known as of the last
    /// drain.
    pub commit_overrun: u64,
    /// Events that the kernel refused because the buffer was full and overwriting is off. Known as
    /// of the last drain.
    pub dropped_events: u64,
    /// Events that another program took out of the buffer: the kernel counts more events as read than
    /// the daemon has read. Known as of the last drain.
    pub taken: u64,
    /// Times that another program emptied the buffer. Known as of the last drain.
    pub resets: u64,
    /// Events that could not be decoded, or that no probe of the daemon recorded.
    pub undecodable: u64,
    /// Pages that held events.
    pub pages: u64,
}

impl BufferCounts {
    /// Events that were lost in the buffer, as far as the kernel counts them.
    pub const fn lost(&self) -> u64 {
        self.overrun + self.commit_overrun + self.dropped_events + self.taken
    }

    /// All events that reached the buffer and were read or lost since.
    pub const fn all(&self) -> u64 {
        self.read + self.undecodable + self.lost()
    }
}

/// Ledger terms of one probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Events decoded.
    pub read: u64,
    /// Times of the events decoded.
    pub read_span: Span,
    /// Events that could not be decoded.
    pub undecodable: u64,
}

/// Counters of one CPU's buffer.
#[derive(Debug, Default)]
pub(super) struct BufferCounters {
    pub(super) read: Counter,
    pub(super) read_span: SpanCounter,
    pub(super) overrun: Counter,
    pub(super) overrun_span: SpanCounter,
    pub(super) commit_overrun: Counter,
    pub(super) dropped_events: Counter,
    pub(super) taken: Counter,
    pub(super) resets: Counter,
    pub(super) undecodable: Counter,
    /// Records of call stacks, which the kernel counts as events.
    pub(super) stacks: Counter,
    pub(super) pages: Counter,
    /// Pages of which not every event was counted.
    pub(super) malformed: Counter,
}

impl BufferCounters {
    /// Records that the daemon has read, whether it could decode them or not.
    pub(super) fn seen(&self) -> u64 {
        self.read.get() + self.undecodable.get() + self.stacks.get()
    }

    pub(super) fn counts(&self, cpu: u32) -> BufferCounts {
        BufferCounts {
            cpu,
            read: self.read.get(),
            read_span: self.read_span.get(),
            overrun: self.overrun.get(),
            overrun_span: self.overrun_span.get(),
            commit_overrun: self.commit_overrun.get(),
            dropped_events: self.dropped_events.get(),
            taken: self.taken.get(),
            resets: self.resets.get(),
            undecodable: self.undecodable.get(),
            pages: self.pages.get(),
        }
    }
}
