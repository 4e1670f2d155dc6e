//! What is sent at once.

use super::account::Walked;
use kprobed_trace::pipeline::{Delivery, Loss};
use kprobed_trace::spool::Cursor;

/// One thing in a chunk.
#[derive(Debug)]
pub enum ChunkItem {
    /// What follows is of another run of the daemon, and the numbers of schemas are given out anew.
    Epoch {
        /// Where it begins.
        cursor: Cursor,
        /// Whether events may be missing before it of which nobody knows.
        may_miss: bool,
    },
    /// Events.
    Events(Delivery),
    /// A gap.
    Loss(Loss),
    /// Everything before this time was in this chunk or in those before it, in nanoseconds of the trace clock. Only for an exporter that
    /// reads by time ([`Policy::order`](super::Policy::order)).
    Watermark(u64),
}

/// A part of the log, as one exporter sees it.
#[derive(Debug, Default)]
pub struct Chunk {
    /// In the order of the log.
    pub items: Vec<ChunkItem>,
    /// Where the exporter goes on when the other side has it all.
    pub end: Option<Cursor>,
    /// What it stands for.
    pub walked: Walked,
    /// Bytes of the messages in it.
    pub bytes: usize,
}

impl Chunk {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
