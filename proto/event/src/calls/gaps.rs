//! Gaps in the events of a host, as far as calls must not be joined over them.

use std::collections::{BTreeMap, HashMap};

use crate::batch::Batch;
use crate::loss::Loss;

/// Gaps that are ahead of the events, at most. Of more, one is made.
const MOST_AHEAD: usize = 1 << 12;

/// How much later an event can arrive than others of its time: the readers of the CPUs rest on their own.
const DISORDER_NS: u64 = 1_000_000_000;

/// The key of a gap of no certain CPU, behind those of all CPUs.
const ANY_CPU: u64 = u64::MAX;

/// Where an end of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its other end is to be found.
    Clear,
    /// In a gap, at which all open calls end, or after its end has been said.
    InGap,
    /// Behind a later event.
    Late,
}

/// Gaps, and how far the events are.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// Time of the last event of each CPU that has arrived, in the order of time or not yet.
    arrived: HashMap<u32, u64>,
    /// Gaps that the events have not reached: after this time, on this CPU, until before the second time. Absent: until
    /// the next event of the CPU.
    ahead: BTreeMap<(u64, u64), Option<u64>>,
    /// Events before this may lack their other ends.
    until_ns: u64,
    /// CPUs of which no event has followed their gap.
    open_ended: Vec<u64>,
    /// Every event that had arrived when the last open-ended gap was added is at most of this time.
    noticed_after_ns: u64,
    /// When all open-ended gaps are over: an event has come that arrived after them, and nothing from before is late.
    over_at_ns: Option<u64>,
    last_ns: u64,
    /// Whether events were lost until now.
    pub(super) has_any: bool,
}

impl Gaps {
    /// A batch has arrived, whose events come later, in the order of time.
    pub(super) fn arrived(&mut self, batch: &Batch) {
        let last_ns = batch.groups().iter().filter(|group| group.rows() > 0);
        if let Some(last_ns) = last_ns.map(|group| group.timestamp_ns(group.rows() - 1)).max() {
            self.arrived_at(batch.cpu(), last_ns);
        }
    }

    /// An event of this CPU has arrived, at this time.
    pub(super) fn arrived_at(&mut self, cpu: u32, timestamp_ns: u64) {
        let known = self.arrived.entry(cpu).or_default();
        *known = timestamp_ns.max(*known);
    }

    /// Events are lost: after the last of the CPU that has arrived, or else after the last one at all.
    pub(super) fn add(&mut self, loss: &Loss) {
        self.has_any = true;
        if loss.before_ns.is_none() {
            self.add_open_ended(loss);
        }
        let after_ns = loss.cpu.and_then(|cpu| self.arrived.get(&cpu)).copied().unwrap_or(self.last_ns);
        let key = (after_ns.max(self.last_ns), loss.cpu.map_or(ANY_CPU, u64::from));
        let before = self.ahead.entry(key).or_insert(loss.before_ns);
        *before = before.zip(loss.before_ns).map(|(one, other)| one.max(other));
        if self.ahead.len() > MOST_AHEAD {
            let first = self.ahead.keys().next().map_or(self.last_ns, |key| key.0);
            let last = self.ahead.values().copied().reduce(|one, other| Some(one?.max(other?))).flatten();
            self.ahead = BTreeMap::from([((first, ANY_CPU), last)]);
        }
    }

    /// An open-ended gap ends when its CPU has an event again. A CPU can be quiet without end: the gap is also over a
    /// while after the first event that arrives after it. That time is not known of several gaps that were reported as
    /// one, which have the place of the first, nor without the arrivals.
    fn add_open_ended(&mut self, loss: &Loss) {
        if self.ahead.is_empty() && self.open_ended.is_empty() {
            self.noticed_after_ns = 0;
        }
        let arrived = self.arrived.values().copied().max().filter(|_| loss.gaps <= 1);
        self.noticed_after_ns = self.noticed_after_ns.max(arrived.unwrap_or(u64::MAX));
        self.over_at_ns = None;
    }

    /// Whether a gap is ahead that no event has reached.
    pub(super) fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The next event. The first value is whether a gap has begun since the last one.
    pub(super) fn pass(&mut self, timestamp_ns: u64, cpu: u32) -> (bool, Place) {
        if timestamp_ns < self.last_ns {
            self.has_any = true;
            return (false, Place::Late);
        }
        self.last_ns = timestamp_ns;
        // Nearly always there are none.
        if self.ahead.is_empty() && self.open_ended.is_empty() && timestamp_ns >= self.until_ns {
            return (false, Place::Clear);
        }
        let mut begins = false;
        while let Some(gap) = self.ahead.first_entry().filter(|gap| gap.key().0 < timestamp_ns) {
            let ((_, cpu), before) = gap.remove_entry();
            begins = true;
            match before {
                Some(before_ns) => self.until_ns = self.until_ns.max(before_ns),
                None => self.open_ended.push(cpu),
            }
        }
        self.open_ended.retain(|open| *open != u64::from(cpu) && *open != ANY_CPU);
        if timestamp_ns > self.noticed_after_ns && !self.open_ended.is_empty() {
            let over_at_ns = *self.over_at_ns.get_or_insert(timestamp_ns.saturating_add(DISORDER_NS));
            if timestamp_ns >= over_at_ns {
                self.open_ended.clear();
            }
        }
        let is_in_gap = timestamp_ns < self.until_ns || !self.open_ended.is_empty();
        (begins, if is_in_gap { Place::InGap } else { Place::Clear })
    }
}
