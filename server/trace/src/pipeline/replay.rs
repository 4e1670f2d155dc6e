//! Replay: a subscription's selection from the history.
//!
//! Owns the state of a subscriber's selection while it reads entries of the history. This is not
//! the state for new events: schemas of an earlier run of the daemon have the same numbers as those
//! of this run. Never reads the disk.

use super::encodings::Encodings;
use super::selection::Selector;
use super::subscriber::limited;
use super::{Delivery, Draft, Loss, Subscription};
use crate::wire::MessagePool;

/// A subscriber's selection from the history.
#[derive(Debug, Default)]
pub struct Replay {
    selector: Selector,
    pool: MessagePool,
}

/// The events to leave out of the first entries, since the history finds whole entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStart {
    /// Events before this time.
    pub since: Option<Since>,
    /// Number of events to leave out after that.
    pub skip: u64,
}

/// The time of day from which events are delivered.
///
/// The time of day of a time stamp is measured anew for each entry, and never exactly, and the wall
/// clock can be set. So the first entry that reaches the time says which time stamp it is, and for
/// the rest of that run time stamps are compared: nothing that happened later is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The time of day, in nanoseconds since 1970.
    wall_ns: u64,
    /// The time stamp, in nanoseconds of the trace clock. Absent until an entry has reached it.
    found_ns: Option<u64>,
}

impl Since {
    /// From this time of day on, in nanoseconds since 1970.
    pub const fn wall(wall_ns: u64) -> Self {
        Self { wall_ns, found_ns: None }
    }

    /// The time stamp from which events of an entry are delivered, and whether the entry reaches
    /// it. The entry ends at `last_ns`, and `wall_offset_ns` makes times of day of its time stamps.
    pub const fn reach(&mut self, last_ns: u64, wall_offset_ns: i64) -> (u64, bool) {
        let begin_ns = match self.found_ns {
            Some(found_ns) => found_ns,
            None => self.wall_ns.saturating_add_signed(wall_offset_ns.saturating_neg()),
        };
        let is_reached = last_ns >= begin_ns;
        if is_reached {
            self.found_ns = Some(begin_ns);
        }
        (begin_ns, is_reached)
    }

    /// Whether an item is from before that time of day, by the clock mapping that was measured with
    /// it.
    pub(crate) const fn is_after(self, at_ns: u64, wall_offset_ns: i64) -> bool {
        at_ns.saturating_add_signed(wall_offset_ns) < self.wall_ns
    }

    /// Forgets the time stamp: another run begins, whose time stamps can be of another boot.
    pub(crate) const fn forget_time_stamp(&mut self) {
        self.found_ns = None;
    }
}

impl ReplayStart {
    /// Whether no more events are to be left out.
    pub const fn is_done(&self) -> bool {
        self.since.is_none() && self.skip == 0
    }
}

impl Replay {
    /// Forgets the bound filters: schema numbers have other meanings from here on.
    pub fn forget(&self) {
        self.selector.forget();
    }
}

impl Subscription {
    /// Selects from an entry of the history as from a new one: the events wanted, and those over
    /// the rate limit. Events before the beginning are left out first: they take part in neither
    /// sampling nor that limit. The entry ends at `last_ns`.
    pub fn replay(
        &self,
        replay: &Replay,
        draft: &Draft,
        (sequence, last_ns): (u64, u64),
        begin: &mut ReplayStart,
    ) -> (Option<Delivery>, Option<Loss>) {
        let view = &self.subscriber.view;
        let mut selected = replay.selector.choose(view, self.hub.binder(), draft);
        if let Some(since) = &mut begin.since {
            let (begin_ns, _) = since.reach(last_ns, draft.clock.wall_offset_ns);
            selected.begin_at(draft, begin_ns);
        }
        if begin.skip > 0 {
            selected.skip(draft, &mut begin.skip);
        }
        replay.selector.thin_out(view, draft, &mut selected);
        let mut encodings = Encodings::new(&replay.pool);
        let delivery = self.subscriber.delivery(draft, &selected, sequence, &mut encodings);
        self.count_replayed(delivery.as_ref().map_or(0, |delivery| delivery.events));
        let limited = limited(draft, &selected);
        if limited.is_some() {
            self.count_loss(0);
        }
        (delivery, limited)
    }

    /// How many events of an entry the subscriber selects, before sampling and its rate limit.
    pub(crate) fn wanted_of(&self, replay: &Replay, draft: &Draft) -> u64 {
        let selected = replay.selector.choose(&self.subscriber.view, self.hub.binder(), draft);
        selected.events
    }

    /// Counts events of the history that are delivered.
    pub(crate) fn count_replayed(&self, events: u64) {
        self.count(|counts| counts.replayed += events);
    }

    /// Counts a loss reported from the history, and the events that have expired with it.
    pub(crate) fn count_loss(&self, expired: u64) {
        self.count(|counts| {
            counts.expired += expired;
            counts.loss_records += 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_later_is_not_left_out_though_the_clocks_were_measured_otherwise() {
        let mut since = Since::wall(1_000_050);
        assert_eq!(since.reach(40, 1_000_000), (50, false));
        assert_eq!(since.reach(60, 1_000_000), (50, true));
        // The next measurement would place these events before the requested time.
        assert_eq!(since.reach(70, 999_900), (50, true));
        // Another boot has other time stamps.
        since.forget_time_stamp();
        assert_eq!(since.reach(5, 1_000_049), (1, true));
        assert!(since.is_after(49, 1_000_000) && !since.is_after(50, 1_000_000));
        assert_eq!(Since::wall(0).reach(0, i64::MIN), (u64::MAX >> 1, false));
        assert_eq!(Since::wall(u64::MAX).reach(u64::MAX, -1), (u64::MAX, true));
    }
}
