//! Index of the segments, present and expired.
//!
//! Owns their order, and the items that a reader gets between two segments: beginnings of runs, and
//! missing events. Never reads or writes a file.

use std::collections::BTreeMap;

use super::expired::{Expired, ExpiredEpoch};
use super::segment::{SegmentFacts, SegmentId};
use super::{BootId, Cursor, EpochStart, Missing, MissingCause, SpoolItem};

/// All segments, including the one that is written to.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The segments on disk.
    pub(super) segments: BTreeMap<SegmentId, SegmentFacts>,
    /// The expired part of the log.
    pub(super) expired: Expired,
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
        Some(id)
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

    /// The oldest known run.
    pub(super) fn oldest_epoch(&self) -> Option<(u64, BootId)> {
        let gone = self.expired.epochs.first().map(|gone| (gone.epoch, gone.boot_id));
        let there = self.segments.values().next().map(|facts| (facts.header.id.epoch, facts.header.boot_id));
        gone.into_iter().chain(there).min_by_key(|(epoch, _)| *epoch)
    }

    /// The beginning of a run, with the end of the previous run if it is known.
    pub(super) fn epoch_start(&self, epoch: u64, boot_id: BootId) -> SpoolItem {
        let gone = self.expired.epochs.iter().rfind(|gone| gone.epoch < epoch);
        let gone = gone.map(|gone| (gone.epoch, gone.ended_cleanly));
        let there = self.segments.range(..SegmentId { epoch, number: 0 }).next_back();
        let there = there.map(|(id, facts)| (id.epoch, facts.ends_epoch));
        // Of the same run, the present segments follow the expired ones.
        let last = gone.into_iter().chain(there).max_by_key(|(epoch, _)| *epoch);
        let previous_ended_cleanly = last.map(|(_, cleanly)| cleanly);
        SpoolItem::EpochStart(EpochStart { boot_id, epoch, previous_ended_cleanly })
    }

    /// The items for a reader that goes from one position to a later one, if none of the events
    /// between them is stored.
    pub(super) fn between(&self, from: Cursor, to: Cursor) -> Vec<SpoolItem> {
        let mut items = Vec::new();
        let mut at = from;
        while at.epoch < to.epoch {
            let there = self.of_epoch(at.epoch).next_back().map_or(0, |facts| facts.next_sequence);
            let gone = self.expired.epoch(at.epoch).map_or(0, |gone| gone.up_to);
            self.missing(at.epoch, at.sequence, there.max(gone), &mut items);
            let (epoch, boot_id) = self.epoch_after(at.epoch, to);
            items.push(self.epoch_start(epoch, boot_id));
            at = Cursor { boot_id, epoch, sequence: 0 };
        }
        self.missing(to.epoch, at.sequence, to.sequence, &mut items);
        items
    }

    /// The next known run, at most that of `to`.
    fn epoch_after(&self, epoch: u64, to: Cursor) -> (u64, BootId) {
        let newer = |gone: &&ExpiredEpoch| epoch < gone.epoch && gone.epoch < to.epoch;
        let gone = self.expired.epochs.iter().find(newer).map(|gone| (gone.epoch, gone.boot_id));
        let there = self.segments.range(SegmentId { epoch: epoch.saturating_add(1), number: 0 }..).next();
        let there = there.map(|(id, facts)| (id.epoch, facts.header.boot_id));
        let known = gone.into_iter().chain(there).filter(|(epoch, _)| *epoch < to.epoch);
        known.min_by_key(|(epoch, _)| *epoch).unwrap_or((to.epoch, to.boot_id))
    }

    /// Appends the items about missing events of one run.
    fn missing(&self, epoch: u64, from: u64, to: u64, items: &mut Vec<SpoolItem>) {
        let gone = self.expired.epoch(epoch).map_or(0, |gone| gone.up_to);
        let expired = gone.clamp(from, to.max(from));
        let parts = [(from, expired, MissingCause::Expired), (expired, to, MissingCause::Damaged)];
        items.extend(parts.into_iter().filter(|(from, to, _)| from < to).map(|(from, to, cause)| {
            SpoolItem::Missing(Missing { epoch, from: Some(from), to: Some(to), cause })
        }));
    }
}
