//! Spool reader: reads entries in order, and reports missing events.
//!
//! Owns a position in the spool, and which runs, schemas and gaps were already returned. It reads
//! what was stored when it was made or last extended, keeps the segment open that it reads, and
//! reports missing events if one segment does not continue the previous one. Never decodes a
//! payload.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use super::error::ReadError;
use super::record::{Record, RecordKind};
use super::segment::{SegmentFacts, SegmentId};
use super::start::Start;
use super::state::{Limit, Shared};
use super::walk::Walk;
use super::{Cursor, EntryKind, Missing, MissingCause, SpoolError, SpoolItem};

/// Reads the spool from a position on.
#[derive(Debug)]
pub struct SpoolReader {
    shared: Arc<Shared>,
    limit: Limit,
    /// The position after the last entry that was returned or reported as missing.
    at: Cursor,
    /// Where to look for the next segment.
    next: Bound<SegmentId>,
    /// The segment that it reads at present.
    walk: Option<(SegmentId, Walk<Arc<File>>)>,
    /// The reader skips entries until one ends at this time, in nanoseconds since 1970.
    since_wall_ns: Option<u64>,
    /// Checksums of the schemas of this run that were returned.
    schemas: HashMap<u32, u32>,
    /// Items to return before anything else.
    items: VecDeque<SpoolItem>,
}

impl SpoolReader {
    pub(super) fn new(shared: Arc<Shared>, limit: Limit, start: Start) -> Self {
        Self {
            shared,
            limit,
            at: start.at,
            next: start.segment,
            walk: None,
            since_wall_ns: start.since_wall_ns,
            schemas: HashMap::new(),
            items: start.items.into(),
        }
    }

