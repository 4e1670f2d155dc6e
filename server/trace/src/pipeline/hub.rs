//! Event hub: the fan-out from readers to subscribers, and the numbering of the log.
//!
//! Its lock covers the next sequence number and the list of subscribers, and nothing else:
//! filtering and encoding happen outside of it, in as many threads as publish.
//! [`sequencer`](super::sequencer) puts the results into the queues in the order of the log, each
//! once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use nix::sys::eventfd::EventFd;

use super::encodings::Encodings;
use super::item::Mark;
use super::queue::{QueueCounts, QueueMemory};
use super::selection::Binder;
use super::sequencer::{Announcement, Audience, Sequencer, Ticket};
use super::subscriber::Subscriber;
use super::view::{Order, Overflow, View};
use super::{Draft, Loss, Pace, Subscription};
use crate::wire::MessagePool;

/// Ledger terms of one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberCounts {
    /// The subscriber.
    pub id: u64,
    /// When it subscribed.
    pub start: SystemTime,
    /// Overflow policy of its queue.
    pub overflow: Overflow,
    /// The ledger terms.
    pub counts: QueueCounts,
}

/// State that changes with each publication.
#[derive(Debug, Default)]
struct State {
    /// Subscribers that the ledger lists.
    list: Vec<Arc<Subscriber>>,
    /// Subscribers that receive published items.
    attached: Audience,
    /// Place of the next event in the log.
    sequence: u64,
    /// Number of the next ticket.
    ticket: u64,
    /// The last watermark that was published.
    watermark_ns: u64,
    closed: bool,
}

impl State {
    fn next_ticket<'a>(&mut self, sequencer: &'a Sequencer) -> Ticket<'a> {
        let number = self.ticket;
        self.ticket += 1;
        sequencer.ticket(number)
    }
}

/// All subscribers.
#[derive(Debug)]
pub struct Hub {
    binder: Binder,
    state: Mutex<State>,
    sequencer: Sequencer,
    /// Memory for the messages that they are sent.
    pool: MessagePool,
    /// Memory for what waits in their queues.
    queue_memory: Arc<QueueMemory>,
    last_id: AtomicU64,
    /// The pace with the shortest rest among all subscribers.
    pace: AtomicU8,
    /// Whether any subscriber wants watermarks.
    ordered: AtomicBool,
    /// Whether there is any subscriber to publish to.
    wanted: AtomicBool,
    /// The latest time stamp that was published.
    last_event_ns: AtomicU64,
    /// The shortest heartbeat of all subscribers, in milliseconds. 0: none.
    heartbeat_ms: AtomicU64,
    /// Event file descriptors that wake the readers.
    wakes: OnceLock<Vec<Arc<EventFd>>>,
}

impl Hub {
    /// A hub without subscribers, whose queues are bounded each for itself. `binder` binds their filters.
    pub fn new(binder: Binder) -> Self {
        Self::with_queue_memory(binder, u64::MAX)
    }

    /// As [`Hub::new`], with so many bytes for the queues of all clients together.
    pub fn with_queue_memory(binder: Binder, bytes: u64) -> Self {
        Self {
            binder,
            state: Mutex::default(),
            sequencer: Sequencer::default(),
            pool: MessagePool::default(),
            queue_memory: Arc::new(QueueMemory::new(bytes)),
            last_id: AtomicU64::new(0),
            pace: AtomicU8::new(Pace::Balanced as u8),
            ordered: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            last_event_ns: AtomicU64::new(0),
            heartbeat_ms: AtomicU64::new(0),
            wakes: OnceLock::new(),
        }
    }

