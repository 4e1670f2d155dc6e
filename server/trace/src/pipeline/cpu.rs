//! One CPU of a reader: the source of its pages, its collector, and its counters.
//!
//! Owns the rate at which events arrive, from which it derives the size of the buffer. Never
//! decides when to read: `reader` does.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use super::collector::Collector;
use super::commands::Inbox;
use super::counters::BufferCounters;
use super::decoding::{Decoding, Target};
use super::demand;
use super::handover::Source;
use super::ring::{Depth, Found, Ring};

/// One CPU of a reader.
#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) source: Source,
    pub(super) counters: Arc<BufferCounters>,
    collector: Collector,
    /// Bytes of events read since its rate was last measured.
    read_bytes: u64,
    /// Overruns until then.
    known_overrun: u64,
    /// Malformed pages until the kernel's counters were last read.
    known_malformed: u64,
}

impl Cpu {
    pub(super) fn new(mut ring: Ring) -> Self {
        ring.compare_from(0);
        Self {
            source: Source::new(ring),
            counters: Arc::default(),
            collector: Collector::default(),
            read_bytes: 0,
            known_overrun: 0,
            known_malformed: 0,
        }
    }

    /// Number of the CPU.
    pub(super) const fn number(&self) -> u32 {
        self.source.ring.cpu
    }

    /// Bytes that its buffer of `buffer_bytes` should have, going by the bytes read in the time
    /// `elapsed` since the last call.
    pub(super) fn wanted_bytes(&mut self, elapsed: Duration, buffer_bytes: u64) -> u64 {
        let overrun = self.counters.counts(self.number()).overrun;
        let has_lost = std::mem::replace(&mut self.known_overrun, overrun) < overrun;
        demand::wanted_bytes(std::mem::take(&mut self.read_bytes), elapsed, has_lost, buffer_bytes)
    }

    /// The source of its events, and the decoding that they go into.
    pub(super) fn parts<'a>(&'a mut self, target: &'a mut Target) -> (&'a mut Source, Decoding<'a>) {
        let cpu = self.number();
        let Self { source, counters, collector, .. } = self;
        (source, Decoding { cpu, counters, collector, target })
    }

    /// Reads pages and publishes the events on them.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        depth: Depth,
        inbox: &Inbox,
        target: &mut Target,
    ) -> Found {
        let (source, mut decoding) = self.parts(target);
        let found = source.read(buffer, depth, inbox, &mut decoding);
        self.read_bytes += found.data_bytes;
        found
    }

    /// Reads the kernel's counters of events that did not get into the buffer, or were taken out of
    /// it.
    pub(super) fn look_at_stats(&mut self, target: &Target) {
        let malformed = self.counters.malformed.get();
        if std::mem::replace(&mut self.known_malformed, malformed) != malformed {
            self.source.ring.compare_anew();
        }
        let holds = self.source.holds() || self.collector.events > 0;
        let seen = (!holds).then(|| self.counters.seen());
        self.source.ring.look_at_stats(&self.counters, seen, &target.hub);
    }

    /// Notes that the kernel has emptied the buffer and set its counters to zero.
    pub(super) fn was_reset(&mut self) {
        self.source.ring.was_reset();
    }
}
