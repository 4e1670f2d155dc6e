//! The segment that is written to.
//!
//! Owns its file and what has not been written to it yet. Records are put together in memory and
//! written in large pieces, at places that are counted here: a write that fails half-way is done
//! again over what it left.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::record::Record;
use super::segment::{Header, SegmentFacts};

/// Bytes that are put together before they are written.
const PIECE_BYTES: usize = 256 << 10;

/// The segment that is written to.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<File>,
    /// With what is not written yet.
    facts: SegmentFacts,
    /// What is not written yet.
    pending: Vec<u8>,
    /// Number of the first event that is not written yet.
    written_sequence: u64,
    /// Events that are written.
    written_events: u64,
    /// Whether something was written that may not have reached the disk.
    unsynced: bool,
}

impl Tail {
    /// Writes the header into a file without anything.
    pub(super) fn begin(file: Arc<File>, header: Header) -> io::Result<Self> {
        let (bytes, seed) = header.encode();
        file.write_all_at(&bytes, 0)?;
        let facts = SegmentFacts::new(header, seed);
        let written_sequence = header.first_sequence;
        Ok(Self { file, facts, pending: Vec::new(), written_sequence, written_events: 0, unsynced: true })
    }

    /// What is known of it, with what is not written yet.
    pub(super) fn facts(&self) -> &SegmentFacts {
        &self.facts
    }

    /// Bytes that are in the file.
    pub(super) fn written_bytes(&self) -> u64 {
        self.facts.bytes - self.unwritten_bytes()
    }

    /// Number of the first event that is not in the file.
    pub(super) fn written_sequence(&self) -> u64 {
        self.written_sequence
    }

    /// Events that are in memory only.
    pub(super) fn unwritten_events(&self) -> u64 {
        self.facts.events - self.written_events
    }

    /// Bytes that are in memory only.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Adds a record in memory. Adds nothing when the record cannot stand here, which is a mistake
    /// of the caller.
    pub(super) fn push(&mut self, record: &Record<'_>) -> Result<(), super::record::BrokenRecord> {
        self.facts.add(record)?;
        record.encode(self.facts.seed, &mut self.pending);
        Ok(())
    }

    /// Whether so much is in memory that it is worth a write.
    pub(super) fn is_due(&self) -> bool {
        self.pending.len() >= PIECE_BYTES
    }

    /// Writes what is in memory. After an error all of it is still there.
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

    /// Writes the last record, behind what was flushed. After an error the segment is without one:
    /// it is as good, and read through when the spool is opened again.
    pub(super) fn close(mut self, ends_epoch: bool) -> (SegmentFacts, Arc<File>, io::Result<()>) {
        let open = self.facts;
        let sums = open.sums(ends_epoch);
        // It fits by construction: it has the sums of these very facts.
        let closed = self.push(&open.end_record(&sums)).map_err(io::Error::other).and_then(|()| self.flush());
        let facts = if closed.is_ok() { self.facts } else { open };
        (facts, self.file, closed)
    }

    /// The file, if it must be synced; from now on it has not.
    pub(super) fn take_unsynced(&mut self) -> Option<Arc<File>> {
        std::mem::take(&mut self.unsynced).then(|| Arc::clone(&self.file))
    }

    /// Whether something is in memory, or may not have reached the disk.
    pub(super) fn is_dirty(&self) -> bool {
        self.unsynced || !self.pending.is_empty()
    }

    /// Syncing has failed.
    pub(super) fn set_unsynced(&mut self) {
        self.unsynced = true;
    }
}
