//! Subscription: the publishing thread's end and the client's end.
//!
//! Owns the way of a batch into the queue, and the wake-up of the client. Never knows of requests
//! or connections.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tokio::sync::Notify;

use super::counters::Span;
use super::encodings::Encodings;
use super::item::{Delivery, Item, Mark};
use super::queue::{Queue, QueueCounts, QueueMemory};
use super::selection::{Binder, Selected, SelectionTerms, Selector, lock};
use super::view::{Order, View};
use super::{Draft, Hub, Loss, LossCause};

/// State that hub and subscription share.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) id: u64,
    pub(super) start: SystemTime,
    pub(super) view: View,
    /// Whether it is the daemon's own, which the ledger does not list.
    pub(super) is_own: bool,
    selector: Selector,
    queue: Mutex<Queue>,
    arrived: Notify,
}

/// The part of a batch for one subscriber, before it is in the queue.
#[derive(Debug)]
pub(super) struct Offer {
    to: Arc<Subscriber>,
    /// Events of the batch.
    events: u64,
    terms: SelectionTerms,
    delivery: Option<Delivery>,
    /// The events over its rate limit.
    limited: Option<Loss>,
    /// The log position at which the batch ends.
    end: u64,
}

impl Subscriber {
    pub(super) fn new(id: u64, view: View, is_own: bool, memory: Arc<QueueMemory>) -> Self {
        Self {
            id,
            start: SystemTime::now(),
            is_own,
            selector: Selector::default(),
            queue: Mutex::new(Queue::new(view.limits, memory)),
            arrived: Notify::new(),
            view,
        }
    }

    pub(super) fn counts(&self) -> QueueCounts {
        lock(&self.queue).counts
    }

    /// Selects the events that the subscriber wants of a batch, and encodes them. `None` if its
    /// queue is closed.
    pub(super) fn prepare(
        self: &Arc<Self>,
        binder: &Binder,
        draft: &Draft,
        sequence: u64,
        encodings: &mut Encodings<'_>,
    ) -> Option<Offer> {
        if lock(&self.queue).closed {
            return None;
        }
        let selected = self.selector.select(&self.view, binder, draft);
        Some(Offer {
            to: Arc::clone(self),
            events: draft.events(),
            terms: selected.terms,
            delivery: self.delivery(draft, &selected, sequence, encodings),
            limited: limited(draft, &selected),
            end: sequence.saturating_add(draft.events()),
        })
    }

    /// The selected events of a batch. Absent if there are none.
    pub(super) fn delivery(
        &self,
        draft: &Draft,
        selected: &Selected,
        sequence: u64,
        encodings: &mut Encodings<'_>,
    ) -> Option<Delivery> {
        if selected.events == 0 {
            return None;
        }
        let message = encodings.message(draft, selected, sequence, &self.view);
        let origins = selected
            .groups
            .iter()
            .filter_map(|picked| draft.groups.get(picked.group))
            .map(|group| Arc::clone(&group.origin));
        Some(Delivery {
            cpu: draft.cpu,
            sequence,
            log_events: draft.events(),
            events: selected.events,
            span: Span { first_ns: draft.first_ns(), last_ns: draft.last_ns() },
            wall_offset_ns: draft.clock.wall_offset_ns,
            origins: origins.collect(),
            message,
        })
    }

    /// Puts a loss into the queue.
    pub(super) fn take_loss(&self, loss: Loss) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.push_loss(loss);
            drop(queue);
            self.arrived.notify_one();
        }
    }

    pub(super) fn take_mark(&self, mark: Mark) {
        lock(&self.queue).push_mark(mark);
        self.arrived.notify_one();
    }

    /// Queues a watermark for a subscriber that wants the order of time.
    pub(super) fn take_watermark(&self, watermark_ns: u64) {
        if self.view.order == Order::Time {
            lock(&self.queue).push_watermark(watermark_ns);
            self.arrived.notify_one();
        }
    }

    pub(super) fn forget_selection(&self) {
        self.selector.forget();
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_one();
    }
}

impl Offer {
    /// Puts the delivery into the queue, and counts the events of the batch in the terms of the
    /// ledger. Never waits for the subscriber.
    pub(super) fn hand_over(self) {
        let Self { to, events, terms, delivery, limited, end } = self;
        let mut queue = lock(&to.queue);
        // The queue may have overflowed since: then the client continues in another stream, from
        // the first event that it did not receive.
        if queue.closed {
            return;
        }
        queue.counts.read += events;
        queue.counts.not_selected += terms.not_selected;
        queue.counts.filtered += terms.filtered;
        queue.counts.sampled_out += terms.sampled_out;
        queue.counts.limited += terms.limited;
        let has_loss = limited.is_some();
        let is_news = match delivery {
            Some(delivery) => {
                queue.push_batch(delivery);
                true
            }
            None => !has_loss && queue.push_progress(end),
        };
        if let Some(loss) = limited {
            queue.push_loss(loss);
        }
        drop(queue);
        if is_news || has_loss {
            to.arrived.notify_one();
        }
    }
}

/// The events over the rate limit, if there are any.
pub(super) fn limited(draft: &Draft, selected: &Selected) -> Option<Loss> {
    let count = selected.terms.limited;
    (count > 0).then(|| Loss::on(draft.cpu, LossCause::RateLimit, Some(count), 0))
}

/// How a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The daemon stops, and everything was delivered.
    Stopping,
    /// The queue was full, and the subscriber asked to be disconnected in that case. It can resume
    /// here.
    Overflowed {
        /// The first event that it did not receive.
        sequence: u64,
    },
}

/// A subscriber's end of its queue. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) hub: Arc<Hub>,
}

impl Subscription {
    /// Identifies the subscriber in the ledger.
    pub fn id(&self) -> u64 {
        self.subscriber.id
    }

    /// The view that it asked for.
    pub fn view(&self) -> &View {
        &self.subscriber.view
    }

    /// Begins to receive published items. Returns the log position at which it begins.
    pub fn attach(&self) -> u64 {
        self.hub.attach(&self.subscriber)
    }

    /// The next item, as soon as there is one.
    ///
    /// # Errors
    /// [`End`] once everything was delivered.
    ///
    /// # Cancel safety
    /// An item leaves the queue only in the poll that returns it.
    pub async fn next(&self) -> Result<Item, End> {
        loop {
            {
                let mut queue = lock(&self.subscriber.queue);
                if let Some(item) = queue.pop() {
                    return Ok(item);
                }
                if queue.closed {
                    queue.has_ended = true;
                    let overflowed = queue.overflowed_at.map(|sequence| End::Overflowed { sequence });
                    return Err(overflowed.unwrap_or(End::Stopping));
                }
            }
            self.subscriber.arrived.notified().await;
        }
    }

    /// Begins to receive, at the moment at which `other` receives the mark.
    pub(crate) fn attach_with_mark(&self, other: &Self, mark: Mark) -> u64 {
        self.hub.attach_with_mark(&self.subscriber, &other.subscriber, mark)
    }

    /// Queues a mark after everything that was published until now.
    pub(crate) fn mark(&self, mark: Mark) {
        self.hub.mark(&self.subscriber, mark);
    }

    /// The log position after everything that was published until now.
    pub(crate) fn log_end(&self) -> u64 {
        self.hub.sequence()
    }

    /// Its terms of the ledger.
    pub fn counts(&self) -> QueueCounts {
        self.subscriber.counts()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut QueueCounts)) {
        count(&mut lock(&self.subscriber.queue).counts);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.detach(self.subscriber.id);
    }
}
