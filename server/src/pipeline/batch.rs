//! Events on their way from a reader to subscribers.

use std::sync::Arc;

use super::EventSource;
use crate::decode::Columns;
use crate::kernel::ClockMapping;

/// Events of one probe, in the order of time.
#[derive(Debug)]
pub struct Group {
    /// Whose they are.
    pub source: Arc<EventSource>,
    /// The events.
    pub columns: Columns,
}

/// Events of one CPU.
#[derive(Debug)]
pub struct Batch {
    /// The CPU.
    pub cpu: u32,
    /// The events, by probe.
    pub groups: Vec<Group>,
    /// Names of the tasks that occur, where they are known.
    pub tasks: Vec<(i32, Arc<[u8]>)>,
    /// Names of the kernel addresses that occur, where they have one.
    pub symbols: Vec<(u64, Arc<str>)>,
    /// Clock mapping at the time of reading.
    pub clock: ClockMapping,
}

impl Batch {
    /// Number of events.
    pub fn events(&self) -> u64 {
        self.groups.iter().map(|group| group.columns.len() as u64).sum()
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
}

/// Events that will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Of which CPU.
    pub cpu: u32,
    /// How many; absent when that is not known here.
    pub count: Option<u64>,
    /// Time stamp of the first event behind the gap, in nanoseconds of the trace clock.
    pub before_ns: u64,
}
