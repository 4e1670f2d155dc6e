//! Events on their way from a reader to subscribers.

use std::sync::Arc;

use super::Origin;
use crate::decode::Columns;
use crate::wire::{Symbol, Task};
use kprobed_host::kernel::ClockMapping;

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
