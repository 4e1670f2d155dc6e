//! The two ends of a subscription: the publishing thread's and the client's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use super::binder::Binder;
use super::hub::{Encodings, Hub};
use super::queue::{Delivery, Item, Queue, QueueCounts};
use super::selection::{Selected, Selector};
use super::view::{Order, View};
use super::{Draft, Loss, LossCause};
use crate::pipeline::counters::Span;

/// What hub and subscription share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) start: SystemTime,
    pub(super) view: View,
    /// Whether it is the daemon's own.
    pub(super) is_own: bool,
    selector: Mutex<Selector>,
    queue: Mutex<Queue>,
    arrived: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(id: u64, view: View, is_own: bool) -> Self {
        Self {
            id,
            start: SystemTime::now(),
            is_own,
            selector: Mutex::default(),
            queue: Mutex::new(Queue::new(view.limits)),
            arrived: Notify::new(),
            view,
        }
    }

    pub(super) fn counts(&self) -> QueueCounts {
        lock(&self.queue).counts
    }

    /// Puts what the subscriber wants of a batch into its queue. Never waits for it.
    pub(super) fn offer(
        &self,
        binder: &Binder,
        draft: &Draft<'_>,
        sequence: u64,
        encodings: &mut Encodings<'_>,
    ) {
        if lock(&self.queue).closed {
            return;
        }
        let selected = lock(&self.selector).select(&self.view, binder, draft);
        let batch = self.delivery(draft, &selected, sequence, encodings);
        let mut queue = lock(&self.queue);
        queue.counts.read += draft.events();
        queue.counts.not_selected += selected.not_selected;
        queue.counts.filtered += selected.filtered;
        queue.counts.sampled_out += selected.sampled_out;
        queue.counts.limited += selected.limited;
        let Some(batch) = batch else {
            let is_news = if selected.limited > 0 {
                queue.push_loss(limited(draft, &selected));
                true
            } else {
                queue.push_progress(sequence.saturating_add(draft.events()))
            };
            drop(queue);
            if is_news {
                self.arrived.notify_one();
            }
            return;
        };
        queue.push_batch(batch);
        if selected.limited > 0 {
            queue.push_loss(limited(draft, &selected));
        }
        drop(queue);
        self.arrived.notify_one();
    }

    /// What was selected of a batch, in the form of the wire. Absent when it is nothing.
    pub(super) fn delivery(
        &self,
        draft: &Draft<'_>,
        selected: &Selected,
        sequence: u64,
        encodings: &mut Encodings<'_>,
    ) -> Option<Delivery> {
        if selected.events == 0 {
            return None;
        }
        let message = encodings.message(draft, selected, sequence, &self.view.projection);
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

    /// Puts the news of a loss into the queue.
    pub(super) fn offer_loss(&self, loss: Loss) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.push_loss(loss);
            drop(queue);
            self.arrived.notify_one();
        }
    }

    pub(super) fn offer_mark(&self, mark: u64) {
        lock(&self.queue).push_mark(mark);
        self.arrived.notify_one();
    }

    /// Tells a subscriber that wants order how far it can go.
    pub(super) fn offer_watermark(&self, watermark_ns: u64) {
        if self.view.order == Order::Time {
            lock(&self.queue).push_watermark(watermark_ns);
            self.arrived.notify_one();
        }
    }

    pub(super) fn forget_selection(&self) {
        lock(&self.selector).forget();
    }

    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_one();
    }
}

fn limited(draft: &Draft<'_>, selected: &Selected) -> Loss {
    Loss::on(draft.cpu, LossCause::RateLimit, Some(selected.limited), 0)
}

/// How a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The daemon stops, and everything was delivered.
    Stopping,
    /// The queue was full, and the subscriber wanted to be cut off then. This is where the log goes on.
    Overflowed {
        /// The first event that it did not get.
        sequence: u64,
    },
}

/// A subscriber's end of its queue. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Arc<Hub>,
}

impl Subscription {
    /// Identifies the subscriber in the ledger.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// What it asked for.
    pub fn view(&self) -> &View {
        &self.shared.view
    }

    /// Begins to receive what is published. Answers where in the log that is.
    pub fn attach(&self) -> u64 {
        self.hub.attach(&self.shared)
    }

    /// The next item, as soon as there is one.
    ///
    /// # Errors
    /// [`End`], when everything was delivered.
    ///
    /// # Cancel safety
    /// An item leaves the queue only in the poll that returns it.
    pub async fn next(&self) -> Result<Item, End> {
        loop {
            {
                let mut queue = lock(&self.shared.queue);
                if let Some(item) = queue.pop() {
                    return Ok(item);
                }
                if queue.closed {
                    let overflowed = queue.overflowed_at.map(|sequence| End::Overflowed { sequence });
                    return Err(overflowed.unwrap_or(End::Stopping));
                }
            }
            self.shared.arrived.notified().await;
        }
    }

    /// Begins to receive, at the same moment at which `other` gets the mark.
    pub fn attach_with_mark(&self, other: &Self, mark: u64) -> u64 {
        self.hub.attach_with_mark(&self.shared, &other.shared, mark)
    }

    /// Puts a mark behind everything that is published now.
    pub fn mark(&self, mark: u64) {
        self.hub.mark(&self.shared, mark);
    }

    /// Where its events went.
    pub fn counts(&self) -> QueueCounts {
        self.shared.counts()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut QueueCounts)) {
        count(&mut lock(&self.shared.queue).counts);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.detach(self.shared.id);
    }
}
