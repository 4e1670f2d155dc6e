//! Draft of a log entry: decoded events of one CPU, as columns, before they are published.
//!
//! Owns their form. Never numbers events: the hub does.

use std::sync::Arc;

use super::Origin;
use crate::decode::Columns;
use crate::wire::{Symbol, Task};
use kprobed_host::kernel::ClockMapping;

/// Events of one probe, in the order of time.
#[derive(Clone, Debug)]
pub struct Group {
    /// The probe that recorded them, and their schema.
    pub origin: Arc<Origin>,
    /// The events.
    pub columns: Columns,
}

/// Events of one CPU: about to be published, read from the history, or without their kernel addresses. Subscribers get
/// a copy in the form of the wire.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The CPU.
    pub cpu: u32,
    /// The events, by probe. None of the groups is empty.
    pub groups: Vec<Group>,
    /// Names and processes of the tasks that occur, by thread id.
    pub tasks: Vec<Task>,
    /// Names of the kernel addresses that occur, if they have one.
    pub symbols: Vec<Symbol>,
    /// Clock mapping at the time of reading.
    pub clock: ClockMapping,
}

impl Draft {
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
