//! Tail of the spool: the segment that is written to.
//!
//! Owns its file and the records that are not written to it yet. It collects records in memory and
//! writes them in large pieces, at offsets that it counts: a write that fails half-way is repeated
//! at the same offset. Never decides when to begin another segment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::Damage;
use super::record::Record;
use super::segment::{Header, SegmentFacts};

/// Bytes that are collected before they are written.
const PIECE_BYTES: usize = 256 << 10;

/// The segment that is written to.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<File>,
    /// The facts, including records that are not written yet.
    pub(super) facts: SegmentFacts,
    /// Records that are not written yet.
    pending: Vec<u8>,
    /// Number of the first event that is not written yet.
    pub(super) written_sequence: u64,
    /// Events that are written.
    written_events: u64,
    /// Whether bytes were written that may not have reached the disk.
    unsynced: bool,
}

impl Tail {
    /// Writes the header into an empty file.
    pub(super) fn begin(file: Arc<File>, header: Header) -> io::Result<Self> {
        let (bytes, seed) = header.encode();
        file.write_all_at(&bytes, 0)?;
        let facts = SegmentFacts::new(header, seed);
        let written_sequence = header.first_sequence;
        Ok(Self { file, facts, pending: Vec::new(), written_sequence, written_events: 0, unsynced: true })
    }

    /// Bytes that are in the file.
    pub(super) fn written_bytes(&self) -> u64 {
        self.facts.bytes - self.unwritten_bytes()
    }

    /// Events that are in memory only.
    pub(super) fn unwritten_events(&self) -> u64 {
        self.facts.events - self.written_events
    }

    /// Bytes that are in memory only.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Adds a record in memory. Adds nothing if the record cannot follow here, which is a mistake
    /// of the caller.
    pub(super) fn push(&mut self, record: &Record<'_>) -> Result<(), Damage> {
        self.facts.add(record)?;
        record.encode(self.facts.seed, &mut self.pending);
        Ok(())
    }

    /// Whether enough is in memory to be worth a write.
    pub(super) fn is_due(&self) -> bool {
        self.pending.len() >= PIECE_BYTES
    }

    /// Writes the records in memory. After an error all of them are still in memory.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.pending, self.written_bytes())?;
        self.unsynced = true;
        self.pending.clear();
        self.pending.shrink_to(2 * PIECE_BYTES);
        self.written_sequence = self.facts.next_sequence;
        self.written_events = self.facts.events;
        Ok(())
    }

    /// Writes the last record after those that were flushed. After an error the segment has no last
    /// record: it is still good, and is read through when the spool is opened again.
    pub(super) fn close(mut self, ends_epoch: bool) -> (SegmentFacts, Arc<File>, io::Result<()>) {
        let open = self.facts;
        let sums = open.sums(ends_epoch);
        // The record is valid by construction: it has the sums of these very facts.
        let closed = self.push(&open.end_record(&sums)).map_err(io::Error::other).and_then(|()| self.flush());
        let facts = if closed.is_ok() { self.facts } else { open };
        (facts, self.file, closed)
    }

    /// The file, if it must be synced; from now on it counts as synced.
    pub(super) fn take_unsynced(&mut self) -> Option<Arc<File>> {
        std::mem::take(&mut self.unsynced).then(|| Arc::clone(&self.file))
    }

    /// Whether any record is in memory, or may not have reached the disk.
    pub(super) fn is_dirty(&self) -> bool {
        self.unsynced || !self.pending.is_empty()
    }

    /// Notes that syncing has failed.
    pub(super) fn set_unsynced(&mut self) {
        self.unsynced = true;
    }
}
