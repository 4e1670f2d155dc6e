//! Known events: those of which only the length of a record must be checked, with their records that
//! wait to be decoded together.
//!
//! Owns the short way that nearly all records take: one look into a table, and one place that is
//! filled. An entry is valid for one batch, and its records for one page. Never decodes a record:
//! the collector does.

use super::collector::{Collector, fits};
use crate::decode::{CompiledFormat, WINDOW_BYTES, Window};
use kprobed_host::ring::Record;

/// Slots for a page with few events, and the most that there can be: as many as a busy host has
/// probes.
const SLOTS: usize = 8;
const SLOTS_MAX: usize = 1024;

/// Records that are decoded together: enough for tight loops, and few enough that they are still in
/// the smallest cache when the last column is decoded.
const TOGETHER: usize = 256;

/// Room for the records of an event that is rare on its page.
const FEW: usize = 8;

/// What a place holds before a record is put there.
const NOTHING: Window<'static> = Window { timestamp_ns: 0, bytes: &[0; WINDOW_BYTES] };

/// The known events of one batch.
#[derive(Debug, Default)]
pub(super) struct Known<'p> {
    /// By event id. Grows with the number of events that share no slot: nearly all pages have few.
    slots: Vec<Option<KnownEvent<'p>>>,
    /// Time of the first event of the batch.
    base_ns: u64,
}

#[derive(Debug)]
struct KnownEvent<'p> {
    id: u16,
    /// Size in bytes of the part of a record that must be there.
    bytes: usize,
    /// Its group in the collector.
    group: usize,
    /// How many of the places have a record that waits.
    waiting: usize,
    places: Vec<Window<'p>>,
}

impl KnownEvent<'_> {
    fn new(group: usize, plan: &CompiledFormat) -> Self {
        Self { id: plan.id(), bytes: plan.fixed_bytes(), group, waiting: 0, places: Vec::new() }
    }

    /// Has the collector decode the waiting records.
    fn decode_into(&mut self, collector: &mut Collector) {
        collector.decode(self.group, self.places.get(..self.waiting).unwrap_or_default());
        self.waiting = 0;
    }

    /// Makes room for another record.
    fn make_room(&mut self, collector: &mut Collector) {
        if self.waiting < self.places.len() {
            return;
        }
        // Most events of a page are of few probes, or few are of each of many.
        match self.places.len() {
            0 => self.places.resize(FEW, NOTHING),
            TOGETHER => self.decode_into(collector),
            _ => self.places.resize(TOGETHER, NOTHING),
        }
    }
}

impl<'p> Known<'p> {
    /// Takes a record, if its event is known, it needs no further check, and there is room for it.
    /// `onward` are the bytes of its page from its payload on.
    #[inline]
    pub(super) fn take(&mut self, record: &Record<'p>, onward: &'p [u8]) -> bool {
        let Some(bytes) = onward.first_chunk::<WINDOW_BYTES>() else { return false };
        let id = u16::from_le_bytes([bytes[0], bytes[1]]);
        // A power of two, or none at all.
        let slot = usize::from(id) & self.slots.len().wrapping_sub(1);
        let Some(Some(event)) = self.slots.get_mut(slot) else { return false };
        if event.id != id || record.payload.len() < event.bytes || !fits(self.base_ns, record.timestamp_ns) {
            return false;
        }
        let Some(place) = event.places.get_mut(event.waiting) else { return false };
        *place = Window { timestamp_ns: record.timestamp_ns, bytes };
        event.waiting += 1;
        true
    }

