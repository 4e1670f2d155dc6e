//! Item of an event stream: a batch, a gap, or a position in the log; and the draft that batches are made of.
//!
//! Owns the one form in which events, gaps and log positions travel: queues hold it, the history
//! yields it, and streams and exporters read it. Never encodes a message: `encodings` does; and never numbers events:
//! the hub does.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::counters::Span;
use super::{Loss, Origin};
use crate::decode::Columns;
use crate::spool::{Cursor, Limit};
use crate::wire::{Symbol, Task};
use kprobed_host::kernel::ClockMapping;

/// A place of the log, for whoever waits until the history has stored everything before it: the limit of the spool
/// there.
pub(super) type Mark = oneshot::Sender<Limit>;

/// One item of a stream.
#[derive(Debug)]
pub enum Item {
    /// The items that follow are of this run of the daemon, from this log position on.
    Epoch {
        /// The position at which the stream continues.
        cursor: Cursor,
        /// Whether an unknown number of events may be missing before it.
        may_miss: bool,
    },
    /// The history ends at this log position, and new events follow.
    CaughtUp(u64),
    /// Events.
    Batch(Delivery),
    /// A gap, before the first event after it.
    Loss(Loss),
    /// Everything before this time was delivered, in nanoseconds of the trace clock.
    Watermark(u64),
    /// All events before this log position were examined; none of the latest ones was selected.
    Progress(u64),
    /// Everything that was published before this mark was set was delivered or dropped. Only a
    /// subscriber that sets marks receives it.
    Mark(oneshot::Sender<Limit>),
}

/// Events of one entry of the log, as delivered to one subscriber.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The CPU.
    pub cpu: u32,
    /// The log position at which their entry begins.
    pub sequence: u64,
    /// How many events that entry has.
    pub log_events: u64,
    /// How many of them are delivered.
    pub events: u64,
    /// Time stamps of the first and the last of the entry, in nanoseconds.
    pub span: Span,
    /// Wall clock minus trace clock, in nanoseconds.
    pub wall_offset_ns: i64,
    /// The probes that recorded them.
    pub origins: Arc<[Arc<Origin>]>,
    /// The events: a serialised `StreamEventsResponse`, shared by all subscribers with the same selection.
    pub message: Bytes,
}

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
    /// The events, by probe. None of the groups is empty when they are published.
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
