//! The ring buffer of one CPU, as its reader sees it.
//!
//! Owns the open file and the account of what the kernel lost.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use super::collector::Collector;
use super::counters::BufferCounters;
use super::turn::Turn;
use super::{Hub, Loss, LossCause};
use crate::tracefs::Instance;

/// Pages that one CPU may have in one turn, so that a busy one does not keep the others waiting.
const TURN_PAGES: usize = 256;

/// How far a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Until the page that the kernel is still writing to.
    Pages,
    /// Until nothing is left.
    Everything,
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
    /// Overruns told since the buffer's own counters were at zero.
    told_overruns: u64,
    /// A page had no room for its number of lost events: from there on the buffer's counter is asked, since later numbers on pages can
    /// overlap with what was told.
    ask_for_overruns: bool,
    /// Refused events counted since the buffer's own counters were at zero.
    known_refused: u64,
}

impl Cpu {
    pub(super) fn new(number: u32, file: File) -> Self {
        Self {
            number,
            file,
            counters: Arc::default(),
            collector: Collector::default(),
            told_overruns: 0,
            ask_for_overruns: false,
            known_refused: 0,
        }
    }

    /// The kernel has emptied the buffer and set its counters to zero.
    pub(super) const fn was_reset(&mut self) {
        (self.told_overruns, self.known_refused) = (0, 0);
    }

    /// How many events a page's loss flag stands for. `counted` is the number on the page, where there was room for it.
    fn lost(&mut self, counted: Option<u64>, instance: &Instance) -> Option<u64> {
        self.ask_for_overruns |= counted.is_none();
        if self.ask_for_overruns {
            return self.untold_overruns(instance);
        }
        self.told_overruns += counted.unwrap_or(0);
        counted
    }

    /// How many events were overwritten and not told yet. Absent when the buffer's counter can not be read.
    fn untold_overruns(&mut self, instance: &Instance) -> Option<u64> {
        let stats = instance.stats(self.number).ok()?;
        let untold = stats.overrun.saturating_sub(self.told_overruns);
        self.told_overruns = stats.overrun;
        Some(untold)
    }

    /// Counts events that the buffer refused, and notices when somebody has emptied it.
    pub(super) fn look_at_stats(&mut self, instance: &Instance, hub: &Hub) {
        let Ok(stats) = instance.stats(self.number) else { return };
        let refused = stats.commit_overrun + stats.dropped;
        if stats.overrun < self.told_overruns || refused < self.known_refused {
            tracing::warn!(cpu = self.number, "somebody has emptied the ring buffer");
            self.was_reset();
            hub.publish_loss(Loss::on(self.number, LossCause::Wiped, None, 0));
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
        while depth == Depth::Everything || found.pages < TURN_PAGES {
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
            let data_bytes = turn.page(bytes, &mut collector, &mut |counted| self.lost(counted, instance));
            match data_bytes {
                None => found.broken = true,
                // Half a page is where the kernel is writing: come back when there is more, instead of chasing it.
                Some(bytes) if depth == Depth::Pages && bytes * 2 < buffer.len() => {
                    found.caught_up = true;
                    break;
                }
                Some(_) => {}
            }
        }
        turn.flush(&mut collector);
        self.collector = collector;
        found
    }
}
