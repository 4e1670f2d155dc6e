//! A chunk: the part of the log that an exporter sends in one step.

use kprobed_audit::{ExportedEntry, Head};

use super::account::Walked;
use kprobed_trace::pipeline::{Delivery, Loss};
use kprobed_trace::spool::Cursor;

/// One item of a chunk.
#[derive(Debug)]
pub enum ChunkItem {
    /// The following items are of another run of the daemon, with new schema numbers.
    Epoch {
        /// The cursor at which it begins.
        cursor: Cursor,
        /// Whether an unknown number of events may be missing before it.
        may_miss: bool,
    },
    /// Events.
    Events(Delivery),
    /// A gap.
    Loss(Loss),
    /// Everything before this time was in this chunk or in those before it, in nanoseconds of the
    /// trace clock. Only for an exporter that reads by time
    /// ([`Policy::order`](super::Policy::order)).
    Watermark(u64),
}

/// A part of the log, as one exporter sees it.
#[derive(Debug, Default)]
pub struct Chunk {
    /// In the order of the log.
    pub items: Vec<ChunkItem>,
    /// The cursor after the chunk is acknowledged.
    pub end: Option<Cursor>,
    /// The part of the log that it covers.
    pub walked: Walked,
    /// Bytes of the messages in it.
    pub bytes: usize,
    /// The head of the audit log when the chunk was made. Absent if none is known to be on the disk.
    pub audit_head: Option<Head>,
    /// Whether the receiver does not have this head yet, and is to keep the chunk for its sake.
    pub reports_head: bool,
    /// Entries of the audit log, in their order. They are no events: the account has none of them.
    pub audit_entries: Vec<ExportedEntry>,
    /// The last entry that the receiver has with this chunk. Absent if entries are not exported.
    pub audit_sent: Option<Head>,
}

impl Chunk {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.audit_entries.is_empty() && !self.reports_head
    }

    /// Whether it says only that nothing happened.
    pub fn only_marks(&self) -> bool {
        self.walked.places == 0
            && self.audit_entries.is_empty()
            && self.items.iter().all(|item| matches!(item, ChunkItem::Watermark(_)))
    }
}