    /// Makes the event known, and room for a record of it: the next one of it is taken, if it needs
    /// no further check. `group` is where the collector has its events.
    pub(super) fn learn(&mut self, group: usize, plan: &CompiledFormat, collector: &mut Collector) {
        self.base_ns = collector.base_ns();
        let slot = loop {
            let slots = self.slots.len();
            let slot = usize::from(plan.id()) & slots.wrapping_sub(1);
            match self.slots.get(slot) {
                Some(None) => break slot,
                Some(Some(other)) if other.id == plan.id() || slots >= SLOTS_MAX => break slot,
                _ => self.grow(slots.saturating_mul(2).clamp(SLOTS, SLOTS_MAX)),
            }
        };
        let Some(place) = self.slots.get_mut(slot) else { return };
        if let Some(other) = place.as_mut().filter(|other| other.id != plan.id()) {
            // The table is as large as it can be: one event takes the slot of another.
            other.decode_into(collector);
            *place = None;
        }
        place.get_or_insert_with(|| KnownEvent::new(group, plan)).make_room(collector);
    }

    /// Gives the events more slots. No two of them that had a slot each come to share one.
    fn grow(&mut self, slots: usize) {
        let known = std::mem::take(&mut self.slots);
        self.slots.resize_with(slots, || None);
        for event in known.into_iter().flatten() {
            let slot = usize::from(event.id) & (slots - 1);
            if let Some(place) = self.slots.get_mut(slot) {
                *place = Some(event);
            }
        }
    }

    /// Has the collector decode all waiting records.
    pub(super) fn decode_into(&mut self, collector: &mut Collector) {
        for event in self.slots.iter_mut().flatten().filter(|event| event.waiting > 0) {
            event.decode_into(collector);
        }
    }

    /// As [`decode_into`](Self::decode_into), and forgets all events: their groups are valid for one
    /// batch.
    pub(super) fn end(&mut self, collector: &mut Collector) {
        self.decode_into(collector);
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    /// Bytes of a record that has only the fields that all events have.
    const RECORD_BYTES: usize = 16;

    /// Takes records of these events in turn, and returns the times and thread ids of each.
    fn taken(ids: &[u16], records: u32) -> Vec<(Vec<u64>, Vec<i32>)> {
        let sources: Vec<_> =
            ids.iter().map(|id| samples::source_of_type("e", u32::from(*id), *id)).collect();
        let mut page = Vec::new();
        for (record, id) in (0..records).zip(ids.iter().cycle()) {
            page.extend(id.to_le_bytes());
            page.extend([0, 1]);
            page.extend(record.to_le_bytes());
            page.extend([0; 8]);
        }
        page.extend([0; WINDOW_BYTES]);
        let (mut known, mut collector) = (Known::default(), Collector::default());
        for (record, source) in (0..records as usize).zip(sources.iter().cycle()) {
            let onward = &page[record * RECORD_BYTES..];
            let record = Record { timestamp_ns: record as u64, payload: &onward[..RECORD_BYTES] };
            if !known.take(&record, onward) {
                let group = collector.group_of(source);
                known.learn(group, &source.plan, &mut collector);
                assert!(known.take(&record, onward), "what was learnt is known");
            }
        }
        known.end(&mut collector);
        let columns = collector.groups.iter().map(|group| &group.columns);
        let tids = |columns: &crate::decode::Columns| {
            (0..columns.len()).filter_map(|row| columns.tid(row)).collect()
        };
        columns.map(|columns| (columns.timestamps_ns.clone(), tids(columns))).collect()
    }

    #[test]
    fn every_record_is_decoded_once_and_in_order() {
        let far = u16::try_from(SLOTS_MAX).unwrap() + 1;
        // One event; some that need more slots; two that share one in the largest table.
        for ids in [&[1][..], &[1, 9, 17, 2], &[1, far], &[1, far, 2, 2 * far]] {
            let each = u32::try_from(2 * TOGETHER + FEW + 1).unwrap();
            let count = u32::try_from(ids.len()).unwrap();
            let taken = taken(ids, each * count);
            assert_eq!(taken.len(), ids.len());
            for (place, (times, tids)) in (0..count).zip(taken) {
                let expected = || (0..each).map(|turn| turn * count + place);
                assert!(times.into_iter().eq(expected().map(u64::from)), "{ids:?}");
                assert!(tids.into_iter().eq(expected().map(u32::cast_signed)), "{ids:?}");
            }
        }
    }
}
