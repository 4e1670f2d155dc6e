//! State of the spool, which the writer and the readers share.
//!
//! Owns the steps from one state of the spool to the next: a segment is begun, closed, or removed.
//! A step that fails leaves the state as it was, and its error is kept. Never decides when a step
//! is due: the writer does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::files::{EXPIRED, Files};
use super::index::Index;
use super::segment::{Header, SegmentId};
use super::tail::Tail;
use super::{Cursor, Damage, SpoolError, SpoolOptions};

/// The spool.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) files: Files,
    pub(super) options: SpoolOptions,
    /// What was damaged when the spool was opened.
    pub(super) damaged: Vec<String>,
    state: Mutex<State>,
}

/// State that the lock protects.
#[derive(Debug)]
pub(super) struct State {
    /// The boot and the run of the daemon, and the number of events that were appended or given up.
    pub(super) now: Cursor,
    /// All segments. The facts of the one that is written to are those of the last
    /// [`show_tail`](Self::show_tail).
    pub(super) index: Index,
    /// The segment that is written to. None before the first entry, and after a segment was closed
    /// for its age.
    pub(super) tail: Option<Tail>,
    /// Number of the next segment.
    next_number: u64,
    /// Why nothing is stored at present.
    pub(super) failing: Option<String>,
    /// Events of this run that were not stored, and are reported to readers.
    pub(super) not_stored_events: u64,
    /// The last error, and the number of errors.
    pub(super) last_error: Option<String>,
    pub(super) errors: u64,
    /// What readers have found damaged, a sentence for each segment that is still there.
    pub(super) found_damaged: BTreeMap<SegmentId, String>,
}

/// Limit of a reader: what was stored at one time.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The last segment, and how many bytes of it. None if there is no segment.
    pub(super) segment: Option<(SegmentId, u64)>,
    /// The position after the last event.
    pub(super) cursor: Cursor,
}

impl Shared {
    pub(super) fn new(
        files: Files,
        options: SpoolOptions,
        index: Index,
        now: Cursor,
        damaged: Vec<String>,
    ) -> Self {
        let state = State {
            now,
            index,
            tail: None,
            next_number: 0,
            failing: None,
            not_stored_events: 0,
            last_error: None,
            errors: 0,
            found_damaged: BTreeMap::new(),
        };
        Self { files, options, damaged, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the entries in memory, and returns how far readers can read now.
    pub(super) fn limit(&self) -> Limit {
        let mut state = self.lock();
        // If this fails, the error is kept and the writer tries again; readers still read what was
        // written before.
        if state.failing.is_none() {
            drop(state.flush(&self.files));
        }
        state.show_tail();
        let now = state.now;
        match &state.tail {
            Some(tail) => Limit {
                segment: Some((tail.facts.id(), tail.written_bytes())),
                cursor: Cursor { sequence: tail.written_sequence, ..now },
            },
            None => Limit {
                segment: state.index.segments.last_key_value().map(|(id, facts)| (*id, facts.bytes)),
                cursor: now,
            },
        }
    }
}

impl State {
    /// Updates the index with the facts of the segment that is written to.
    pub(super) fn show_tail(&mut self) {
        if let Some(tail) = &self.tail {
            self.index.segments.insert(tail.facts.id(), tail.facts);
        }
    }

    /// Keeps an error and counts it.
    pub(super) fn note(&mut self, error: &SpoolError) {
        self.errors += 1;
        self.last_error = Some(error.to_string());
    }

    /// Keeps that a reader could not read a segment to its end.
    pub(super) fn note_damage(&mut self, id: SegmentId, damage: &Damage) {
        if self.index.segments.contains_key(&id) {
            let sentence = || format!("{id}: it cannot be read to its end: {damage}");
            self.found_damaged.entry(id).or_insert_with(sentence);
        }
    }

    /// Stops storing until the writer tries again.
    fn fail(&mut self, error: SpoolError) -> SpoolError {
        self.note(&error);
        self.failing = self.last_error.clone();
        error
    }

    /// Writes the entries in memory to the file.
    pub(super) fn flush(&mut self, files: &Files) -> Result<(), SpoolError> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        let path = files.segment(tail.facts.id());
        let flushed = tail.flush().map_err(SpoolError::io("write", &path));
        flushed.map_err(|error| self.fail(error))
    }

    /// Begins a segment, after the oldest ones have made room for it.
    pub(super) fn begin(&mut self, shared: &Shared, created_wall_ns: u64) -> Result<(), SpoolError> {
        let SpoolOptions { max_bytes, segment_bytes, .. } = shared.options;
        self.expire(&shared.files, |index| index.bytes().saturating_add(segment_bytes) > max_bytes);
        let id = SegmentId { epoch: self.now.epoch, number: self.next_number };
        let header =
            Header { boot_id: self.now.boot_id, id, first_sequence: self.now.sequence, created_wall_ns };
        let begin = || {
            let file = shared.files.create(id)?;
            let begun = Tail::begin(file, header);
            begun.map_err(SpoolError::io("write", &shared.files.segment(id)))
        };
        match begin() {
            Ok(tail) => {
                self.next_number += 1;
                self.tail = Some(tail);
                self.show_tail();
                Ok(())
            }
            Err(error) => {
                // The file, if it was created, has no entry.
                drop(shared.files.remove(id));
                Err(self.fail(error))
            }
        }
    }

    /// Closes the segment that is written to, and returns its file, which must still be synced. If
    /// the entries in memory cannot be written, the segment stays open.
    pub(super) fn close_tail(
        &mut self,
        files: &Files,
        ends_epoch: bool,
    ) -> Result<Option<(SegmentId, Arc<File>)>, SpoolError> {
        self.flush(files)?;
        let Some(tail) = self.tail.take() else { return Ok(None) };
        let (facts, file, closed) = tail.close(ends_epoch);
        self.index.segments.insert(facts.id(), facts);
        if let Err(error) = closed.map_err(SpoolError::io("write", &files.segment(facts.id()))) {
            self.note(&error);
        }
        Ok(Some((facts.id(), file)))
    }

    /// Removes the oldest segments as long as there are too many.
    pub(super) fn expire(&mut self, files: &Files, too_many: impl Fn(&Index) -> bool) {
        let tail = self.tail.as_ref().map(|tail| tail.facts.id());
        let mut gone = Vec::new();
        while self.index.segments.keys().next().is_some_and(|oldest| Some(*oldest) != tail)
            && too_many(&self.index)
        {
            gone.extend(self.index.expire_oldest());
        }
        if gone.is_empty() {
            return;
        }
        // The list is written first: an interrupted removal is completed when the spool is opened
        // again.
        if let Err(error) = files.replace_list(EXPIRED, &self.index.expired.encode()) {
            self.note(&error);
        }
        for id in gone {
            self.found_damaged.remove(&id);
            if let Err(error) = files.remove(id) {
                self.note(&error);
            }
        }
    }

    /// Removes the segments whose last event is older than this, in nanoseconds since 1970.
    pub(super) fn expire_before(&mut self, files: &Files, wall_ns: u64) {
        self.expire(files, |index| {
            index.segments.values().next().is_some_and(|oldest| oldest.last_wall_ns < wall_ns)
        });
    }

    /// Keeps the error of a file that could not be synced.
    pub(super) fn note_unsynced(&mut self, files: &Files, id: SegmentId, source: io::Error) -> SpoolError {
        let error = SpoolError::io("sync", &files.segment(id))(source);
        self.note(&error);
        if let Some(tail) = self.tail.as_mut().filter(|tail| tail.facts.id() == id) {
            tail.set_unsynced();
        }
        error
    }
}
