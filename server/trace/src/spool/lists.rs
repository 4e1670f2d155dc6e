//! Lists of runs on disk: how much of each has expired, and which of them ended in order.
//!
//! Owns both lists and their form: lines of text, and the checksum of the lines. The spool writes the list of expired
//! events before it removes segments, so that it can complete a removal that was interrupted. The list of runs that
//! ended in order tells a run whose end was damaged later from one that did not end in order, whose last segment looks
//! the same. Never removes a file itself.
//!
//! ```text
//! EVENTS
//! BOOT RUN LAST_SEGMENT UP_TO LAST_WALL_NS ENDED_IN_ORDER      for each run of the daemon, oldest first
//!
//! RUN EVENTS                                                   for each run that ended in order
//! ```
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::BootId;
use super::index::Index;
use super::segment::SegmentFacts;

/// How many runs with expired events the list keeps. Of older runs it keeps only the sum of events.
const MAX_EPOCHS: usize = 64;

/// How many runs that ended in order are kept: the last ones.
const MAX_ENDED: usize = 1024;

/// Expired part of one run of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredEpoch {
    /// The boot.
    pub boot_id: BootId,
    /// The run.
    pub epoch: u64,
    /// Number of the last segment that was removed. Several segments can end with the same event.
    pub last_segment: u64,
    /// Events before this one have expired.
    pub up_to: u64,
    /// Time of the last of them, in nanoseconds since 1970.
    pub last_wall_ns: u64,
    /// Whether the last removed segment was the last one of the run, and the run had written all
    /// its events.
    pub ended_cleanly: bool,
}

/// Expired part of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Events that were stored and have expired.
    pub events: u64,
    /// By run, oldest first.
    pub epochs: Vec<ExpiredEpoch>,
}

impl Expired {
    /// Adds the oldest segment, which is about to be removed.
    pub(super) fn add(&mut self, facts: &SegmentFacts) {
        self.events = self.events.saturating_add(facts.events);
        let gone = ExpiredEpoch {
            boot_id: facts.header.boot_id,
            epoch: facts.header.id.epoch,
            last_segment: facts.header.id.number,
            up_to: facts.next_sequence,
            last_wall_ns: facts.last_wall_ns,
            ended_cleanly: facts.ends_epoch,
        };
        match self.epochs.last_mut().filter(|last| last.epoch == gone.epoch) {
            Some(last) => {
                *last = ExpiredEpoch { last_wall_ns: last.last_wall_ns.max(gone.last_wall_ns), ..gone };
            }
            None => self.epochs.push(gone),
        }
        if self.epochs.len() > MAX_EPOCHS {
            self.epochs.remove(0);
        }
    }

    /// The expired part of a run.
    pub(super) fn epoch(&self, epoch: u64) -> Option<&ExpiredEpoch> {
        self.epochs.iter().find(|gone| gone.epoch == epoch)
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut lines = format!("{}\n", self.events);
        for gone in &self.epochs {
            let ExpiredEpoch { boot_id, epoch, last_segment, up_to, last_wall_ns, ended_cleanly } = gone;
            // Writing to a string cannot fail.
            writeln!(lines, "{boot_id} {epoch} {last_segment} {up_to} {last_wall_ns} {ended_cleanly}").ok();
        }
        encode(lines)
    }

    /// Decodes the list. `None` if it is not one, or if its runs are too many or not in order.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = decode(bytes)?.lines();
        let events = lines.next()?.parse().ok()?;
        let epochs = lines.map(ExpiredEpoch::of_line).collect::<Option<Vec<_>>>()?;
        let are_in_order = epochs.is_sorted_by(|one, next| one.epoch < next.epoch);
        (are_in_order && epochs.len() <= MAX_EPOCHS).then_some(Self { events, epochs })
    }
}

impl ExpiredEpoch {
    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let gone = Self {
            boot_id: words.next()?.parse().ok()?,
            epoch: words.next()?.parse().ok()?,
            last_segment: words.next()?.parse().ok()?,
            up_to: words.next()?.parse().ok()?,
            last_wall_ns: words.next()?.parse().ok()?,
            ended_cleanly: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(gone)
    }
}

/// Encodes the lines of a list.
fn encode(mut lines: String) -> Vec<u8> {
    let checksum = crc32fast::hash(lines.as_bytes());
    // Writing to a string cannot fail.
    writeln!(lines, "{checksum:08x}").ok();
    lines.into_bytes()
}

/// Decodes the lines of a list. `None` if it is not one.
fn decode(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (lines, checksum) = text.split_at(text.rfind('\n').map_or(0, |end| end.saturating_add(1)));
    let is_good = u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(lines.as_bytes()));
    is_good.then_some(lines)
}

/// Encodes the runs that ended in order, of which the index still has something.
pub(super) fn encode_ended(index: &Index) -> Vec<u8> {
    let is_there =
        |run: u64| index.of_epoch(run).next().is_some() || index.set_aside_of(run).next().is_some();
    let runs: Vec<_> = index.ended.iter().filter(|(run, _)| is_there(**run)).collect();
    let mut lines = String::new();
    for (run, events) in runs.iter().rev().take(MAX_ENDED) {
        writeln!(lines, "{run} {events}").ok();
    }
    encode(lines)
}

/// Decodes the runs that ended in order, with how many events each of them had. `None` if it is no such list.
pub(super) fn decode_ended(bytes: &[u8]) -> Option<BTreeMap<u64, u64>> {
    let run = |line: &str| {
        let (run, events) = line.split_once(' ')?;
        Some((run.parse().ok()?, events.parse().ok()?))
    };
    decode(bytes)?.lines().map(run).collect()
}
