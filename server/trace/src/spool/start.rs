//! Start of a reader: the search for the requested position.
//!
//! Owns that search, and the items about events from there on that are no longer stored. Never
//! reads on: `reader` does.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use super::error::ReadError;
use super::index::damaged;
use super::record::{Record, RecordKind};
use super::segment::{SegmentFacts, SegmentId};
use super::state::{Limit, Shared, State};
use super::walk::Walk;
use super::{Cursor, EntryKind, Missing, MissingCause, SpoolError, SpoolItem};

/// Where a reader begins.
pub(super) struct Start {
    /// The reader skips events before this position.
    pub(super) at: Cursor,
    /// Where to look for the first segment.
    pub(super) segment: Bound<SegmentId>,
    /// The reader skips entries until one ends at this time, in nanoseconds since 1970.
    pub(super) since_wall_ns: Option<u64>,
    /// Items to return first.
    pub(super) items: Vec<SpoolItem>,
}

/// Begins with the oldest entry. The reader reports all expired events on the way.
pub(super) fn beginning(state: &State) -> Start {
    let (epoch, boot_id) = state.index.run_from(0).unwrap_or((state.now.epoch, state.now.boot_id));
    let at = Cursor { boot_id, epoch, sequence: 0 };
    let mut items = vec![state.index.epoch_start(at)];
    if state.index.lacks_runs(None, epoch) {
        items.push(damaged(None));
    }
    Start { at, segment: Bound::Unbounded, since_wall_ns: None, items }
}

/// Begins after the events that a client has.
pub(super) fn cursor(state: &State, cursor: Cursor) -> Result<Start, SpoolError> {
    let Cursor { epoch, sequence, .. } = cursor;
    let now = state.now;
    let known = if epoch == now.epoch { Some(now.boot_id) } else { state.index.boot_of(epoch) };
    if epoch > now.epoch || known.is_some_and(|boot_id| boot_id != cursor.boot_id) {
        let now_boot = known.unwrap_or(now.boot_id);
        return Err(SpoolError::ForeignCursor { cursor, now_boot, now_epoch: now.epoch });
    }
    let mut items = vec![state.index.epoch_start(cursor)];
    // Unknown runs that are newer than the oldest known one have stored nothing, or were set aside as a whole.
    let is_aside = state.index.set_aside_of(epoch).next().is_some();
    if known.is_none() && !is_aside && state.index.run_from(0).is_none_or(|(oldest, _)| epoch < oldest) {
        let (from, to) = (Some(sequence), None);
        items.push(SpoolItem::Missing(Missing { from, to, cause: MissingCause::Expired }));
    }
    // A segment may end with entries without events.
    let is_behind = |facts: &&SegmentFacts| (facts.id().epoch, facts.next_sequence) >= (epoch, sequence);
    let first = state.index.segments.values().find(is_behind).map(SegmentFacts::id);
    let segment = first.map_or_else(|| newest(state, epoch), Bound::Included);
    Ok(Start { at: cursor, segment, since_wall_ns: None, items })
}

/// Begins with the first entry that ends at a time or later.
pub(super) fn since_wall(state: &State, limit: &Limit, wall_ns: u64) -> Start {
    let first = state.index.segments.values().find(|facts| facts.last_wall_ns >= wall_ns);
    let at = first.map_or(limit.cursor, SegmentFacts::begin);
    let segment = first.map_or_else(|| newest(state, at.epoch), |facts| Bound::Included(facts.id()));
    let mut items = Vec::new();
    for gone in state.index.expired.epochs.iter().filter(|gone| gone.last_wall_ns >= wall_ns) {
        let sequence = if gone.epoch == at.epoch { at.sequence } else { 0 };
        items.push(state.index.epoch_start(Cursor { boot_id: gone.boot_id, epoch: gone.epoch, sequence }));
        let (from, to) = (None, Some(gone.up_to));
        items.push(SpoolItem::Missing(Missing { from, to, cause: MissingCause::Expired }));
    }
    let told = state.index.expired.epochs.last().filter(|gone| gone.last_wall_ns >= wall_ns);
    if told.is_none_or(|gone| gone.epoch != at.epoch) {
        items.push(state.index.epoch_start(at));
    }
    // Those after the first segment are missing on the way.
    let mut aside = state.index.aside.iter();
    if aside.any(|(id, (_, last))| *last >= wall_ns && first.is_none_or(|facts| *id < facts.id())) {
        items.push(damaged(None));
    }
    Start { at, segment, since_wall_ns: Some(wall_ns), items }
}

