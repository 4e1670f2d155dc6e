//! Spool writer: appends entries, syncs them, and removes expired segments.
//!
//! Owns which schemas a segment still needs, which refused events must still be reported, and when
//! to sync and to begin another segment. An entry costs one copy and one checksum. Only the writing
//! thread ever waits for the disk, and a reader while a piece is written. Never waits for a reader.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::files::ENDED;
use super::record::{HEAD_BYTES, MAX_PAYLOAD_BYTES, Record, RecordKind};
use super::segment::{END_BYTES, HEADER_BYTES, SegmentId};
use super::state::{Shared, State};
use super::tail::Tail;
use super::{AppendError, EntryKind, SpoolEntry, SpoolError, SpoolStats, lists};

/// The writer closes a segment once it is as old as this part of the maximum age, so that no event
/// is kept much longer than that age.
const PARTS_OF_AGE: u32 = 16;

/// How long the writer waits after a disk error before it tries again, at first and at most: the
/// time doubles with each error.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Bytes of the record that reports events that were not stored.
const NOT_STORED_BYTES: u64 = HEAD_BYTES + 8;

/// The writing end of the spool. There is only one. If it is dropped without
/// [`SpoolWriter::close`], the run has not ended in order.
#[derive(Debug)]
pub struct SpoolWriter {
    shared: Arc<Shared>,
    /// Schemas of this run, each with the number of its owner.
    schemas: HashMap<u32, (u64, Bytes)>,
    /// Schemas that the present segment already has.
    in_segment: HashSet<u32>,
    /// Number of the first event after those that were refused.
    seen: u64,
    /// Whether an entry, even one without events, was refused since the last one was stored.
    refused: bool,
    /// The last time at which the writer synced, or had nothing to sync.
    last_sync: Instant,
    /// The last segment whose name has reached the disk.
    named: Option<SegmentId>,
    /// After an error: when the writer tries again.
    rests_until: Option<Instant>,
    /// How long it waits after the next error.
    rest: Duration,
}

