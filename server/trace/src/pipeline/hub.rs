//! The fan-out from readers to subscribers, and the numbering of the log.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use nix::sys::eventfd::EventFd;

use super::binder::Binder;
use super::queue::QueueCounts;
use super::selection::{Picked, Selected};
use super::subscriber::Shared;
use super::view::{Order, Overflow, Pace, View};
use super::{Draft, Loss, Subscription};
use crate::wire::{self, Envelope, GroupRows, MessagePool, Projection, Rows, Task};

/// Where the events of one subscriber went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberCounts {
    /// The subscriber.
    pub id: u64,
    /// Since when.
    pub start: SystemTime,
    /// What happens when its queue is full.
    pub overflow: Overflow,
    /// The terms.
    pub counts: QueueCounts,
}

#[derive(Debug, Default)]
struct Subscribers {
    /// Known for the ledger.
    list: Vec<Arc<Shared>>,
    /// Those that get what is published.
    attached: Vec<Arc<Shared>>,
    /// Place of the next event in the log.
    sequence: u64,
    /// For what they are sent.
    pool: MessagePool,
    closed: bool,
}

/// All subscribers.
#[derive(Debug)]
pub struct Hub {
    binder: Binder,
    subscribers: Mutex<Subscribers>,
    last_id: AtomicU64,
    /// The most impatient pace of all subscribers.
    pace: AtomicU8,
    /// Whether anybody wants watermarks.
    ordered: AtomicBool,
    /// Whether anybody wants anything.
    wanted: AtomicBool,
    /// The latest time stamp that was published.
    last_event_ns: AtomicU64,
    /// The last watermark that was told.
    watermark_ns: AtomicU64,
    /// The shortest heartbeat of all subscribers, in milliseconds. 0: none.
    heartbeat_ms: AtomicU64,
    /// What wakes the readers.
    wakes: OnceLock<Vec<Arc<EventFd>>>,
}

impl Hub {
    /// Without subscribers. Their filters are bound by `binder`.
    pub fn new(binder: Binder) -> Self {
        Self {
            binder,
            subscribers: Mutex::default(),
            last_id: AtomicU64::new(0),
            pace: AtomicU8::new(Pace::Balanced as u8),
            ordered: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            last_event_ns: AtomicU64::new(0),
            watermark_ns: AtomicU64::new(0),
            heartbeat_ms: AtomicU64::new(0),
            wakes: OnceLock::new(),
        }
    }

    /// What filters are bound with.
    pub const fn binder(&self) -> &Binder {
        &self.binder
    }

    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a subscriber. It gets nothing before it is attached.
    pub fn subscribe(self: &Arc<Self>, view: View) -> Subscription {
        self.subscription(view, false)
    }

    /// Makes a subscriber of the daemon's own, which is not told among the others.
    pub fn subscribe_own(self: &Arc<Self>, view: View) -> Subscription {
        self.subscription(view, true)
    }

    fn subscription(self: &Arc<Self>, view: View, is_own: bool) -> Subscription {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = Arc::new(Shared::new(id, view, is_own));
        let mut subscribers = self.subscribers();
        if subscribers.closed {
            shared.close();
        }
        subscribers.list.push(Arc::clone(&shared));
        Subscription { shared, hub: Arc::clone(self) }
    }

    pub(super) fn attach(&self, shared: &Arc<Shared>) -> u64 {
        let mut subscribers = self.subscribers();
        subscribers.attached.push(Arc::clone(shared));
        self.note_wishes(&subscribers);
        subscribers.sequence
    }

    pub(super) fn attach_with_mark(&self, shared: &Arc<Shared>, other: &Shared, mark: u64) -> u64 {
        let mut subscribers = self.subscribers();
        subscribers.attached.push(Arc::clone(shared));
        self.note_wishes(&subscribers);
        other.offer_mark(mark);
        subscribers.sequence
    }

    pub(super) fn mark(&self, shared: &Shared, mark: u64) {
        // Whoever publishes holds it too.
        let _subscribers = self.subscribers();
        shared.offer_mark(mark);
    }

