//! A chunk: the part of the log that an exporter sends in one step.

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
}

impl Chunk {
    /// Whether the chunk has no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