/// Begins with the entry at which the count reaches `wanted`, counting back from the last one.
/// `count` gets the schemas of a segment before its other entries, and those from the last one back. Where a schema
/// replaced another one, `count` gets that one again on the way. `None` if all entries count less.
pub(super) fn last(
    shared: &Arc<Shared>,
    limit: &Limit,
    wanted: u64,
    mut count: impl FnMut(&Record<'_>) -> u64,
) -> Result<Option<Start>, SpoolError> {
    let Some((mut id, mut bytes)) = limit.segment else { return Ok(None) };
    let mut found = 0_u64;
    loop {
        // A segment that was removed meanwhile, and all before it, have expired.
        let Some((facts, file)) = open(shared, id)? else { return Ok(None) };
        let io = |error| {
            let source = match error {
                ReadError::Io(source) => source,
                ReadError::Damaged(damage) => std::io::Error::other(damage),
            };
            SpoolError::io("read", &shared.files.segment(id))(source)
        };
        let mut walk = Walk::new(file, SegmentFacts::new(facts.header, facts.seed), bytes);
        // The records that count on the way back: events with their number, and the schemas that were replaced.
        let mut back = Vec::new();
        let mut schemas = HashMap::new();
        loop {
            match walk.next() {
                Ok(Some((at, record))) if record.kind == RecordKind::Entry(EntryKind::Schema) => {
                    count(&record);
                    back.extend(schemas.insert(record.key, at).map(|replaced| (replaced, None)));
                }
                Ok(Some((at, record))) if record.kind == RecordKind::Entry(EntryKind::Events) => {
                    back.push((at, Some(record.sequence)));
                }
                Ok(Some(_)) => {}
                // Records after a break are missing, and the reader reports them.
                Ok(None) | Err(ReadError::Damaged(_)) => break,
                Err(error @ ReadError::Io(_)) => return Err(io(error)),
            }
        }
        for (at, sequence) in back.into_iter().rev() {
            found = found.saturating_add(count(&walk.record_at(at).map_err(io)?));
            if let Some(sequence) = sequence
                && found >= wanted
            {
                return Ok(Some(at_entry(&shared.lock(), &facts, sequence)));
            }
        }
        match shared.lock().index.segments.range(..id).next_back() {
            Some((before, facts)) => (id, bytes) = (*before, facts.bytes),
            None => return Ok(None),
        }
    }
}

/// The facts and the file of a segment. `None` if it was removed.
fn open(shared: &Shared, id: SegmentId) -> Result<Option<(SegmentFacts, Arc<std::fs::File>)>, SpoolError> {
    let state = shared.lock();
    let Some(facts) = state.index.segments.get(&id) else { return Ok(None) };
    Ok(Some((*facts, shared.files.open_segment(id, false)?)))
}

fn at_entry(state: &State, facts: &SegmentFacts, sequence: u64) -> Start {
    let at = Cursor { sequence, ..facts.begin() };
    let items = vec![state.index.epoch_start(at)];
    Start { at, segment: Bound::Included(facts.id()), since_wall_ns: None, items }
}

/// Begins with the entries that are appended from now on.
pub(super) fn end(state: &State, limit: &Limit) -> Start {
    let at = limit.cursor;
    let items = vec![state.index.epoch_start(at)];
    Start { at, segment: newest(state, at.epoch), since_wall_ns: None, items }
}

/// The segment from which to look for later entries: the last one, since the writer may append to
/// it, unless it is of an earlier run.
fn newest(state: &State, epoch: u64) -> Bound<SegmentId> {
    match state.index.segments.keys().next_back() {
        Some(last) if last.epoch == epoch => Bound::Included(*last),
        Some(last) => Bound::Excluded(*last),
        None => Bound::Unbounded,
    }
}
