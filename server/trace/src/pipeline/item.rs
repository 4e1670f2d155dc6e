//! What a stream of events consists of.
//!
//! Owns the one form in which events, gaps and places of the log travel: queues hold it, the
//! history yields it, and streams and exporters read it.

use std::sync::Arc;

use bytes::Bytes;

use super::counters::Span;
use super::{ColumnBatch, Loss, Origin};
use crate::spool::Cursor;

/// One item of a stream.
#[derive(Clone, Debug)]
pub enum Item {
    /// What follows is of this run of the daemon, from this place on.
    Epoch {
        /// Where it goes on.
        cursor: Cursor,
        /// Whether events may be missing before it of which nobody knows.
        may_miss: bool,
    },
    /// The history ends at this place of the log: the present begins.
    CaughtUp(u64),
    /// Events.
    Batch(Delivery),
    /// A gap, before the first event behind it.
    Loss(Loss),
    /// Everything before this time was delivered, in nanoseconds of the trace clock.
    Watermark(u64),
    /// Everything before this place of the log was looked at; of the last part of it nothing was
    /// selected.
    Progress(u64),
    /// Everything that was published before this mark was set was delivered or dropped. For those
    /// who set marks only.
    Mark(u64),
}

/// Events of one entry of the log, as one subscriber gets them.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The CPU.
    pub cpu: u32,
    /// Where their entry in the log begins.
    pub sequence: u64,
    /// How many events that entry has.
    pub log_events: u64,
    /// How many of them are delivered.
    pub events: u64,
    /// Time stamps of the first and the last of the entry, in nanoseconds.
    pub span: Span,
    /// Wall clock minus trace clock, in nanoseconds.
    pub wall_offset_ns: i64,
    /// Whose they are.
    pub origins: Arc<[Arc<Origin>]>,
    /// The events, in the form that the subscriber asked for.
    pub content: Content,
}

/// Events in one of their forms, shared by all who want the same.
#[derive(Clone, Debug)]
pub enum Content {
    /// A serialised `StreamEventsResponse`.
    Message(Bytes),
    /// Columns, for those who make something else of the events.
    Columns(Arc<ColumnBatch>),
}

/// In which form a subscriber wants its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// [`Content::Message`].
    #[default]
    Message,
    /// [`Content::Columns`], with all fields: a projection is left to whoever reads them.
    Columns,
}

impl Delivery {
    /// The message; empty if the subscriber asked for columns.
    pub const fn message(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match &self.content {
            Content::Message(message) => message,
            Content::Columns(_) => &NONE,
        }
    }

    /// Bytes of memory that the events take, more or less.
    pub fn bytes(&self) -> u64 {
        match &self.content {
            Content::Message(message) => message.len() as u64,
            Content::Columns(batch) => batch.bytes() as u64,
        }
    }
}
