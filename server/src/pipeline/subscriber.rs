//! The queue of one subscriber.
//!
//! Bounded by the number of events in it. When a batch does not fit, the oldest batches go until it does, and the subscriber gets the
//! number of events that are missing before the next batch of the same CPU. A single batch that is larger than the whole queue still
//! fits into an empty one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use super::{Batch, Loss, LossCause};
use crate::model::Glob;

/// What a subscriber gets.
#[derive(Clone, Debug)]
pub enum Item {
    /// Events. Of the groups only those whose index is listed were asked for.
    Batch {
        /// The batch, shared with all other subscribers.
        batch: Arc<Batch>,
        /// Indices of the groups to deliver.
        selected: Vec<usize>,
    },
    /// A gap, before the first event behind it.
    Loss(Loss),
}

/// Where the events of a subscriber went: read = delivered + queued + dropped + `not_selected`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) read: u64,
    pub(super) delivered: u64,
    pub(super) queued: u64,
    pub(super) dropped: u64,
    pub(super) not_selected: u64,
}

#[derive(Debug)]
enum Entry {
    Batch { batch: Arc<Batch>, selected: Vec<usize>, events: u64 },
    Loss(Loss),
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Losses that have to be told before the next entry of their CPU: what the queue dropped, and the losses that it dropped with it.
    untold: BTreeMap<u32, Vec<Loss>>,
    selection: HashMap<u32, bool>,
    counts: Counts,
    closed: bool,
}

/// What hub and subscription share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) start: SystemTime,
    probes: Vec<Glob>,
    capacity_events: u64,
    queue: Mutex<Queue>,
    arrived: Notify,
}

impl Shared {
    pub(super) fn new(id: u64, probes: Vec<Glob>, capacity_events: u64) -> Self {
        Self {
            id,
            start: SystemTime::now(),
            probes,
            capacity_events,
            queue: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.queue().counts
    }

    /// Puts a batch into the queue. Never waits.
    pub(super) fn offer(&self, batch: &Arc<Batch>) {
        let mut queue = self.queue();
        let mut selected = Vec::with_capacity(batch.groups.len());
        let mut events = 0;
        for (index, group) in batch.groups.iter().enumerate() {
            let rows = group.columns.len() as u64;
            queue.counts.read += rows;
            let wanted = *queue.selection.entry(group.source.schema_id).or_insert_with(|| {
                self.probes.is_empty() || self.probes.iter().any(|glob| glob.matches_name(&group.source.name))
            });
            if wanted {
                selected.push(index);
                events += rows;
            } else {
                queue.counts.not_selected += rows;
            }
        }
        if selected.is_empty() {
            return;
        }
        queue.make_room(events, self.capacity_events);
        queue.counts.queued += events;
        queue.entries.push_back(Entry::Batch { batch: Arc::clone(batch), selected, events });
        drop(queue);
        self.arrived.notify_one();
    }

    /// Puts the news of a loss into the queue.
    pub(super) fn offer_loss(&self, loss: Loss) {
        self.queue().push_loss(loss);
        self.arrived.notify_one();
    }

    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.arrived.notify_one();
    }
}

impl Queue {
    fn make_room(&mut self, events: u64, capacity: u64) {
        while self.counts.queued > 0 && self.counts.queued + events > capacity {
            match self.entries.pop_front() {
                Some(Entry::Batch { batch, events, .. }) => {
                    self.counts.queued -= events;
                    self.counts.dropped += events;
                    let cause = LossCause::SubscriberQueue;
                    self.remember(Loss { cause, cpu: batch.cpu, count: Some(events), before_ns: 0 });
                }
                Some(Entry::Loss(loss)) => self.remember(loss),
                None => return,
            }
        }
    }

    /// Adds a loss to an earlier one of the same gap, if nothing of that CPU was queued in between: a subscriber that does not read, or that
    /// wants rare events only, must not collect losses without end.
    fn push_loss(&mut self, loss: Loss) {
        for entry in self.entries.iter_mut().rev() {
            match entry {
                Entry::Batch { batch, .. } if batch.cpu == loss.cpu => break,
                Entry::Loss(known) if known.cpu == loss.cpu && known.cause == loss.cause => {
                    known.count = known.count.zip(loss.count).map(|(a, b)| a + b);
                    known.before_ns = loss.before_ns;
                    return;
                }
                _ => {}
            }
        }
        self.entries.push_back(Entry::Loss(loss));
    }

    /// Adds a loss to those untold; one of the same cause on the same CPU grows.
    fn remember(&mut self, loss: Loss) {
        let untold = self.untold.entry(loss.cpu).or_default();
        match untold.iter_mut().find(|known| known.cause == loss.cause) {
            Some(known) => known.count = known.count.zip(loss.count).map(|(a, b)| a + b),
            None => untold.push(loss),
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let cpu = match self.entries.front()? {
            Entry::Batch { batch, .. } => batch.cpu,
            Entry::Loss(loss) => loss.cpu,
        };
        if let Some(untold) = self.untold.get_mut(&cpu).and_then(Vec::pop) {
            return Some(Item::Loss(Loss { before_ns: self.next_time_of(cpu), ..untold }));
        }
        Some(match self.entries.pop_front()? {
            Entry::Batch { batch, selected, events } => {
                self.counts.queued -= events;
                self.counts.delivered += events;
                Item::Batch { batch, selected }
            }
            Entry::Loss(loss) => Item::Loss(loss),
        })
    }

    /// Time stamp of the first event of a CPU that is still to come; 0 when there is none yet.
    fn next_time_of(&self, cpu: u32) -> u64 {
        let mut batches = self.entries.iter().filter_map(|entry| match entry {
            Entry::Batch { batch, .. } if batch.cpu == cpu => Some(batch),
            _ => None,
        });
        let first = |batch: &Arc<Batch>| {
            batch.groups.iter().filter_map(|group| group.columns.timestamps_ns.first().copied()).min()
        };
        batches.find_map(first).unwrap_or(0)
    }
}

/// A subscriber's end of its queue. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    pub(super) shared: Arc<Shared>,
}

impl Subscription {
    /// Identifies the subscriber in the ledger.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The next item, as soon as there is one. Absent: the daemon stops, and everything was delivered.
    ///
    /// # Cancel safety
    /// An item leaves the queue only in the poll that returns it.
    pub async fn next(&self) -> Option<Item> {
        loop {
            {
                let mut queue = self.shared.queue();
                if let Some(item) = queue.pop() {
                    return Some(item);
                }
                if queue.closed {
                    return None;
                }
            }
            self.shared.arrived.notified().await;
        }
    }
}
