//! Buffered events of one host.
//!
//! Owns the order over its CPUs, boot by boot, and the time up to which the host is complete.

use std::collections::{BTreeMap, VecDeque};

use super::clock::{ClockOffset, TimeMap};
use crate::event::{Batch, Row, TimeOrdered};

/// Events of one boot: its trace clock is its own.
struct Boot {
    id: String,
    ordered: TimeOrdered,
    /// None until it is known: events of an earlier boot have their own mapping to the wall clock.
    times: Option<TimeMap>,
    watermark_ns: u64,
    /// The time stamp of the last event of each CPU that has arrived.
    arrived: BTreeMap<u32, u64>,
}

/// Progress of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frontier {
    /// Its next event, at this local time.
    Event(i64),
    /// No earlier event than this follows; the next event is not known.
    Silent(i64),
    /// No event is buffered, and no host waits for it.
    Idle,
}

/// One host.
pub(super) struct Lane {
    boots: VecDeque<Boot>,
    clock: Option<ClockOffset>,
    /// No event before this local time follows.
    floor_ns: i64,
    /// The others do not wait for it.
    released: bool,
    limit_events: usize,
}

impl Lane {
    /// `limit_events`: as for [`TimeOrdered::new`].
    pub(super) fn new(limit_events: usize) -> Self {
        Self { boots: VecDeque::new(), clock: None, floor_ns: i64::MIN, released: false, limit_events }
    }

    /// The clocks were compared.
    pub(super) fn compared(&mut self, clock: ClockOffset) {
        if let Some(boot) = self.boots.back_mut()
            && boot.id == clock.boot_id
        {
            match &mut boot.times {
                Some(times) => times.adjust(clock.trace_offset_ns, boot.watermark_ns),
                None => boot.times = Some(TimeMap::new(clock.trace_offset_ns)),
            }
        }
        self.clock = Some(clock);
    }

    /// The clocks cannot be compared: until an event shows its boot's mapping, the host's wall
    /// clock counts.
    #[cfg(feature = "nats")]
    pub(super) fn assume(&mut self, wall_offset_ns: i64) {
        if let Some(boot) = self.boots.back_mut() {
            boot.times.get_or_insert_with(|| TimeMap::new(wall_offset_ns));
        }
    }

    /// What follows belongs to this boot.
    pub(super) fn boot(&mut self, boot_id: &str) {
        if let Some(last) = self.boots.back_mut() {
            if last.id == boot_id {
                return;
            }
            // No more of its events follow.
            last.ordered.finish();
        }
        let of_now = self.clock.as_ref().filter(|clock| clock.boot_id == boot_id);
        self.boots.push_back(Boot {
            id: boot_id.to_owned(),
            ordered: TimeOrdered::new(self.limit_events),
            times: of_now.map(|clock| TimeMap::new(clock.trace_offset_ns)),
            watermark_ns: 0,
            arrived: BTreeMap::new(),
        });
    }

    /// Buffers events. Events before the first boot id are dropped: the decoder reports such a
    /// stream as malformed.
    pub(super) fn push(&mut self, batch: Batch) {
        let Some(boot) = self.boots.back_mut() else { return };
        let ahead_ns = self.clock.as_ref().map_or(0, |clock| clock.wall_ahead_ns);
        boot.times.get_or_insert_with(|| TimeMap::new(batch.wall_offset_ns().saturating_sub(ahead_ns)));
        let groups = batch.groups().iter().filter(|group| group.rows() > 0);
        if let Some(last_ns) = groups.map(|group| group.timestamp_ns(group.rows() - 1)).max() {
            let known = boot.arrived.entry(batch.cpu()).or_default();
            *known = last_ns.max(*known);
        }
        boot.ordered.push(batch);
    }

    /// All events before this time stamp have arrived.
    pub(super) fn advance(&mut self, watermark_ns: u64) {
        let Some(boot) = self.boots.back_mut() else { return };
        boot.ordered.advance(watermark_ns);
        boot.watermark_ns = boot.watermark_ns.max(watermark_ns);
        if let Some(times) = &boot.times {
            self.floor_ns = self.floor_ns.max(times.local_ns(boot.watermark_ns));
        }
    }

    /// The time stamp of the last event of each CPU that has arrived in its last boot, delivered or not.
    pub(super) fn arrived(&self) -> Vec<(u32, u64)> {
        self.boots.back().map_or_else(Vec::new, |boot| boot.arrived.clone().into_iter().collect())
    }

    /// All events of its last boot before this time stamp have arrived.
    pub(super) fn watermark_ns(&self) -> u64 {
        self.boots.back().map_or(0, |boot| boot.watermark_ns)
    }

    /// Whether the others wait for it. If not, its buffered events are delivered at once.
    pub(super) fn set_released(&mut self, released: bool) {
        self.released = released;
        if released && let Some(boot) = self.boots.back_mut() {
            boot.ordered.finish();
        }
    }

    /// Its progress.
    pub(super) fn frontier(&mut self) -> Frontier {
        while let Some(boot) = self.boots.front() {
            if let (Some(next_ns), Some(times)) = (boot.ordered.next_ns(), &boot.times) {
                return Frontier::Event(times.local_ns(next_ns));
            }
            if self.boots.len() == 1 {
                break;
            }
            self.boots.pop_front();
        }
        if self.released { Frontier::Idle } else { Frontier::Silent(self.floor_ns) }
    }

    /// The event that the frontier is at.
    pub(super) fn next_row(&mut self) -> Option<Row<'_>> {
        self.boots.front_mut()?.ordered.next_row()
    }

    /// Events that wait.
    pub(super) fn held_events(&self) -> usize {
        self.boots.iter().map(|boot| boot.ordered.held_events()).sum()
    }
}