    pub(super) fn detach(&self, id: u64) {
        let mut subscribers = self.subscribers();
        subscribers.list.retain(|subscriber| subscriber.id != id);
        subscribers.attached.retain(|subscriber| subscriber.id != id);
        self.note_wishes(&subscribers);
    }

    fn note_wishes(&self, subscribers: &Subscribers) {
        let views = || subscribers.attached.iter().map(|subscriber| &subscriber.view);
        let pace = views().map(|view| view.pace).max().unwrap_or(Pace::Balanced);
        self.pace.store(pace as u8, Ordering::Relaxed);
        self.ordered.store(views().any(|view| view.order == Order::Time), Ordering::Relaxed);
        self.wanted.store(!subscribers.attached.is_empty(), Ordering::Relaxed);
        let heartbeat = views().filter_map(|view| view.heartbeat).min();
        let heartbeat_ms = heartbeat.map_or(0, |beat| u64::try_from(beat.as_millis()).unwrap_or(u64::MAX));
        // A reader that sleeps without a time-out does not see that it should sleep less.
        if self.heartbeat_ms.swap(heartbeat_ms, Ordering::Relaxed) != heartbeat_ms && heartbeat_ms > 0 {
            for wake in self.wakes.get().into_iter().flatten() {
                if let Err(errno) = wake.write(1) {
                    tracing::error!(%errno, "cannot wake a reader");
                }
            }
        }
    }

    /// Has these wake the readers from now on. Readers are started once.
    pub(super) fn wake_with(&self, wakes: Vec<Arc<EventFd>>) {
        if self.wakes.set(wakes).is_err() {
            tracing::error!("the readers were started twice: heartbeats wake those of the first time");
        }
    }

    /// How long a reader may sleep while nothing happens. None: for ever.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        match self.heartbeat_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    /// How impatient the most impatient subscriber is.
    pub fn pace(&self) -> Pace {
        match self.pace.load(Ordering::Relaxed) {
            pace if pace == Pace::Latency as u8 => Pace::Latency,
            pace if pace == Pace::Throughput as u8 => Pace::Throughput,
            _ => Pace::Balanced,
        }
    }

    /// Whether any subscriber wants the order of time.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    /// Whether there is anybody to publish to.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The latest time stamp that was published, in nanoseconds of the trace clock.
    pub(super) fn last_event_ns(&self) -> u64 {
        self.last_event_ns.load(Ordering::Relaxed)
    }

    /// Place of the next event in the log of this run of the daemon.
    pub fn sequence(&self) -> u64 {
        self.subscribers().sequence
    }

    /// Hands a batch to everybody, and gives it its place in the log: that is why nobody else publishes meanwhile.
    pub fn publish(&self, draft: &Draft<'_>) {
        let mut subscribers = self.subscribers();
        let Subscribers { attached, sequence, pool, .. } = &mut *subscribers;
        let first = *sequence;
        *sequence += draft.events();
        self.last_event_ns.fetch_max(draft.last_ns(), Ordering::Relaxed);
        let mut encodings = Encodings::new(pool);
        for subscriber in attached {
            subscriber.offer(&self.binder, draft, first, &mut encodings);
        }
    }

    /// Counts events in the log that nobody wanted.
    pub(super) fn pass_over(&self, events: u64) {
        self.subscribers().sequence += events;
    }

    /// Tells everybody of a loss.
    pub fn publish_loss(&self, loss: Loss) {
        for subscriber in &self.subscribers().attached {
            subscriber.offer_loss(loss);
        }
    }

    /// Tells everybody who wants the order of time that everything before was published.
    pub fn publish_watermark(&self, watermark_ns: u64) {
        if self.watermark_ns.fetch_max(watermark_ns, Ordering::Relaxed) < watermark_ns {
            for subscriber in &self.subscribers().attached {
                subscriber.offer_watermark(watermark_ns);
            }
        }
    }

