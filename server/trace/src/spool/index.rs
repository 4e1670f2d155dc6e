//! Index of the segments, present and expired.
//!
//! Owns their order, and the items that a reader gets between two segments: beginnings of runs, and
//! missing events. Never reads or writes a file.

use std::collections::BTreeMap;

use super::lists::Expired;
use super::segment::{SegmentFacts, SegmentId};
use super::{BootId, Cursor, EpochStart, Missing, MissingCause, SpoolItem};

/// All segments, including the one that is written to.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The segments on disk.
    pub(super) segments: BTreeMap<SegmentId, SegmentFacts>,
    /// The expired part of the log.
    pub(super) expired: Expired,
    /// The segments that were set aside: the name of the file, and the time at which it was last changed, in
    /// nanoseconds since 1970.
    pub(super) aside: BTreeMap<SegmentId, (String, u64)>,
    /// How many events each run had that ended in order, as far as that is known.
    pub(super) ended: BTreeMap<u64, u64>,
}

/// An unknown number of events: the end of a run from an event on; or whole runs, whose boots are not known.
pub(super) fn damaged(from: Option<u64>) -> SpoolItem {
    SpoolItem::Missing(Missing { from, to: None, cause: MissingCause::Damaged })
}

impl Index {
    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|facts| facts.bytes).sum()
    }

    /// Removes the oldest segment from the index and counts it as expired.
    pub(super) fn expire_oldest(&mut self) -> Option<SegmentId> {
        let (id, facts) = self.segments.pop_first()?;
        self.expired.add(&facts);
        self.aside.retain(|aside, _| *aside > id);
        Some(id)
    }

    /// The segments of a run that were set aside.
    pub(super) fn set_aside_of(&self, epoch: u64) -> impl DoubleEndedIterator<Item = SegmentId> {
        let [first, last] = [0, u64::MAX].map(|number| SegmentId { epoch, number });
        self.aside.range(first..=last).map(|(id, _)| *id)
    }

    /// Whether segments of runs between two runs were set aside.
    pub(super) fn lacks_runs(&self, after: Option<u64>, before: u64) -> bool {
        let end = SegmentId { epoch: before, number: 0 };
        self.aside.range(..end).any(|(id, _)| after.is_none_or(|after| id.epoch > after))
    }

    /// Whether the last segment of a run was set aside, and nothing tells how many events it had.
    fn lacks_end(&self, epoch: u64) -> bool {
        let there = self.of_epoch(epoch).next_back().map(|facts| facts.header.id.number);
        let last = self.set_aside_of(epoch).next_back().map(|id| id.number);
        last.is_some() && last > there && !self.ended.contains_key(&epoch)
    }

    /// The segments of a run, in order.
    pub(super) fn of_epoch(&self, epoch: u64) -> impl DoubleEndedIterator<Item = &SegmentFacts> {
        let [first, last] = [0, u64::MAX].map(|number| SegmentId { epoch, number });
        self.segments.range(first..=last).map(|(_, facts)| facts)
    }

    /// The boot of a run, if the run is known.
    pub(super) fn boot_of(&self, epoch: u64) -> Option<BootId> {
        let gone = self.expired.epoch(epoch).map(|gone| gone.boot_id);
        gone.or_else(|| self.of_epoch(epoch).next().map(|facts| facts.header.boot_id))
    }

    /// The first known run that is this one or a later one.
    pub(super) fn run_from(&self, epoch: u64) -> Option<(u64, BootId)> {
        let gone = self.expired.epochs.iter().find(|gone| gone.epoch >= epoch);
        let gone = gone.map(|gone| (gone.epoch, gone.boot_id));
        let there = self.segments.range(SegmentId { epoch, number: 0 }..).next();
        let there = there.map(|(id, facts)| (id.epoch, facts.header.boot_id));
        gone.into_iter().chain(there).min_by_key(|(epoch, _)| *epoch)
    }

    /// The beginning of what is read of a run, with the end of the previous run if it is known.
    pub(super) fn epoch_start(&self, at: Cursor) -> SpoolItem {
        let epoch = at.epoch;
        let gone = self.expired.epochs.iter().rfind(|gone| gone.epoch < epoch);
        let gone = gone.map(|gone| (gone.epoch, gone.ended_cleanly));
        let there = self.segments.range(..SegmentId { epoch, number: 0 }).next_back();
        let there = there.map(|(id, facts)| (id.epoch, facts.ends_epoch));
        let ended = self.ended.range(..epoch).next_back().map(|(epoch, _)| (*epoch, true));
        // Of the same run, the present segments follow the expired ones, and the list knows better than a segment whose
        // end was damaged.
        let last = gone.into_iter().chain(there).chain(ended).max_by_key(|(epoch, _)| *epoch);
        SpoolItem::EpochStart(EpochStart { at, previous_ended_cleanly: last.map(|(_, cleanly)| cleanly) })
    }

    /// The items for a reader that goes from one position to a later one, if none of the events
    /// between them is stored.
    pub(super) fn between(&self, from: Cursor, to: Cursor) -> Vec<SpoolItem> {
        let mut items = Vec::new();
        let mut at = from;
        while at.epoch < to.epoch {
            let there = self.of_epoch(at.epoch).next_back().map_or(0, |facts| facts.next_sequence);
            let gone = self.expired.epoch(at.epoch).map_or(0, |gone| gone.up_to);
            let ended = self.ended.get(&at.epoch).copied().unwrap_or(0);
            let end = there.max(gone).max(ended);
            self.missing(at.epoch, at.sequence, end, &mut items);
            if self.lacks_end(at.epoch) {
                items.push(damaged(Some(end.max(at.sequence))));
            }
            let later = self.run_from(at.epoch.saturating_add(1)).filter(|(epoch, _)| *epoch < to.epoch);
            let (epoch, boot_id) = later.unwrap_or((to.epoch, to.boot_id));
            let next = Cursor { boot_id, epoch, sequence: 0 };
            items.push(self.epoch_start(next));
            if self.lacks_runs(Some(at.epoch), epoch) {
                items.push(damaged(None));
            }
            at = next;
        }
        self.missing(to.epoch, at.sequence, to.sequence, &mut items);
        items
    }

    /// Appends the items about missing events of one run.
    fn missing(&self, epoch: u64, from: u64, to: u64, items: &mut Vec<SpoolItem>) {
        let gone = self.expired.epoch(epoch).map_or(0, |gone| gone.up_to);
        let expired = gone.clamp(from, to.max(from));
        let parts = [(from, expired, MissingCause::Expired), (expired, to, MissingCause::Damaged)];
        for (from, to, cause) in parts.into_iter().filter(|(from, to, _)| from < to) {
            items.push(SpoolItem::Missing(Missing { from: Some(from), to: Some(to), cause }));
        }
    }
}