impl SpoolWriter {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            schemas: HashMap::new(),
            in_segment: HashSet::new(),
            seen: 0,
            refused: false,
            last_sync: Instant::now(),
            named: None,
            rests_until: None,
            rest: FIRST_REST,
        }
    }

    /// Appends an entry. `schemas` are those needed to read it, which must have been appended
    /// before; the writer keeps a schema in memory, and writes it to a segment when an entry names
    /// it.
    ///
    /// If the entry does not begin with the event after the last one, the events between count as
    /// not stored.
    ///
    /// # Errors
    /// [`AppendError`] if the entry is not stored. Readers get a report of that as soon as an entry
    /// can be stored again.
    pub fn append(&mut self, entry: &SpoolEntry, schemas: &[u32]) -> Result<(), AppendError> {
        let shared = Arc::clone(&self.shared);
        let put = self.put(&shared, &mut shared.lock(), entry, schemas);
        match put {
            Ok(None) => Ok(()),
            Ok(Some((id, file))) => {
                // The entry is stored, in the segment after the one that could not be synced; the
                // statistics have the error.
                drop(self.sync_file(id, &file));
                Ok(())
            }
            Err(error) => {
                if !matches!(error, AppendError::OutOfOrder { .. }) {
                    self.seen = self.seen.max(entry.end().unwrap_or(entry.sequence));
                    self.refused = true;
                }
                Err(error)
            }
        }
    }

    /// Appends an entry, and returns the segment that was closed to make room for it.
    fn put(
        &mut self,
        shared: &Shared,
        state: &mut State,
        entry: &SpoolEntry,
        schemas: &[u32],
    ) -> Result<Option<(SegmentId, Arc<File>)>, AppendError> {
        let room = shared.options.segment_bytes.saturating_sub(HEADER_BYTES + END_BYTES);
        let record = Record::of(entry);
        let room_for_payload = room.min(u64::from(MAX_PAYLOAD_BYTES));
        if record.payload.len() as u64 > room_for_payload {
            return Err(AppendError::TooLarge { bytes: record.bytes(), limit: room_for_payload });
        }
        if entry.kind == EntryKind::Schema {
            self.define(entry);
            return Ok(None);
        }
        let next = state.now.sequence;
        if entry.sequence < next || entry.end().is_none() {
            return Err(AppendError::OutOfOrder { expected: next, found: entry.sequence });
        }
        if let Some(why) = &state.failing {
            return Err(AppendError::Failing(why.clone()));
        }
        let gap = (self.refused || entry.sequence > next).then(|| (entry.sequence - next).to_le_bytes());
        let own = record.bytes() + if gap.is_some() { NOT_STORED_BYTES } else { 0 };
        // A new segment needs all schemas of the entry, the present one only those that it does not
        // have.
        let all = own + self.schema_bytes(schemas, false)?;
        if all > room {
            return Err(AppendError::TooLarge { bytes: all, limit: room });
        }
        let more = own + self.schema_bytes(schemas, true)?;
        let used = state.tail.as_ref().map(|tail| tail.facts.bytes - HEADER_BYTES);
        let mut closed = None;
        if used.is_none_or(|used| used + more > room) {
            let failing = |error: SpoolError| AppendError::Failing(error.to_string());
            closed = state.close_tail(&shared.files, false).map_err(failing)?;
            self.in_segment.clear();
            state.begin(shared, record.first_wall_ns()).map_err(failing)?;
        }
        if let Some(gap) = &gap {
            let not_stored =
                Record { kind: RecordKind::NotStored, sequence: next, payload: gap, ..before(&record) };
            push(state, &not_stored)?;
        }
        for key in schemas {
            if let Some((owner, payload)) = self.schemas.get(key)
                && self.in_segment.insert(*key)
            {
                let kind = RecordKind::Entry(EntryKind::Schema);
                push(state, &Record { kind, key: *key, first_ns: *owner, payload, ..before(&record) })?;
            }
        }
        push(state, &record)?;
        self.seen = state.now.sequence;
        self.refused = false;
        if state.tail.as_ref().is_some_and(Tail::is_due) {
            // If this fails, the entry stays in memory, and `tick` writes it.
            drop(state.flush(&shared.files));
        }
        Ok(closed)
    }

    /// Keeps a schema. A schema that replaces another one is written again.
    fn define(&mut self, schema: &SpoolEntry) {
        let defined = (schema.first_ns, schema.payload.clone());
        if self.schemas.get(&schema.key) != Some(&defined) {
            self.schemas.insert(schema.key, defined);
            self.in_segment.remove(&schema.key);
        }
    }

    /// Bytes of the records of schemas: of all, or of those that are not in the present segment.
    fn schema_bytes(&self, keys: &[u32], only_missing: bool) -> Result<u64, AppendError> {
        let bytes = |key: &u32| {
            let (_, payload) = self.schemas.get(key).ok_or(AppendError::UnknownSchema(*key))?;
            let is_there = only_missing && self.in_segment.contains(key);
            Ok(if is_there { 0 } else { HEAD_BYTES + payload.len() as u64 })
        };
        keys.iter().map(bytes).sum()
    }

    /// Writes the entries in memory to the file. They may not reach the disk until
    /// [`SpoolWriter::sync`].
    ///
    /// # Errors
    /// [`SpoolError::Io`]: the writer stores nothing more until [`SpoolWriter::tick`] tries again.
    pub fn flush(&mut self) -> Result<(), SpoolError> {
        self.shared.lock().flush(&self.shared.files)
    }

    /// Writes and syncs all entries, so that they reach the disk.
    ///
    /// # Errors
    /// [`SpoolError::Io`].
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        let mut state = self.shared.lock();
        let flushed = state.flush(&self.shared.files);
        let unsynced = state.tail.as_mut().and_then(|tail| Some((tail.facts.id(), tail.take_unsynced()?)));
        // A sync may take long: readers do not wait for it.
        drop(state);
        self.last_sync = Instant::now();
        let synced = unsynced.map_or(Ok(()), |(id, file)| self.sync_file(id, &file));
        flushed.and(synced)
    }

    fn sync_file(&mut self, id: SegmentId, file: &File) -> Result<(), SpoolError> {
        let files = &self.shared.files;
        if let Err(error) = file.sync_data() {
            return Err(self.shared.lock().note_unsynced(files, id, error));
        }
        if self.named != Some(id) {
            files.sync().inspect_err(|error| self.shared.lock().note(error))?;
            self.named = Some(id);
        }
        Ok(())
    }

    /// Does what is due: repeats a failed write, syncs, closes an old segment, and removes those
    /// that are too old. After an error nothing is due for a while. `wall_ns` is the time in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// [`SpoolError::Io`].
    pub fn tick(&mut self, now: Instant, wall_ns: u64) -> Result<(), SpoolError> {
        if self.rests_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let outcome = self.do_what_is_due(now, wall_ns);
        if outcome.is_ok() {
            (self.rests_until, self.rest) = (None, FIRST_REST);
        } else {
            self.rests_until = Some(now + self.rest);
            self.rest = (2 * self.rest).min(LONGEST_REST);
        }
        outcome
    }

    fn do_what_is_due(&mut self, now: Instant, wall_ns: u64) -> Result<(), SpoolError> {
        let shared = Arc::clone(&self.shared);
        let max_age_ns = nanos(shared.options.max_age);
        let mut state = shared.lock();
        if state.failing.take().is_some() {
            if state.tail.is_some() {
                state.flush(&shared.files)?;
            } else {
                // The failed step was to begin a segment.
                self.in_segment.clear();
                state.begin(&shared, wall_ns)?;
            }
            // What is missing stays a number of events.
            state.last_error = None;
        }
        let is_old = |created: u64| wall_ns.saturating_sub(created) > max_age_ns / u64::from(PARTS_OF_AGE);
        let mut closed = Ok(None);
        if state.tail.as_ref().is_some_and(|tail| is_old(tail.facts.header.created_wall_ns)) {
            closed = state.close_tail(&shared.files, false);
            self.in_segment.clear();
        }
        state.expire_before(&shared.files, wall_ns.saturating_sub(max_age_ns));
        drop(state);
        if let Some((id, file)) = closed? {
            self.sync_file(id, &file)?;
        }
        if now.saturating_duration_since(self.last_sync) >= shared.options.sync_interval {
            self.sync()?;
        }
        Ok(())
    }

    /// The time until [`SpoolWriter::tick`] has something to do. `None`: nothing, until an entry is
    /// appended.
    pub fn next_tick(&self, now: Instant, wall_ns: u64) -> Option<Duration> {
        let state = self.shared.lock();
        let options = &self.shared.options;
        let dirty = state.failing.is_some() || state.tail.as_ref().is_some_and(Tail::is_dirty);
        let sync = dirty
            .then(|| options.sync_interval.saturating_sub(now.saturating_duration_since(self.last_sync)));
        let until = |then_ns: u64| Duration::from_nanos(then_ns.saturating_sub(wall_ns).saturating_add(1));
        let max_age_ns = nanos(options.max_age);
        let close = state.tail.as_ref().map(|tail| tail.facts.header.created_wall_ns);
        let close = close.map(|ns| until(ns.saturating_add(max_age_ns / u64::from(PARTS_OF_AGE))));
        let tail = state.tail.as_ref().map(|tail| tail.facts.id());
        let oldest = state.index.segments.values().next().filter(|oldest| Some(oldest.id()) != tail);
        let expire = oldest.map(|oldest| until(oldest.last_wall_ns.saturating_add(max_age_ns)));
        let due = [sync, close, expire].into_iter().flatten().min()?;
        let rest = self.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        Some(due.max(rest))
    }

    /// Statistics.
    pub fn stats(&self) -> SpoolStats {
        let mut stats = SpoolStats::of(&self.shared);
        stats.not_stored_events += self.seen.saturating_sub(self.shared.lock().now.sequence);
        stats
    }

    /// Notes that the log of this run goes up to this number: events after the last entry count as not stored. Call
    /// it before [`SpoolWriter::close`], since no entry follows that would show the gap.
    pub fn note_log_end(&mut self, sequence: u64) {
        if sequence > self.seen {
            self.seen = sequence;
            self.refused = true;
        }
    }

    /// Ends the run in order: it writes all entries, and marks the run as complete, so that later
    /// readers know of every missing event at its end.
    ///
    /// # Errors
    /// [`SpoolError::Io`]: the run has not ended in order.
    pub fn close(mut self) -> Result<(), SpoolError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        state.failing = None;
        state.show_tail();
        let next = state.now.sequence;
        let last_wall_ns = state.index.segments.values().next_back().map_or(0, |facts| facts.last_wall_ns);
        let run = state.now.epoch;
        let has_entries = state.index.of_epoch(run).next().is_some();
        if state.tail.is_none() && (has_entries || self.refused) {
            state.begin(&shared, last_wall_ns)?;
        }
        let gap = self.refused.then(|| self.seen.saturating_sub(next).to_le_bytes());
        if let Some(payload) = &gap {
            let not_stored = Record::without_events(RecordKind::NotStored, next, last_wall_ns, payload);
            push(&mut state, &not_stored).map_err(|error| {
                SpoolError::io("write", shared.files.path())(std::io::Error::other(error))
            })?;
        }
        let closed = state.close_tail(&shared.files, true)?;
        let events = state.now.sequence;
        drop(state);
        let Some((id, file)) = closed else { return Ok(()) };
        self.sync_file(id, &file)?;
        let mut state = shared.lock();
        state.index.ended.insert(run, events);
        // Without it, a reader takes an end that is damaged later for one that was never written.
        if let Err(error) = shared.files.replace_list(ENDED, &lists::encode_ended(&state.index)) {
            state.note(&error);
        }
        Ok(())
    }
}

/// The fields of a record without events that precedes this one.
fn before<'a>(record: &Record<'a>) -> Record<'a> {
    Record { events: 0, last_ns: record.first_ns, ..*record }
}

/// Adds a record to the segment that is written to.
fn push(state: &mut State, record: &Record<'_>) -> Result<(), AppendError> {
    let Some(tail) = &mut state.tail else {
        return Err(AppendError::Failing("there is no segment".to_owned()));
    };
    tail.push(record).map_err(|broken| AppendError::Failing(broken.to_string()))?;
    let next = tail.facts.next_sequence;
    if record.kind == RecordKind::NotStored {
        state.not_stored_events += next - state.now.sequence;
    }
    state.now.sequence = next;
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
