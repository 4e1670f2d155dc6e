//! Order of events over all hosts.
//!
//! Owns the choice of the next event. It depends only on what hosts sent and which of them were
//! released, never on connections or on the time of arrival.

use std::collections::BTreeSet;

use super::lane::{Frontier, Lane};
use crate::event::Row;

/// Next step of the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This host has the next event.
    Event {
        host: usize,
        /// Its time on the local clock.
        corrected_ns: i64,
        /// Later events were delivered before it.
        late: bool,
    },
    /// The next event may be one of this host, whose progress is not far enough.
    WaitFor(usize),
    /// No event is buffered, and no host is waited for.
    Nothing,
}

/// Buffered events of all hosts.
pub(super) struct Order {
    lanes: Vec<Lane>,
    /// Progress of each host that is waited for or has events, the earliest first. Of two hosts at
    /// the same time, the one with the lower number.
    frontiers: BTreeSet<(i64, usize)>,
    /// The same by host.
    places: Vec<Option<i64>>,
    /// The host of the last event.
    given: Option<usize>,
    last_ns: i64,
}

impl Order {
    pub(super) fn new(hosts: usize, limit_events: usize) -> Self {
        let mut order = Self {
            lanes: (0..hosts).map(|_| Lane::new(limit_events)).collect(),
            frontiers: BTreeSet::new(),
            places: vec![None; hosts],
            given: None,
            last_ns: i64::MIN,
        };
        for host in 0..hosts {
            order.look_at(host);
        }
        order
    }

    /// Changes a host's lane.
    pub(super) fn change(&mut self, host: usize, change: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.lanes.get_mut(host) {
            change(lane);
            self.look_at(host);
        }
    }

    pub(super) fn lane(&self, host: usize) -> Option<&Lane> {
        self.lanes.get(host)
    }

    /// The next step. It stays the same until a lane changes or an event is taken.
    pub(super) fn next(&mut self) -> Next {
        if let Some(host) = self.given.take() {
            self.look_at(host);
        }
        let Some((at_ns, host)) = self.frontiers.first().copied() else { return Next::Nothing };
        let lane = self.lanes.get_mut(host);
        if lane.is_some_and(|lane| matches!(lane.frontier(), Frontier::Event(_))) {
            Next::Event { host, corrected_ns: at_ns, late: at_ns < self.last_ns }
        } else {
            Next::WaitFor(host)
        }
    }

    /// Takes the event that [`Order::next`] has chosen.
    pub(super) fn take(&mut self, host: usize) -> Option<Row<'_>> {
        self.given = Some(host);
        if let Some(Some(at_ns)) = self.places.get(host) {
            self.last_ns = self.last_ns.max(*at_ns);
        }
        self.lanes.get_mut(host)?.next_row()
    }

    fn look_at(&mut self, host: usize) {
        let (Some(lane), Some(place)) = (self.lanes.get_mut(host), self.places.get_mut(host)) else { return };
        let now = match lane.frontier() {
            Frontier::Event(at_ns) | Frontier::Silent(at_ns) => Some(at_ns),
            Frontier::Idle => None,
        };
        if let Some(at_ns) = *place {
            self.frontiers.remove(&(at_ns, host));
        }
        self.frontiers.extend(now.map(|at_ns| (at_ns, host)));
        *place = now;
    }
}

#[cfg(test)]
mod tests;
