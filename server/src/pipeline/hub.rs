//! The fan-out from readers to subscribers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use super::subscriber::Shared;
use super::{Batch, Loss, Subscription};
use crate::model::Glob;

/// Where the events of one subscriber went: read = delivered + queued + dropped + `not_selected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberCounts {
    /// The subscriber.
    pub id: u64,
    /// Since when.
    pub start: SystemTime,
    /// Events read since then.
    pub read: u64,
    /// Events handed to its connection.
    pub delivered: u64,
    /// Events in its queue.
    pub queued: u64,
    /// Events that its queue dropped.
    pub dropped: u64,
    /// Events of probes that it did not ask for.
    pub not_selected: u64,
}

#[derive(Debug, Default)]
struct Subscribers {
    list: Vec<Weak<Shared>>,
    closed: bool,
}

/// All subscribers. The subscription holds the strong reference, so that one that is dropped is gone.
#[derive(Debug, Default)]
pub struct Hub {
    subscribers: Mutex<Subscribers>,
    last_id: AtomicU64,
}

impl Hub {
    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the events of all probes whose name matches one of the globs, or of all when there are none. `capacity_events` bounds
    /// the queue.
    pub fn subscribe(&self, probes: Vec<Glob>, capacity_events: u64) -> Subscription {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = Arc::new(Shared::new(id, probes, capacity_events));
        let mut subscribers = self.subscribers();
        if subscribers.closed {
            shared.close();
        }
        subscribers.list.push(Arc::downgrade(&shared));
        Subscription { shared }
    }

    /// Hands a batch to everybody. Costs a reference count and a queue push for each subscriber.
    pub fn publish(&self, batch: Batch) {
        let batch = Arc::new(batch);
        self.each(|subscriber| subscriber.offer(&batch));
    }

    /// Tells everybody of a loss.
    pub fn publish_loss(&self, loss: Loss) {
        self.each(|subscriber| subscriber.offer_loss(loss));
    }

    /// Ends all subscriptions once they have delivered what is queued, and all future ones at once.
    pub fn close(&self) {
        self.subscribers().closed = true;
        self.each(Shared::close);
    }

    /// Where the events of every subscriber went.
    pub fn counts(&self) -> Vec<SubscriberCounts> {
        let mut all = Vec::new();
        self.each(|subscriber| {
            let counts = subscriber.counts();
            all.push(SubscriberCounts {
                id: subscriber.id,
                start: subscriber.start,
                read: counts.read,
                delivered: counts.delivered,
                queued: counts.queued,
                dropped: counts.dropped,
                not_selected: counts.not_selected,
            });
        });
        all
    }

    fn each(&self, mut visit: impl FnMut(&Shared)) {
        self.subscribers().list.retain(|subscriber| match subscriber.upgrade() {
            Some(subscriber) => {
                visit(&subscriber);
                true
            }
            None => false,
        });
    }
}