    /// Has all subscribers look at every probe again: something that they select by has changed.
    pub fn selections_changed(&self) {
        for subscriber in &self.subscribers().list {
            subscriber.forget_selection();
        }
    }

    /// Ends all subscriptions once they have delivered what is queued, and all future ones at once.
    pub fn close(&self) {
        let mut subscribers = self.subscribers();
        subscribers.closed = true;
        for subscriber in &subscribers.list {
            subscriber.close();
        }
    }

    /// Where the events of every subscriber went, those of the daemon itself left out.
    pub fn counts(&self) -> Vec<SubscriberCounts> {
        let counts = |subscriber: &Arc<Shared>| SubscriberCounts {
            id: subscriber.id,
            start: subscriber.start,
            overflow: subscriber.view.limits.overflow,
            counts: subscriber.counts(),
        };
        self.subscribers().list.iter().filter(|subscriber| !subscriber.is_own).map(counts).collect()
    }
}

/// Messages of one batch: everybody who wants the same columns gets the same bytes.
#[derive(Debug)]
pub(super) struct Encodings<'a> {
    done: Vec<(Vec<usize>, Projection, Bytes)>,
    pool: &'a mut MessagePool,
}

impl<'a> Encodings<'a> {
    pub(super) const fn new(pool: &'a mut MessagePool) -> Self {
        Self { done: Vec::new(), pool }
    }

    /// The message with what was selected.
    pub(super) fn message(
        &mut self,
        draft: &Draft<'_>,
        selected: &Selected,
        sequence: u64,
        projection: &Projection,
    ) -> Bytes {
        if !selected.is_whole() {
            return encode(draft, selected, sequence, self.pool);
        }
        let same = |(groups, other, _): &&(Vec<usize>, Projection, Bytes)| {
            other == projection && groups.iter().eq(selected.groups.iter().map(|picked| &picked.group))
        };
        if let Some((_, _, bytes)) = self.done.iter().find(same) {
            return bytes.clone();
        }
        let bytes = encode(draft, selected, sequence, self.pool);
        let groups = selected.groups.iter().map(|picked| picked.group).collect();
        self.done.push((groups, projection.clone(), bytes.clone()));
        bytes
    }
}

fn encode(draft: &Draft<'_>, selected: &Selected, sequence: u64, pool: &mut MessagePool) -> Bytes {
    let groups: Vec<_> = selected
        .groups
        .iter()
        .filter_map(|picked| {
            let group = draft.groups.get(picked.group)?;
            Some(GroupRows {
                schema_id: group.origin.schema_id,
                columns: &group.columns,
                rows: picked.rows.as_deref().map_or(Rows::All, Rows::Some),
                projected: &picked.projected,
            })
        })
        .collect();
    let named = selected.groups.iter().any(|picked| picked.projected.comm);
    let tasks = if selected.is_whole() { None } else { Some(tasks_of(draft, &selected.groups)) };
    let envelope = Envelope {
        cpu: draft.cpu,
        sequence,
        log_events: u32::try_from(draft.events()).unwrap_or(u32::MAX),
        clock: draft.clock,
        tasks: if named { tasks.as_deref().unwrap_or(draft.tasks) } else { &[] },
        symbols: draft.symbols,
    };
    wire::encode(&envelope, &groups, pool)
}

/// The tasks of the selected rows only: a subscriber that wants one event in a thousand does not want the names of all tasks.
fn tasks_of(draft: &Draft<'_>, picked: &[Picked]) -> Vec<Task> {
    let occurs = |tid: i32| {
        picked.iter().any(|picked| {
            let Some(group) = draft.groups.get(picked.group) else { return false };
            let tids = &group.columns.tids;
            match &picked.rows {
                None => tids.contains(&tid),
                Some(rows) => rows.iter().any(|row| tids.get(*row as usize) == Some(&tid)),
            }
        })
    };
    draft.tasks.iter().filter(|task| occurs(task.tid)).cloned().collect()
}