    /// The next item. `None` once everything was returned that was stored when the reader was made
    /// or last extended.
    ///
    /// The first item is the beginning of a run; each item belongs to the run of the last such
    /// item. The schemas that an entry names precede it, once for each run. The reader returns
    /// whole entries, even if it begins in the middle of one. It returns an entry without events at
    /// the position at which it begins: a client that has it already gets it again.
    ///
    /// # Errors
    /// [`SpoolError::Io`] if a segment cannot be read. The caller can read on: the reader then
    /// reports the events of that segment as missing.
    #[expect(clippy::should_implement_trait, reason = "it can be asked again after the end")]
    pub fn next(&mut self) -> Result<Option<SpoolItem>, SpoolError> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            let more = if self.walk.is_some() { self.step()? } else { self.advance()? };
            if !more {
                return Ok(None);
            }
        }
    }

    /// Extends the reader to everything stored until now, and returns the position that it can read
    /// up to, which is in the present run.
    pub fn extend(&mut self) -> Cursor {
        let limit = self.shared.limit();
        self.extend_to(limit)
    }

    /// Extends the reader to a later limit.
    pub(crate) fn extend_to(&mut self, limit: Limit) -> Cursor {
        self.limit = limit;
        if let Some((id, walk)) = &mut self.walk {
            let limit = match self.limit.segment {
                Some((last, bytes)) if last == *id => Some(bytes),
                // The segment was closed. If it has been removed, the walk ends at its present
                // limit.
                _ => self.shared.lock().index.segments.get(id).map(|facts| facts.bytes),
            };
            match limit {
                Some(limit) => walk.set_limit(limit),
                None => self.walk = None,
            }
        }
        self.end()
    }

    /// The position that it reads up to.
    pub fn end(&self) -> Cursor {
        self.limit.cursor
    }

    /// The position after what it has returned.
    pub fn cursor(&self) -> Cursor {
        self.at
    }

    /// Reads the next record of the segment. False at the limit.
    fn step(&mut self) -> Result<bool, SpoolError> {
        let Some((id, mut walk)) = self.walk.take() else { return Ok(true) };
        let next = walk.next().map(|next| next.map(|(_, record)| self.pass(&record)));
        match next {
            Ok(Some(item)) => {
                self.items.extend(item);
                self.walk = Some((id, walk));
                Ok(true)
            }
            // The writer may append to the last segment, unless it is of an earlier run.
            Ok(None) if self.limit.segment.is_some_and(|(last, _)| last == id) => {
                let ended = id.epoch < self.limit.cursor.epoch;
                self.walk = (!ended).then_some((id, walk));
                Ok(ended)
            }
            // The events after a break are reported as missing on the way to the next segment.
            Ok(None) => Ok(true),
            Err(ReadError::Damaged(damage)) => {
                self.shared.lock().note_damage(id, &damage);
                Ok(true)
            }
            Err(ReadError::Io(source)) => Err(SpoolError::io("read", &self.shared.files.segment(id))(source)),
        }
    }

    /// Continues with the next segment, or at the limit. False at the limit.
    fn advance(&mut self) -> Result<bool, SpoolError> {
        let shared = Arc::clone(&self.shared);
        let state = shared.lock();
        let next = self.next_segment(&state.index.segments);
        let to = next.map_or(self.limit.cursor, |facts| facts.begin());
        if (self.at.epoch, self.at.sequence) < (to.epoch, to.sequence) {
            if self.at.epoch < to.epoch {
                self.schemas.clear();
            }
            self.items.extend(state.index.between(self.at, to));
            self.at = to;
        }
        let Some(facts) = next else { return Ok(!self.items.is_empty()) };
        let id = facts.id();
        self.next = Bound::Excluded(id);
        let file = match &state.tail {
            Some(tail) if tail.facts.id() == id => Arc::clone(&tail.file),
            _ => match shared.files.open_segment(id, false) {
                Ok(file) => file,
                // The segment was removed: the reader reports its events as missing.
                Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(true);
                }
                Err(error) => return Err(error),
            },
        };
        let limit =
            self.limit.segment.filter(|(last, _)| *last == id).map_or(facts.bytes, |(_, bytes)| bytes);
        let start = SegmentFacts::new(facts.header, facts.seed);
        self.walk = Some((id, Walk::new(file, start, limit)));
        Ok(true)
    }

    fn next_segment(&self, segments: &BTreeMap<SegmentId, SegmentFacts>) -> Option<SegmentFacts> {
        let (last, _) = self.limit.segment?;
        let (id, facts) = segments.range((self.next, Bound::Unbounded)).next()?;
        (*id <= last).then_some(*facts)
    }

    /// The item of a record. `None` if the reader does not return it.
    fn pass(&mut self, record: &Record<'_>) -> Option<SpoolItem> {
        match record.kind {
            RecordKind::End => None,
            RecordKind::Entry(EntryKind::Schema) => {
                let checksum = crc32fast::hash(record.payload);
                let is_new = self.schemas.insert(record.key, checksum) != Some(checksum);
                if is_new { record.to_entry().map(SpoolItem::Entry) } else { None }
            }
            RecordKind::Entry(_) => {
                let wanted = self.is_wanted(record)?;
                self.at.sequence = wanted.end;
                record.to_entry().map(SpoolItem::Entry)
            }
            RecordKind::NotStored => {
                let wanted = self.is_wanted(record)?;
                self.at.sequence = wanted.end;
                let (from, to) = (Some(wanted.start), Some(wanted.end));
                Some(SpoolItem::Missing(Missing { from, to, cause: MissingCause::NotStored }))
            }
        }
    }

    /// The events of a record that the reader asked for and did not return yet. `None` if the
    /// record is to be skipped.
    fn is_wanted(&mut self, record: &Record<'_>) -> Option<std::ops::Range<u64>> {
        let end = record.end()?;
        if self.since_wall_ns.is_some_and(|since| record.last_wall_ns() < since) {
            self.at.sequence = self.at.sequence.max(end);
            return None;
        }
        self.since_wall_ns = None;
        let given = end < self.at.sequence || (end == self.at.sequence && record.sequence < end);
        if given { None } else { Some(record.sequence.max(self.at.sequence)..end) }
    }
}
