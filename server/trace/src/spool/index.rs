//! Which segments there are, and which there were.
//!
//! Owns the order of them, and what is told to a reader between two of them. Never reads or writes
//! a file.

use std::collections::BTreeMap;

use super::expired::{Expired, ExpiredEpoch};
use super::segment::{SegmentFacts, SegmentId};
use super::{BootId, Cursor, EpochStart, Missing, MissingCause, SpoolItem};

/// All segments, the one that is written to included.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Those that are there.
    pub(super) segments: BTreeMap<SegmentId, SegmentFacts>,
    /// What has gone.
    pub(super) expired: Expired,
}

impl Index {
    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|facts| facts.bytes).sum()
    }

    /// Takes the oldest segment out and counts it as gone.
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

    /// The boot of a run, if something is known of that run.
    pub(super) fn boot_of(&self, epoch: u64) -> Option<BootId> {
        let gone = self.expired.epoch(epoch).map(|gone| gone.boot_id);
        gone.or_else(|| self.of_epoch(epoch).next().map(|facts| facts.header.boot_id))
    }

    /// The oldest run of which something is known.
    pub(super) fn oldest_epoch(&self) -> Option<(u64, BootId)> {
        let gone = self.expired.epochs.first().map(|gone| (gone.epoch, gone.boot_id));
        let there = self.segments.values().next().map(|facts| (facts.header.id.epoch, facts.header.boot_id));
        gone.into_iter().chain(there).min_by_key(|(epoch, _)| *epoch)
    }

    /// The beginning of a run, with what is known of the one before.
    pub(super) fn epoch_start(&self, epoch: u64, boot_id: BootId) -> SpoolItem {
        let gone = self.expired.epochs.iter().rfind(|gone| gone.epoch < epoch);
        let gone = gone.map(|gone| (gone.epoch, gone.ended_cleanly));
        let there = self.segments.range(..SegmentId { epoch, number: 0 }).next_back();
        let there = there.map(|(id, facts)| (id.epoch, facts.ends_epoch));
        // Of the same run, what is still there is behind what has gone.
        let last = gone.into_iter().chain(there).max_by_key(|(epoch, _)| *epoch);
        let previous_ended_cleanly = last.map(|(_, cleanly)| cleanly);
        SpoolItem::EpochStart(EpochStart { boot_id, epoch, previous_ended_cleanly })
    }

    /// What a reader has to be told on its way from one place to a later one, when none of the
    /// events between are there.
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

    /// The next run of which something is known, at most that of `to`.
    fn epoch_after(&self, epoch: u64, to: Cursor) -> (u64, BootId) {
        let newer = |gone: &&ExpiredEpoch| epoch < gone.epoch && gone.epoch < to.epoch;
        let gone = self.expired.epochs.iter().find(newer).map(|gone| (gone.epoch, gone.boot_id));
        let there = self.segments.range(SegmentId { epoch: epoch.saturating_add(1), number: 0 }..).next();
        let there = there.map(|(id, facts)| (id.epoch, facts.header.boot_id));
        let known = gone.into_iter().chain(there).filter(|(epoch, _)| *epoch < to.epoch);
        known.min_by_key(|(epoch, _)| *epoch).unwrap_or((to.epoch, to.boot_id))
    }

    /// Puts in what is to be said of missing events of one run.
    fn missing(&self, epoch: u64, from: u64, to: u64, items: &mut Vec<SpoolItem>) {
        let gone = self.expired.epoch(epoch).map_or(0, |gone| gone.up_to);
        let expired = gone.clamp(from, to.max(from));
        let parts = [(from, expired, MissingCause::Expired), (expired, to, MissingCause::Damaged)];
        items.extend(parts.into_iter().filter(|(from, to, _)| from < to).map(|(from, to, cause)| {
            SpoolItem::Missing(Missing { epoch, from: Some(from), to: Some(to), cause })
        }));
    }
}
