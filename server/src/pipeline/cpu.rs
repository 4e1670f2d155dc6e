//! The ring buffer of one CPU, as its reader sees it.
//!
//! Owns the open file and the account of what the kernel lost.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use super::collector::Collector;
use super::counters::BufferCounters;
use super::turn::Turn;
use super::{Hub, Loss, LossCause};
use crate::tracefs::{BufferStats, Instance};

/// Pages that one CPU may have in one turn, so that a busy one keeps neither the others waiting nor whoever asks the reader for something.
const TURN_PAGES: usize = 64;

/// How far a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Until the page that the kernel is still writing to.
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

/// One CPU of a reader.
#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) number: u32,
    pub(super) file: File,
    pub(super) counters: Arc<BufferCounters>,
    pub(super) collector: Collector,
    /// Overruns told since the buffer's own counters were at zero. Absent as long as an earlier run of the daemon has told some of them, nobody
    /// knows how many.
    told_overruns: Option<u64>,
    /// A page had no room for its number of lost events: from there on the buffer's counter is asked, since later numbers on pages can
    /// overlap with what was told.
    ask_for_overruns: bool,
    /// Refused events counted since the buffer's own counters were at zero.
    known_refused: u64,
}

impl Cpu {
    /// `before` is what the buffer counted before anything is read of it here: what an earlier run of the daemon has lost is none of ours.
    pub(super) fn new(number: u32, file: File, before: &BufferStats) -> Self {
        Self {
            number,
            file,
            counters: Arc::default(),
            collector: Collector::default(),
            told_overruns: (before.overrun == 0).then_some(0),
            ask_for_overruns: false,
            known_refused: before.refused(),
        }
    }

    /// The kernel has emptied the buffer and set its counters to zero.
    pub(super) const fn was_reset(&mut self) {
        (self.told_overruns, self.known_refused) = (Some(0), 0);
    }

    /// How many events a page's loss flag stands for; absent for some. `counted` is the number on the page, where there was room for it.
    fn lost(&mut self, counted: Option<u64>, instance: &Instance) -> Option<u64> {
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

    /// Counts events that the buffer refused, and notices when somebody has emptied it.
    pub(super) fn look_at_stats(&mut self, instance: &Instance, hub: &Hub) {
        let Ok(stats) = instance.stats(self.number) else { return };
        let refused = stats.refused();
        if stats.overrun < self.told_overruns.unwrap_or(0) || refused < self.known_refused {
            tracing::warn!(cpu = self.number, "somebody has emptied the ring buffer");
            self.was_reset();
            hub.publish_loss(Loss::on(self.number, LossCause::Wiped, None, 0));
        }
        // Nothing unread is left, so that no overrun is left to be told either.
        if self.told_overruns.is_none() && stats.entries == 0 {
            self.told_overruns = Some(stats.overrun);
        }
        let more = refused.saturating_sub(self.known_refused);
        if more > 0 {
            self.counters.refused.add(more);
            self.known_refused = refused;
            hub.publish_loss(Loss::on(self.number, LossCause::Refused, Some(more), 0));
        }
    }

    /// Reads pages and publishes what they hold.
    pub(super) fn read(
        &mut self,
        turn: &mut Turn<'_>,
        buffer: &mut [u8],
        instance: &Instance,
        depth: Depth,
    ) -> Found {
        let mut collector = std::mem::take(&mut self.collector);
        let mut found = Found { pages: 0, caught_up: false, broken: false };
        // The kernel may answer 0 without being at an end, when a page is swapped at that very moment.
        let mut empty_answers = 0;
        while depth != Depth::Pages || found.pages < TURN_PAGES {
            let length = match self.file.read(buffer) {
                Ok(0) if empty_answers < 3 => {
                    empty_answers += 1;
                    continue;
                }
                Ok(length @ 1..) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    tracing::error!(cpu = self.number, %error, "can not read events");
                    break;
                }
                Ok(0) | Err(_) => {
                    found.caught_up = true;
                    break;
                }
            };
            found.pages += 1;
            let bytes = buffer.get(..length).unwrap_or_default();
            let taken = turn.page(bytes, &mut collector, &mut |counted| self.lost(counted, instance));
            let Some(taken) = taken else {
                found.broken = true;
                continue;
            };
            let is_far_enough = match depth {
                // Half a page is where the kernel is writing: come back when there is more, instead of chasing it.
                Depth::Pages => taken.data_bytes * 2 < buffer.len(),
                Depth::Until(time_ns) => taken.begun_ns > time_ns,
            };
            if is_far_enough {
                found.caught_up = true;
                break;
            }
        }
        turn.flush(&mut collector);
        self.collector = collector;
        found
    }
}
