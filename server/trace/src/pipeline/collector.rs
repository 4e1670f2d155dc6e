//! Collector of one CPU: the decoded events of its next batch.
//!
//! Owns when a batch is full, and its memory, which the next batch uses again. Never publishes a
//! batch: `decoding` does.

use std::collections::HashMap;
use std::sync::Arc;

use super::stacks::WaitingEvents;
use super::{EventSource, Group};
use crate::decode::Window;

/// Events after which a batch is closed. A message costs each of its clients some ten microseconds,
/// most of them for waking a thread on either side: with so many events that is a nanosecond or two
/// each. A queue of 10,000 events still has room for a batch.
pub(super) const BATCH_EVENTS: usize = 8_000;

/// Bytes of columns after which a batch is closed: they and the message made from them stay in the
/// second cache. Far below what gRPC clients take as one message.
const BATCH_BYTES: usize = 256 << 10;

/// How many times as large a batch becomes whose last event waits for its call stack: with room for the largest page
/// (512 KiB), at whose end the event may be.
const WAITING_TIMES: usize = 4;

/// Events collected for the next batch of one CPU. The batch after that reuses the memory.
#[derive(Debug, Default)]
pub(super) struct Collector {
    sources: Vec<Arc<EventSource>>,
    /// Indices of the groups: a schema belongs to one source.
    by_schema: HashMap<u32, usize>,
    pub(super) groups: Vec<Group>,
    pub(super) events: usize,
    /// Records that could not be decoded since the last event that could.
    pub(super) undecodable: u64,
    /// Events of the batch whose call stack was not read yet.
    pub(super) waiting: WaitingEvents,
    /// Time of the first event. An event much later than this begins another batch.
    base_ns: u64,
}

impl Collector {
    /// The index of a source's group. It holds until the next batch is published.
    pub(super) fn group_of(&mut self, source: &Arc<EventSource>) -> usize {
        let Self { sources, groups, by_schema, .. } = self;
        *by_schema.entry(source.origin.schema_id).or_insert_with(|| {
            sources.push(Arc::clone(source));
            groups.push(Group { origin: Arc::clone(&source.origin), columns: source.plan.columns() });
            groups.len() - 1
        })
    }

    /// Decodes records of one group together. They are counted in the batch already.
    pub(super) fn decode(&mut self, group: usize, windows: &[Window<'_>]) {
        let (Some(source), Some(group)) = (self.sources.get(group), self.groups.get_mut(group)) else {
            return;
        };
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return };
        source.plan.decode_fixed(windows, &mut group.columns);
        source.read.add(windows.len() as u64);
        source.read_span.note(first.timestamp_ns);
        source.read_span.note(last.timestamp_ns);
    }

    /// Whether an event at that time must begin another batch: times in a group are 32 bits,
    /// counted from its first event.
    pub(super) fn is_far(&mut self, timestamp_ns: u64) -> bool {
        if self.events == 0 {
            self.base_ns = timestamp_ns;
        }
        !fits(self.base_ns, timestamp_ns)
    }

    /// Time of the first event of the batch.
    pub(super) const fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// Whether the batch is large enough to be published. While an event of it waits for its call stack, which is the
    /// next record, or is on the next page, the batch may become larger: a stack may also never come.
    pub(super) fn is_full(&self) -> bool {
        let times = if self.waiting.is_empty() { 1 } else { WAITING_TIMES };
        self.events >= times * BATCH_EVENTS
            || self.groups.iter().map(|group| group.columns.bytes()).sum::<usize>() >= times * BATCH_BYTES
    }

    /// Drops groups without events: their probe may have been deleted.
    pub(super) fn drop_empty(&mut self) {
        if self.groups.iter().all(|group| !group.columns.is_empty()) {
            return;
        }
        let mut used = self.groups.iter().map(|group| !group.columns.is_empty());
        self.sources.retain(|_| used.next().unwrap_or_default());
        self.groups.retain(|group| !group.columns.is_empty());
        let schemas = self.sources.iter().map(|source| source.origin.schema_id);
        self.by_schema = schemas.zip(0..).collect();
    }

    /// Forgets all events.
    pub(super) fn clear(&mut self) {
        self.events = 0;
        self.waiting.clear();
        for group in &mut self.groups {
            group.columns.clear();
        }
    }
}

/// Whether the distance of a time from another one fits into 32 bits.
#[inline]
pub(super) const fn fits(base_ns: u64, timestamp_ns: u64) -> bool {
    timestamp_ns.wrapping_sub(base_ns) <= u32::MAX as u64
}
