//! Sequencer of announcements: several threads publish, and the queues get the results in the order
//! of the log.
//!
//! A publisher gets a [`Ticket`] together with its place in the log, and then filters and encodes
//! without a lock, in parallel with others. The results go to the queues in the order of the
//! tickets: a publisher whose turn has not come leaves its announcement here, and the publisher
//! whose turn it is hands over its own and all that directly follow it. So no thread waits for
//! another, up to [`WAITING_MAX`] announcements.
//!
//! Invariants: every ticket is used exactly once (a dropped one hands over nothing), and one thread
//! at a time fills the queues, in the order of the tickets.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Loss;
use super::item::Mark;
use super::subscriber::{Offer, Subscriber};

/// Announcements that may wait for an earlier one. Beyond that their publishers wait, so that one
/// thread that is held up does not make the others fill the memory.
const WAITING_MAX: u64 = 64;

/// The subscribers at the time of a publication.
pub(super) type Audience = Arc<[Arc<Subscriber>]>;

/// One publication, handed over as a whole.
#[derive(Debug)]
pub(super) enum Announcement {
    /// The selections of a batch.
    Batch(Vec<Offer>),
    /// A gap, for all of these subscribers.
    Loss(Audience, Loss),
    /// A watermark for these subscribers, in nanoseconds of the trace clock.
    Watermark(Audience, u64),
    /// A mark for one subscriber.
    Mark(Arc<Subscriber>, Mark),
    /// These subscriptions end.
    Close(Audience),
    /// Nothing: the ticket was dropped.
    Nothing,
}

impl Announcement {
    fn hand_over(self) {
        match self {
            Self::Batch(offers) => offers.into_iter().for_each(Offer::hand_over),
            Self::Loss(to, loss) => to.iter().for_each(|subscriber| subscriber.take_loss(loss)),
            Self::Watermark(to, time_ns) => {
                to.iter().for_each(|subscriber| subscriber.take_watermark(time_ns));
            }
            Self::Mark(to, mark) => to.take_mark(mark),
            Self::Close(to) => to.iter().for_each(|subscriber| subscriber.close()),
            Self::Nothing => {}
        }
    }
}

#[derive(Debug, Default)]
struct Order {
    /// The ticket whose turn it is.
    next: u64,
    /// Announcements of later tickets.
    waiting: BTreeMap<u64, Announcement>,
    /// Number of publishers that wait until there is room for their announcement.
    blocked: usize,
}

/// Puts announcements in order.
#[derive(Debug, Default)]
pub(super) struct Sequencer {
    order: Mutex<Order>,
    went_on: Condvar,
}

/// A place in the order. If it is dropped without an announcement, the sequencer skips it.
#[derive(Debug)]
#[must_use]
pub(super) struct Ticket<'a> {
    number: u64,
    sequencer: &'a Sequencer,
    is_used: bool,
}

impl Sequencer {
    /// The ticket with a number. The caller assigns the numbers from 0 without a gap, each once,
    /// under its own lock.
    pub(super) const fn ticket(&self, number: u64) -> Ticket<'_> {
        Ticket { number, sequencer: self, is_used: false }
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, number: u64, announcement: Announcement) {
        let mut order = self.lock();
        while number.saturating_sub(order.next) >= WAITING_MAX {
            order.blocked += 1;
            order = self.went_on.wait(order).unwrap_or_else(PoisonError::into_inner);
            order.blocked -= 1;
        }
        if number != order.next {
            order.waiting.insert(number, announcement);
            return;
        }
        let mut announcement = Some(announcement);
        while let Some(next) = announcement {
            next.hand_over();
            order.next += 1;
            let number = order.next;
            announcement = order.waiting.remove(&number);
        }
        if order.blocked > 0 {
            self.went_on.notify_all();
        }
    }
}

impl Ticket<'_> {
    /// Hands over an announcement as soon as all earlier tickets have been used.
    pub(super) fn announce(mut self, announcement: Announcement) {
        self.is_used = true;
        self.sequencer.announce(self.number, announcement);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.sequencer.announce(self.number, Announcement::Nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::View;
    use super::super::{Item, LossCause, Subscription, samples};
    use super::*;

    /// A gap of this CPU: it stays apart from those of all others.
    fn gap(to: &Arc<Subscriber>, cpu: u32) -> Announcement {
        Announcement::Loss(Arc::from([Arc::clone(to)]), Loss::on(cpu, LossCause::Overrun, None, 0))
    }

    fn gaps(subscription: &Subscription) -> Vec<u32> {
        let mut cpus = Vec::new();
        while let Some(Ok(Item::Loss(loss))) = futures_util::FutureExt::now_or_never(subscription.next()) {
            cpus.extend(loss.cpu);
        }
        cpus
    }

    #[test]
    fn what_comes_early_waits_and_what_never_comes_is_passed_over() {
        let sequencer = Sequencer::default();
        let subscription = samples::hub().subscribe(View::default());
        let to = &subscription.subscriber;
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|number| sequencer.ticket(number));
        third.announce(gap(to, 2));
        second.announce(gap(to, 1));
        assert_eq!(gaps(&subscription), [0; 0]);
        drop(first);
        assert_eq!(gaps(&subscription), [1, 2]);
        fourth.announce(gap(to, 3));
        assert_eq!(gaps(&subscription), [3]);
    }

    #[test]
    fn publishers_wait_once_too_much_waits_for_one() {
        let sequencer = Sequencer::default();
        let subscription = samples::hub().subscribe(View::default());
        let first = sequencer.ticket(0);
        let last = u32::try_from(3 * WAITING_MAX).unwrap();
        std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                for number in 1..=last {
                    sequencer.ticket(number.into()).announce(gap(&subscription.subscriber, number));
                }
            });
            while sequencer.lock().blocked == 0 {
                assert!(!publisher.is_finished());
                std::thread::yield_now();
            }
            assert_eq!(sequencer.lock().waiting.len() as u64, WAITING_MAX - 1);
            drop(first);
        });
        assert_eq!(gaps(&subscription), (1..=last).collect::<Vec<_>>());
    }
}