    /// The binder of filters.
    pub const fn binder(&self) -> &Binder {
        &self.binder
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a subscriber. It receives nothing before it is attached.
    pub fn subscribe(self: &Arc<Self>, view: View) -> Subscription {
        self.subscription(view, false)
    }

    /// Makes a subscriber of the daemon's own, which the ledger does not list.
    pub fn subscribe_own(self: &Arc<Self>, view: View) -> Subscription {
        self.subscription(view, true)
    }

    fn subscription(self: &Arc<Self>, view: View, is_own: bool) -> Subscription {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let memory = if is_own {
            // Its limits are fixed.
            Arc::new(QueueMemory::new(u64::MAX))
        } else {
            Arc::clone(&self.queue_memory)
        };
        let subscriber = Arc::new(Subscriber::new(id, view, is_own, memory));
        let mut state = self.state();
        if state.closed {
            subscriber.close();
        }
        state.list.push(Arc::clone(&subscriber));
        Subscription { subscriber, hub: Arc::clone(self) }
    }

    /// Attaches a subscriber, and returns the log position at which it begins: it receives
    /// everything from there on.
    pub(super) fn attach(&self, subscriber: &Arc<Subscriber>) -> u64 {
        let mut state = self.state();
        self.attach_to(&mut state, subscriber);
        state.sequence
    }

    /// As [`attach`](Self::attach), at the moment at which `other` receives the mark.
    pub(super) fn attach_with_mark(
        &self,
        subscriber: &Arc<Subscriber>,
        other: &Arc<Subscriber>,
        mark: Mark,
    ) -> u64 {
        let mut state = self.state();
        self.attach_to(&mut state, subscriber);
        let (sequence, ticket) = (state.sequence, state.next_ticket(&self.sequencer));
        drop(state);
        ticket.announce(Announcement::Mark(Arc::clone(other), mark));
        sequence
    }

    fn attach_to(&self, state: &mut State, subscriber: &Arc<Subscriber>) {
        state.attached = state.attached.iter().chain([subscriber]).cloned().collect();
        self.note_wishes(state);
    }

    pub(super) fn mark(&self, subscriber: &Arc<Subscriber>, mark: Mark) {
        let ticket = self.state().next_ticket(&self.sequencer);
        ticket.announce(Announcement::Mark(Arc::clone(subscriber), mark));
    }

    pub(super) fn detach(&self, id: u64) {
        let mut state = self.state();
        state.list.retain(|subscriber| subscriber.id != id);
        state.attached = state.attached.iter().filter(|subscriber| subscriber.id != id).cloned().collect();
        self.note_wishes(&state);
    }

    fn note_wishes(&self, state: &State) {
        let views = || state.attached.iter().map(|subscriber| &subscriber.view);
        let pace = views().map(|view| view.pace).max().unwrap_or(Pace::Balanced);
        self.pace.store(pace as u8, Ordering::Relaxed);
        self.ordered.store(views().any(|view| view.order == Order::Time), Ordering::Relaxed);
        self.wanted.store(!state.attached.is_empty(), Ordering::Relaxed);
        let heartbeat = views().filter_map(|view| view.heartbeat).min();
        let heartbeat_ms = heartbeat.map_or(0, |beat| u64::try_from(beat.as_millis()).unwrap_or(u64::MAX));
        // A reader that sleeps without a time-out would not notice that it should now wake for
        // heartbeats.
        if self.heartbeat_ms.swap(heartbeat_ms, Ordering::Relaxed) != heartbeat_ms && heartbeat_ms > 0 {
            for wake in self.wakes.get().into_iter().flatten() {
                if let Err(errno) = wake.write(1) {
                    tracing::error!(%errno, "cannot wake a reader");
                }
            }
        }
    }

    /// Sets the event file descriptors that wake the readers. Readers are started once.
    pub(super) fn wake_with(&self, wakes: Vec<Arc<EventFd>>) {
        if self.wakes.set(wakes).is_err() {
            tracing::error!("the readers were started twice: heartbeats wake those of the first time");
        }
    }

    /// How long a reader may sleep while nothing happens. `None`: until something does.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        match self.heartbeat_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    /// The pace with the shortest rest among all subscribers.
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

    /// Whether there is any subscriber to publish to.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The latest time stamp that was published, in nanoseconds of the trace clock.
    pub(super) fn last_event_ns(&self) -> u64 {
        self.last_event_ns.load(Ordering::Relaxed)
    }

    /// Place of the next event in the log of this run of the daemon.
    pub fn sequence(&self) -> u64 {
        self.state().sequence
    }

    /// Gives a batch its place in the log, and hands each subscriber its selection of it. Several
    /// threads may publish at once; each subscriber receives everything in the order of the log.
    pub fn publish(&self, draft: &Draft) {
        let (sequence, attached, ticket) = {
            let mut state = self.state();
            let sequence = state.sequence;
            state.sequence += draft.events();
            (sequence, Arc::clone(&state.attached), state.next_ticket(&self.sequencer))
        };
        self.last_event_ns.fetch_max(draft.last_ns(), Ordering::Relaxed);
        let mut encodings = Encodings::new(&self.pool);
        let offers = attached
            .iter()
            .filter_map(|subscriber| subscriber.prepare(&self.binder, draft, sequence, &mut encodings));
        ticket.announce(Announcement::Batch(offers.collect()));
    }

    /// Counts events in the log without publishing them, if there is no subscriber. Returns whether
    /// there was none.
    pub(super) fn pass_over(&self, events: u64) -> bool {
        if self.is_wanted() {
            return false;
        }
        let mut state = self.state();
        let is_alone = state.attached.is_empty();
        if is_alone {
            state.sequence += events;
        }
        is_alone
    }

    /// Publishes a loss to all subscribers.
    pub fn publish_loss(&self, loss: Loss) {
        let (attached, ticket) = {
            let mut state = self.state();
            (Arc::clone(&state.attached), state.next_ticket(&self.sequencer))
        };
        ticket.announce(Announcement::Loss(attached, loss));
    }

    /// Publishes a watermark to the subscribers that want the order of time: all earlier events
    /// were published.
    pub fn publish_watermark(&self, watermark_ns: u64) {
        let (attached, ticket) = {
            let mut state = self.state();
            if state.watermark_ns >= watermark_ns {
                return;
            }
            state.watermark_ns = watermark_ns;
            (Arc::clone(&state.attached), state.next_ticket(&self.sequencer))
        };
        ticket.announce(Announcement::Watermark(attached, watermark_ns));
    }

    /// Has all subscribers select every probe anew: labels or other facts that they select by have
    /// changed.
    pub fn selections_changed(&self) {
        // A selection that binds a filter is waited for, and publishers must not wait for that.
        let list = self.state().list.clone();
        for subscriber in &list {
            subscriber.forget_selection();
        }
    }

    /// Ends all subscriptions once they have delivered what was published, and all future ones at
    /// once.
    pub fn close(&self) {
        let (all, ticket) = {
            let mut state = self.state();
            state.closed = true;
            (state.list.iter().cloned().collect(), state.next_ticket(&self.sequencer))
        };
        ticket.announce(Announcement::Close(all));
    }

    /// Ledger terms of every subscriber, without those of the daemon itself.
    pub fn counts(&self) -> Vec<SubscriberCounts> {
        let counts = |subscriber: &Arc<Subscriber>| SubscriberCounts {
            id: subscriber.id,
            start: subscriber.start,
            overflow: subscriber.view.limits.overflow,
            counts: subscriber.counts(),
        };
        self.state().list.iter().filter(|subscriber| !subscriber.is_own).map(counts).collect()
    }
}
