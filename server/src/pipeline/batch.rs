//! Events on their way from a reader to subscribers.

use std::sync::Arc;

use super::Origin;
use crate::decode::Columns;
use crate::kernel::ClockMapping;
use crate::wire::{Symbol, Task};

/// Events of one probe, in the order of time.
#[derive(Clone, Debug)]
pub struct Group {
    /// Whose they are.
    pub origin: Arc<Origin>,
    /// The events.
    pub columns: Columns,
}

/// Events of one CPU that are about to be published: one entry of the log. They are borrowed, since what is sent of them is a copy in the form
/// of the wire.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The CPU.
    pub cpu: u32,
    /// The events, by probe. None of the groups is empty.
    pub groups: &'a [Group],
    /// What is known of the tasks that occur.
    pub tasks: &'a [Task],
    /// Names of the kernel addresses that occur, where they have one.
    pub symbols: &'a [Symbol],
    /// Clock mapping at the time of reading.
    pub clock: ClockMapping,
}

impl Draft<'_> {
    /// Number of events.
    pub fn events(&self) -> u64 {
        self.groups.iter().map(|group| group.columns.len() as u64).sum()
    }

    /// The earliest time stamp, in nanoseconds.
    pub fn first_ns(&self) -> u64 {
        let firsts = self.groups.iter().filter_map(|group| group.columns.timestamps_ns.first());
        firsts.min().copied().unwrap_or_default()
    }

    /// The latest time stamp, in nanoseconds.
    pub fn last_ns(&self) -> u64 {
        let lasts = self.groups.iter().filter_map(|group| group.columns.timestamps_ns.last());
        lasts.max().copied().unwrap_or_default()
    }
}

/// Why events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// The ring buffer was full, and the kernel overwrote what nobody had read.
    Overrun,
    /// The subscriber's queue was full.
    SubscriberQueue,
    /// Bytes that make no sense.
    Undecodable,
    /// The subscriber's own limit on the rate.
    RateLimit,
    /// The history does not go back that far, or not any more.
    Expired,
    /// The history could not be written.
    NotStored,
    /// Somebody emptied the buffers.
    Wiped,
    /// The ring buffer refused events.
    Refused,
}

/// Events that will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Of which CPU; absent for any.
    pub cpu: Option<u32>,
    /// How many; absent when that is not known here.
    pub count: Option<u64>,
    /// Time stamp of the first event behind the gap, in nanoseconds of the trace clock; 0 when there is none yet.
    pub before_ns: u64,
    /// How many gaps it stands for.
    pub gaps: u64,
}

impl Loss {
    /// One gap on one CPU.
    pub const fn on(cpu: u32, cause: LossCause, count: Option<u64>, before_ns: u64) -> Self {
        Self { cause, cpu: Some(cpu), count, before_ns, gaps: 1 }
    }

    /// Whether another gap can be told together with this one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.cpu == other.cpu && self.cause == other.cause
    }

    /// Takes in a later gap that is told together with this one.
    pub(super) fn absorb(&mut self, later: &Self) {
        self.count = self.count.zip(later.count).map(|(a, b)| a.saturating_add(b));
        self.before_ns = later.before_ns;
        self.gaps = self.gaps.saturating_add(later.gaps);
    }
}
