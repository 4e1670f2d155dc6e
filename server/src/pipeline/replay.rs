//! Selecting from the history for a subscription.
//!
//! Owns the state that a subscriber's selection has while entries of earlier times go through it: schemas of another run of the daemon have
//! the numbers of this run's, so that it cannot be the state of the present.

use super::hub::Encodings;
use super::selection::Selector;
use super::{Delivery, Draft, Loss, LossCause, Subscription};
use crate::wire::MessagePool;

/// A subscriber's selection from the history.
#[derive(Debug, Default)]
pub struct Replay {
    selector: Selector,
    pool: MessagePool,
}

/// What is left out of the first entries, since entries are found whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// Events before this time, in nanoseconds since 1970.
    pub since_wall_ns: Option<u64>,
    /// So many events more.
    pub skip: u64,
}

/// What becomes of an entry of the history.
#[derive(Debug)]
pub struct Replayed {
    /// What was selected of it. Absent when it is nothing.
    pub delivery: Option<Delivery>,
    /// The events behind that for which the limit on the rate left no room.
    pub limited: Option<Loss>,
}

impl Begin {
    /// Whether nothing is left out any more.
    pub const fn is_done(&self) -> bool {
        self.since_wall_ns.is_none() && self.skip == 0
    }
}

impl Replay {
    /// Schemas have other meanings from here on.
    pub fn forget(&mut self) {
        self.selector.forget();
    }
}

impl Subscription {
    /// Selects from an entry of the history as from one of the present: what is wanted of it, and what the limit on the rate holds back. What
    /// comes before the beginning is left out first: it takes part in neither sampling nor that limit.
    pub fn replay(
        &self,
        replay: &mut Replay,
        draft: &Draft<'_>,
        sequence: u64,
        begin: &mut Begin,
    ) -> Replayed {
        let view = &self.shared.view;
        let mut selected = replay.selector.choose(view, self.hub.binder(), draft);
        if let Some(since_wall_ns) = begin.since_wall_ns {
            let begin_ns = since_wall_ns.saturating_add_signed(draft.clock.wall_offset_ns.saturating_neg());
            selected.begin_at(draft, begin_ns);
        }
        if begin.skip > 0 {
            selected.skip(draft, &mut begin.skip);
        }
        replay.selector.thin_out(view, draft, &mut selected);
        let mut encodings = Encodings::new(&mut replay.pool);
        let delivery = self.shared.delivery(draft, &selected, sequence, &mut encodings);
        self.count_replayed(delivery.as_ref().map_or(0, |delivery| delivery.events));
        let limited = (selected.limited > 0)
            .then(|| Loss::on(draft.cpu, LossCause::RateLimit, Some(selected.limited), 0));
        if limited.is_some() {
            self.count_loss(0);
        }
        Replayed { delivery, limited }
    }

    /// How many events of an entry the subscriber wants, sampling and its limit on the rate aside.
    pub fn wanted_of(&self, replay: &mut Replay, draft: &Draft<'_>) -> u64 {
        let selected = replay.selector.choose(&self.shared.view, self.hub.binder(), draft);
        selected.events
    }

    /// Counts events of the history that are delivered.
    pub fn count_replayed(&self, events: u64) {
        self.count(|counts| counts.replayed += events);
    }

    /// Counts the news of a loss in the history, and the events that have expired with it.
    pub fn count_loss(&self, expired: u64) {
        self.count(|counts| {
            counts.expired += expired;
            counts.loss_records += 1;
        });
    }
}
