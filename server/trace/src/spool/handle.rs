//! The spool as a whole: opening it, reading it, how it stands.
//!
//! Owns the way in. The writing end is given once, readers as often as somebody asks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::recover::recover;
use super::start;
use super::state::{Limit, Shared};
use super::{BootId, Cursor, Entry, Position, Recovery, SpoolError, SpoolReader, SpoolWriter};

/// A segment is this part of the whole.
const PARTS: u64 = 16;

/// A smaller segment than this is not worth a file.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;

/// What is kept, where, and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Directory for the files. It is made, and closed to everybody else.
    pub directory: PathBuf,
    /// Bytes that all files together may have.
    pub max_bytes: u64,
    /// Bytes that a segment may have, which is what is removed at once. At most `max_bytes`.
    pub segment_bytes: u64,
    /// Events that are older are removed.
    pub max_age: Duration,
    /// How long an event may be in memory only.
    pub sync_interval: Duration,
}

impl SpoolOptions {
    /// With segments of a sixteenth of the whole, or of 1 MiB where that is more.
    pub fn new(directory: &Path, max_bytes: u64, max_age: Duration, sync_interval: Duration) -> Self {
        let segment_bytes = (max_bytes / PARTS).max(MIN_SEGMENT_BYTES).min(max_bytes);
        Self { directory: directory.to_owned(), max_bytes, segment_bytes, max_age, sync_interval }
    }
}

/// How the spool stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolStats {
    /// Bytes in the files of all segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Events in them.
    pub events: u64,
    /// Events that were put in and are in memory only. A reader cannot have them yet. While the
    /// disk fails, this stays so.
    pub unwritten_events: u64,
    /// The place of the oldest event, and its time in nanoseconds since 1970. Absent when there is
    /// nothing.
    pub oldest: Option<(Cursor, u64)>,
    /// The place behind the newest event that was put in. It is of the present run.
    pub end: Cursor,
    /// Events that have gone since the directory was made.
    pub expired_events: u64,
    /// Events of this run that were not stored.
    pub not_stored_events: u64,
    /// How often something went wrong in this run.
    pub errors: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Whether nothing is stored at present, for the last error.
    pub failing: bool,
}

/// The reading end of the spool.
#[derive(Clone, Debug)]
pub struct Spool {
    pub(super) shared: Arc<Shared>,
}

impl Spool {
    /// Opens or makes a spool, and begins a run of the daemon in it. `wall_ns` is the time in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// [`SpoolError::InUse`], or [`SpoolError::Io`] when the directory cannot be used.
    pub fn open(
        options: SpoolOptions,
        boot_id: BootId,
        wall_ns: u64,
    ) -> Result<(Self, SpoolWriter, Recovery), SpoolError> {
        let files = Files::open(&options.directory)?;
        let (index, recovery) = recover(&files)?;
        let there = index.segments.keys().next_back().map(|id| id.epoch);
        let gone = index.expired.epochs.last().map(|gone| gone.epoch);
        // The clock may have been set back since the last run.
        let epoch = there.max(gone).map_or(wall_ns, |last| wall_ns.max(last.saturating_add(1)));
        let shared = Arc::new(Shared::new(files, options, index, boot_id, epoch));
        let mut state = shared.lock();
        let max_age_ns = u64::try_from(shared.options.max_age.as_nanos()).unwrap_or(u64::MAX);
        state.expire_before(&shared.files, wall_ns.saturating_sub(max_age_ns));
        state.expire(&shared.files, |index| index.bytes() > shared.options.max_bytes);
        drop(state);
        Ok((Self { shared: Arc::clone(&shared) }, SpoolWriter::new(shared), recovery))
    }

    /// A reader of everything from a place on that was put in until now.
    ///
    /// # Errors
    /// [`SpoolError::ForeignCursor`]; [`SpoolError::Io`] when the place has to be looked for and a
    /// segment cannot be read.
    pub fn reader(&self, from: Position) -> Result<SpoolReader, SpoolError> {
        let shared = &self.shared;
        let limit = shared.limit();
        let start = match from {
            Position::Beginning => start::beginning(&shared.lock()),
            Position::Cursor(cursor) => start::cursor(&shared.lock(), cursor)?,
            Position::SinceWall(wall_ns) => start::since_wall(&shared.lock(), &limit, wall_ns),
            Position::LastEvents(0) => start::end(&shared.lock(), &limit),
            Position::LastEvents(events) => {
                let found = start::last(shared, &limit, events, |record| u64::from(record.events))?;
                found.unwrap_or_else(|| start::beginning(&shared.lock()))
            }
        };
        Ok(SpoolReader::new(Arc::clone(shared), limit, start))
    }

    /// A reader that begins so far back that the entries from there on have `wanted` of what
    /// `count` counts. Of each segment, `count` is shown the schemas first, which have to count 0,
    /// then the entries with events from the last one back. When there is not so much, the reader
    /// begins with the oldest there is.
    ///
    /// # Errors
    /// [`SpoolError::Io`] when a segment cannot be read.
    pub(crate) fn reader_of_last(
        &self,
        wanted: u64,
        mut count: impl FnMut(&Entry) -> u64,
    ) -> Result<SpoolReader, SpoolError> {
        let shared = &self.shared;
        let limit = shared.limit();
        let start = if wanted == 0 {
            start::end(&shared.lock(), &limit)
        } else {
            let counted = |record: &super::Record<'_>| record.to_entry().map_or(0, |entry| count(&entry));
            let found = start::last(shared, &limit, wanted, counted)?;
            found.unwrap_or_else(|| start::beginning(&shared.lock()))
        };
        Ok(SpoolReader::new(Arc::clone(shared), limit, start))
    }

    /// Writes what is in memory, and gives the place that one can read up to now.
    pub fn limit(&self) -> Limit {
        self.shared.limit()
    }

    /// How it stands. Entries that were refused are counted as not stored once something was stored
    /// behind them; the writer's own statistics count them at once.
    pub fn stats(&self) -> SpoolStats {
        SpoolStats::of(&self.shared)
    }
}

impl SpoolStats {
    pub(super) fn of(shared: &Shared) -> Self {
        let mut state = shared.lock();
        state.show_tail();
        let segments = &state.index.segments;
        let (unwritten_events, unwritten_bytes) =
            state.tail.as_ref().map_or((0, 0), |tail| (tail.unwritten_events(), tail.unwritten_bytes()));
        let events: u64 = segments.values().map(|facts| facts.events).sum();
        Self {
            bytes: state.index.bytes() - unwritten_bytes,
            segments: segments.len() as u64,
            events: events - unwritten_events,
            unwritten_events,
            oldest: segments.values().next().map(|facts| {
                let header = facts.header;
                let sequence = header.first_sequence;
                (Cursor { boot_id: header.boot_id, epoch: header.id.epoch, sequence }, facts.first_wall_ns)
            }),
            end: state.now,
            expired_events: state.index.expired.events,
            not_stored_events: state.not_stored_events,
            errors: state.errors,
            last_error: state.last_error.clone(),
            failing: state.failing.is_some(),
        }
    }
}
