//! Spool handle: opening a spool, its readers, and its statistics.
//!
//! Owns the entry points of the module. Opening returns the one writer; a spool makes any number of
//! readers. Never decides what is stored.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::recover::recover;
use super::start;
use super::state::{Limit, Shared};
use super::{
    BootId, Cursor, HistoryStart, Record, Recovery, SpoolEntry, SpoolError, SpoolReader, SpoolWriter,
};

/// Number of segments that the limit of the spool is divided into.
const PARTS: u64 = 16;

/// A smaller segment than this is not worth a file.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;

/// Options of the spool: directory, limits, and sync interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Directory for the files. The spool creates it, with access for the daemon only.
    pub directory: PathBuf,
    /// The most bytes of all files together.
    pub max_bytes: u64,
    /// The most bytes of a segment, which is removed as a whole. At most `max_bytes`.
    pub segment_bytes: u64,
    /// Events that are older are removed.
    pub max_age: Duration,
    /// The longest time that an event is in memory only.
    pub sync_interval: Duration,
}

impl SpoolOptions {
    /// Options with segments of a sixteenth of `max_bytes`, or of 1 MiB if that is more.
    pub fn new(directory: &Path, max_bytes: u64, max_age: Duration, sync_interval: Duration) -> Self {
        let segment_bytes = (max_bytes / PARTS).max(MIN_SEGMENT_BYTES).min(max_bytes);
        Self { directory: directory.to_owned(), max_bytes, segment_bytes, max_age, sync_interval }
    }
}

/// Statistics of the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolStats {
    /// Bytes in the files of all segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Events in them.
    pub events: u64,
    /// Events that were appended and are in memory only, where no reader sees them. While the disk
    /// fails, they stay there.
    pub unwritten_events: u64,
    /// The position of the oldest event, and its time in nanoseconds since 1970. Absent if there is
    /// no event.
    pub oldest: Option<(Cursor, u64)>,
    /// The position after the newest event that was appended. It is in the present run.
    pub end: Cursor,
    /// Events that have expired since the directory was created.
    pub expired_events: u64,
    /// Events of this run that were not stored.
    pub not_stored_events: u64,
    /// Number of errors in this run.
    pub errors: u64,
    /// The last error, until events are stored again after it.
    pub last_error: Option<String>,
    /// Whether the spool stores nothing at present, because of the last error.
    pub failing: bool,
    /// What was damaged when the spool was opened, and what readers have found damaged since, a sentence for each
    /// file: events are missing there.
    pub damaged: Vec<String>,
}

/// The reading end of the spool.
#[derive(Clone, Debug)]
pub struct Spool {
    pub(super) shared: Arc<Shared>,
}

impl Spool {
    /// Opens or creates a spool, and begins a run of the daemon in it. `wall_ns` is the time in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// [`SpoolError::InUse`], or [`SpoolError::Io`] if the directory cannot be used.
    pub fn open(
        options: SpoolOptions,
        boot_id: BootId,
        wall_ns: u64,
    ) -> Result<(Self, SpoolWriter, Recovery), SpoolError> {
        let files = Files::open(&options.directory)?;
        let (index, recovery) = recover(&files)?;
        let there = index.segments.keys().next_back().map(|id| id.epoch);
        let gone = index.expired.epochs.last().map(|gone| gone.epoch);
        let aside = index.aside.keys().next_back().map(|id| id.epoch);
        // The clock may have been set back since the last run.
        let epoch = there.max(gone).max(aside).map_or(wall_ns, |last| wall_ns.max(last.saturating_add(1)));
        let now = Cursor { boot_id, epoch, sequence: 0 };
        let shared = Arc::new(Shared::new(files, options, index, now, recovery.damaged.clone()));
        let mut state = shared.lock();
        let max_age_ns = u64::try_from(shared.options.max_age.as_nanos()).unwrap_or(u64::MAX);
        state.expire_before(&shared.files, wall_ns.saturating_sub(max_age_ns));
        state.expire(&shared.files, |index| index.bytes() > shared.options.max_bytes);
        drop(state);
        Ok((Self { shared: Arc::clone(&shared) }, SpoolWriter::new(shared), recovery))
    }

    /// A reader of everything from a position on that was appended until now.
    ///
    /// [`HistoryStart::Last`] begins so far back that the entries from there on count as many in total, by `count`. For
    /// each segment, `count` gets the schemas first, for which it must return 0, then the entries with events, from the
    /// last one back, and between them schemas that were replaced there. If all entries count less, the reader begins
    /// with the oldest one.
    ///
    /// # Errors
    /// [`SpoolError::ForeignCursor`]; [`SpoolError::Io`] if the search for the position cannot read
    /// a segment.
    pub fn reader(
        &self,
        from: HistoryStart,
        mut count: impl FnMut(&SpoolEntry) -> u64,
    ) -> Result<SpoolReader, SpoolError> {
        let shared = &self.shared;
        let limit = shared.limit();
        let start = match from {
            HistoryStart::Oldest => start::beginning(&shared.lock()),
            HistoryStart::Cursor(cursor) => start::cursor(&shared.lock(), cursor)?,
            HistoryStart::SinceWall(wall_ns) => start::since_wall(&shared.lock(), &limit, wall_ns),
            HistoryStart::Last(0) => start::end(&shared.lock(), &limit),
            HistoryStart::Last(wanted) => {
                let counted = |record: &Record<'_>| record.to_entry().map_or(0, |entry| count(&entry));
                let found = start::last(shared, &limit, wanted, counted)?;
                found.unwrap_or_else(|| start::beginning(&shared.lock()))
            }
        };
        Ok(SpoolReader::new(Arc::clone(shared), limit, start))
    }

    /// The highest number of an owner of the schemas that are stored; 0 if there is none.
    pub fn highest_owner(&self) -> u64 {
        let mut state = self.shared.lock();
        state.show_tail();
        state.index.segments.values().map(|facts| facts.highest_owner).max().unwrap_or_default()
    }

    /// Writes the entries in memory, and returns the position up to which readers can read now.
    pub fn limit(&self) -> Limit {
        self.shared.limit()
    }

    /// Statistics. Refused entries count as not stored once a later entry was stored; the writer's
    /// own statistics count them at once.
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
            oldest: segments.values().next().map(|facts| (facts.begin(), facts.first_wall_ns)),
            end: state.now,
            expired_events: state.index.expired.events,
            not_stored_events: state.not_stored_events,
            errors: state.errors,
            last_error: state.last_error.clone(),
            failing: state.failing.is_some(),
            damaged: shared.damaged.iter().chain(state.found_damaged.values()).cloned().collect(),
        }
    }
}
