//! The ring buffer of one CPU, as its reader sees it.
//!
//! Owns the open file and the account of what the kernel lost.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use super::collector::Collector;
use super::counters::BufferCounters;
use super::turn::Turn;
use super::waiting::Waiting;
use super::{Hub, Loss, LossCause, demand};
use kprobed_host::tracefs::{BufferStats, Instance};

/// Bytes of pages that one CPU may have in one turn, so that a busy one does not keep the others waiting.
const TURN_BYTES: usize = 256 << 10;

/// How far a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Until the page that the kernel is still writing to, or somebody asks the reader for something.
    Pages,
    /// Until nothing is left from before this time, in nanoseconds of the trace clock. Not until nothing is left at all: a CPU that records
    /// faster than it is read would never come to that.
    Until(u64),
}

/// What a turn found on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Pages read.
    pub(super) pages: usize,
    /// Whether there was nothing behind them.
    pub(super) caught_up: bool,
    /// Whether a page made no sense: the instance may have been changed by somebody.
    pub(super) broken: bool,
}

/// The open ring buffer of one CPU, and the account of what the kernel lost in it.
#[derive(Debug)]
pub(super) struct Ring {
    number: u32,
    pub(super) file: File,
    /// Overruns told since the buffer's own counters were at zero. Absent as long as an earlier run of the daemon has told some of them, nobody
    /// knows how many.
    told_overruns: Option<u64>,
    /// A page had no room for its number of lost events: from there on the buffer's counter is asked, since later numbers on pages can
    /// overlap with what was told.
    ask_for_overruns: bool,
    /// What the buffer counted when it was last asked; of its overruns only `told_overruns` counts.
    known: BufferStats,
}

impl Ring {
    /// `before` is what the buffer counted before anything is read of it here: what an earlier run of the daemon has lost is none of ours.
    pub(super) fn new(number: u32, file: File, before: &BufferStats) -> Self {
        Self {
            number,
            file,
            told_overruns: (before.overrun == 0).then_some(0),
            ask_for_overruns: false,
            known: *before,
        }
    }

    /// The CPU.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Whether a number of lost events was not on its page, so that the buffer's counter is asked from then on.
    pub(super) const fn asks_for_overruns(&self) -> bool {
        self.ask_for_overruns
    }

    /// The kernel has emptied the buffer and set its counters to zero.
    pub(super) fn was_reset(&mut self) {
        (self.told_overruns, self.known) = (Some(0), BufferStats::default());
    }

    /// The next page, unless there is none, or it cannot be read.
    pub(super) fn read_page<'b>(&mut self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        // The kernel may answer 0 without being at an end, when a page is swapped at that very moment.
        let mut empty_answers = 0;
        loop {
            match self.file.read(buffer) {
                Ok(0) if empty_answers < 3 => empty_answers += 1,
                Ok(0) => return None,
                Ok(length) => return buffer.get(..length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => {
                    tracing::error!(cpu = self.number, %error, "cannot read events");
                    return None;
                }
            }
        }
    }

    /// How many events a page's loss flag stands for; absent for some, and 0 when they were told before. `counted` is the number on the page,
    /// where there was room for it.
    pub(super) fn lost(&mut self, counted: Option<u64>, instance: &Instance) -> Option<u64> {
        let Some(told) = self.told_overruns else { return counted };
        self.ask_for_overruns |= counted.is_none();
        if !self.ask_for_overruns {
            self.told_overruns = Some(told + counted.unwrap_or(0));
            return counted;
        }
        let stats = instance.stats(self.number).ok()?;
        self.told_overruns = Some(stats.overrun);
        Some(stats.overrun.saturating_sub(told))
    }

    /// Counts events that the kernel did not let into the buffer, and notices if another program has emptied it.
    pub(super) fn look_at_stats(&mut self, instance: &Instance, counters: &BufferCounters, hub: &Hub) {
        let Ok(stats) = instance.stats(self.number) else { return };
        // No counter ever falls, unless the buffer is reset.
        let fell = [
            (stats.overrun, self.told_overruns.unwrap_or(0)),
            (stats.commit_overrun, self.known.commit_overrun),
            (stats.dropped, self.known.dropped),
            (stats.read, self.known.read),
        ];
        if fell.iter().any(|(now, before)| now < before) {
            tracing::warn!(cpu = self.number, "another program has emptied the ring buffer");
            self.was_reset();
            counters.resets.add(1);
            hub.publish_loss(Loss::on(self.number, LossCause::Reset, None, 0));
        }
        // Nothing unread is left, so that no overrun is left to be told either.
        if self.told_overruns.is_none() && stats.entries == 0 {
            self.told_overruns = Some(stats.overrun);
        }
        let known = std::mem::replace(&mut self.known, stats);
        for (now, before, counter, cause) in [
            (stats.commit_overrun, known.commit_overrun, &counters.commit_overrun, LossCause::CommitOverrun),
            (stats.dropped, known.dropped, &counters.dropped_events, LossCause::DroppedEvents),
        ] {
            let more = now.saturating_sub(before);
            if more > 0 {
                counter.add(more);
                hub.publish_loss(Loss::on(self.number, cause, Some(more), 0));
            }
        }
    }
}

/// One CPU of a reader.
#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) ring: Ring,
    pub(super) counters: Arc<BufferCounters>,
    pub(super) collector: Collector,
    /// Bytes of events read since its rate was last looked at.
    read_bytes: u64,
    /// Overruns until then.
    known_overrun: u64,
}

impl Cpu {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            counters: Arc::default(),
            collector: Collector::default(),
            read_bytes: 0,
            known_overrun: 0,
        }
    }

    /// Bytes that its buffer of `buffer_bytes` should have, going by what was read of it since this was last asked, `elapsed` ago.
    pub(super) fn wanted_bytes(&mut self, elapsed: Duration, buffer_bytes: u64) -> u64 {
        let overrun = self.counters.counts(self.ring.number).overrun;
        let has_lost = std::mem::replace(&mut self.known_overrun, overrun) < overrun;
        demand::wanted_bytes(std::mem::take(&mut self.read_bytes), elapsed, has_lost, buffer_bytes)
    }

    /// Reads pages and publishes what they hold.
    pub(super) fn read(
        &mut self,
        turn: &mut Turn<'_>,
        buffer: &mut [u8],
        instance: &Instance,
        depth: Depth,
        waiting: &Waiting,
    ) -> Found {
        let mut collector = std::mem::take(&mut self.collector);
        let mut found = Found { pages: 0, caught_up: false, broken: false };
        let mut bytes_read = 0;
        while depth != Depth::Pages || bytes_read < TURN_BYTES {
            let Some(bytes) = self.ring.read_page(buffer) else {
                found.caught_up = true;
                break;
            };
            found.pages += 1;
            bytes_read += bytes.len();
            let whole_bytes = bytes.len();
            let ring = &mut self.ring;
            let taken = turn.page(bytes, &mut collector, &mut |counted| ring.lost(counted, instance));
            let Some(taken) = taken else {
                found.broken = true;
                continue;
            };
            self.read_bytes += taken.data_bytes as u64;
            let is_far_enough = match depth {
                // Half a page is where the kernel is writing: come back when there is more, instead of chasing it.
                Depth::Pages => taken.data_bytes * 2 < whole_bytes,
                Depth::Until(time_ns) => taken.begun_ns > time_ns,
            };
            if is_far_enough {
                found.caught_up = true;
                break;
            }
            if depth == Depth::Pages && waiting.is_any() {
                break;
            }
        }
        turn.flush(&mut collector);
        self.collector = collector;
        found
    }
}
