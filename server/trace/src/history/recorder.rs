//! Recorder: the thread that writes the history.
//!
//! Owns one subscription of the daemon's own. The hub never waits for its queue: if the disk is
//! slower than the events, the queue drops what does not fit, and readers of the history get a
//! report that those events were not stored. Never selects: it stores every event for which there
//! is room ([`quota`](super::quota)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::counters::Counters;
use super::left_out::LeftOut;
use super::quota::{Kept, Quota, Rest};
use super::stored;
use crate::pipeline::{Delivery, Item, LossCause, Origin, Subscription};
use crate::spool::{AppendError, Limit, Spool, SpoolWriter};
use kprobed_host::kernel::{ClockMapping, trace_clock_ns};
use kprobed_lang::model::Labels;

/// Callers that wait until the recorder reaches a mark.
#[derive(Debug)]
pub(super) struct Marks {
    /// Absent once the recorder has ended.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Limit>>>>,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(Some(HashMap::new())) }
    }

    /// The answer to a mark. It fails if the recorder ends before the mark.
    pub(super) fn expect(&self, mark: u64) -> oneshot::Receiver<Limit> {
        let (sender, receiver) = oneshot::channel();
        if let Some(waiting) = &mut *self.lock() {
            waiting.insert(mark, sender);
        }
        receiver
    }

    fn answer(&self, mark: u64, limit: impl FnOnce() -> Limit) {
        let sender = self.lock().as_mut().and_then(|waiting| waiting.remove(&mark));
        if sender.is_some_and(|sender| sender.send(limit()).is_err()) {
            tracing::debug!(mark, "the waiter for this mark has gone");
        }
    }

    fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Limit>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The recorder and its state.
pub(super) struct Recorder {
    pub(super) subscription: Arc<Subscription>,
    pub(super) spool: Spool,
    pub(super) writer: SpoolWriter,
    pub(super) counters: Arc<Counters>,
    pub(super) marks: Arc<Marks>,
    /// The stored labels of each stored schema.
    pub(super) known: HashMap<u32, Arc<Labels>>,
    pub(super) quota: Quota,
    /// What was left out since the last entry.
    pub(super) left_out: Option<LeftOut>,
    /// The log position after the last event received.
    pub(super) sequence: u64,
    pub(super) is_failing: bool,
}

/// Nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Recorder {
    /// Writes until the subscription ends, and then ends the run in order.
    pub(super) async fn run(mut self) {
        loop {
            let next = match self.writer.next_tick(Instant::now(), wall_ns()) {
                Some(Duration::ZERO) => None,
                Some(wait) => tokio::time::timeout(wait, self.subscription.next()).await.ok(),
                None => Some(self.subscription.next().await),
            };
            match next {
                Some(Ok(item)) => self.take(item),
                Some(Err(_end)) => break,
                None => {
                    self.store_left_out();
                    if let Err(error) = self.writer.tick(Instant::now(), wall_ns()) {
                        tracing::debug!(%error, "cannot do what is due for the history");
                    }
                    self.note_state();
                }
            }
        }
        self.store_left_out();
        self.marks.end();
        if let Err(error) = self.writer.close() {
            tracing::error!(%error, "the history was not ended in order: its last events may be missing");
        }
    }

    /// Logs when storing begins to fail, and when it works again.
    fn note_state(&mut self) {
        let stats = self.spool.stats();
        if stats.failing != self.is_failing {
            self.is_failing = stats.failing;
            match stats.last_error {
                Some(error) if stats.failing => tracing::error!(%error, "cannot store events"),
                _ => tracing::info!("stores events again"),
            }
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Batch(delivery) => self.take_batch(&delivery),
            // Losses of its own queue are gaps in the numbers of events, which the spool notices.
            Item::Loss(loss) if loss.cause != LossCause::SubscriberQueue => {
                self.store_left_out();
                let offset_ns = ClockMapping::sample().wall_offset_ns;
                let entry = stored::loss_entry(&loss, self.sequence, offset_ns, trace_clock_ns());
                if let Err(error) = self.writer.append(&entry, &[]) {
                    tracing::debug!(%error, "a loss was not stored");
                }
            }
            Item::Mark(mark) => {
                self.store_left_out();
                self.marks.answer(mark, || self.spool.limit());
            }
            // A live stream has one epoch, and the recorder wants neither watermarks nor progress.
            Item::Loss(_)
            | Item::Epoch { .. }
            | Item::CaughtUp(_)
            | Item::Watermark(_)
            | Item::Progress(_) => {}
        }
    }

    fn take_batch(&mut self, delivery: &Delivery) {
        self.sequence = delivery.sequence.saturating_add(delivery.log_events);
        let Kept { left_out, rest } = self.quota.keep(delivery, &self.spool);
        if let Some(left_out) = left_out {
            self.leave_out(left_out, delivery);
        }
        if let Some(rest) = rest {
            self.store_left_out();
            let events = rest.events;
            let stored = self.store(delivery, rest);
            if self.note(events, stored) {
                self.counters.stored(events);
            } else {
                self.counters.refused(events);
            }
        }
    }

    /// Notes why events were not stored. Returns whether they were.
    fn note(&mut self, events: u64, stored: Result<(), AppendError>) -> bool {
        match stored {
            Ok(()) => return true,
            Err(AppendError::Failing(_)) => self.note_state(),
            Err(error) => tracing::warn!(%error, events, "events were not stored"),
        }
        false
    }

    /// Leaves events out that begin a batch.
    fn leave_out(&mut self, left_out: LeftOut, delivery: &Delivery) {
        self.counters.over_limit(left_out.events);
        for origin in delivery.origins.iter().filter(|one| left_out.by_schema.contains_key(&one.schema_id)) {
            // A schema waits in memory until an entry needs it.
            let stored = self.store_origin(origin, delivery.sequence);
            self.note(0, stored);
        }
        let left_out = match &mut self.left_out {
            Some(before) => match before.absorb(left_out) {
                Ok(()) => return,
                Err(left_out) => left_out,
            },
            None => left_out,
        };
        self.store_left_out();
        self.left_out = Some(left_out);
    }

    /// Stores an entry for what was left out. If that fails, the spool reports a gap in its place.
    fn store_left_out(&mut self) {
        let Some(left_out) = self.left_out.take() else { return };
        let Some(entry) = stored::left_out_entry(&left_out) else { return };
        let schemas: Vec<_> = left_out.by_schema.keys().copied().collect();
        let stored = self.writer.append(&entry, &schemas);
        self.note(left_out.events, stored);
    }

    fn store(&mut self, delivery: &Delivery, rest: Rest) -> Result<(), AppendError> {
        let Rest { message, events, without, shares } = rest;
        let stored = || delivery.origins.iter().filter(|origin| !without.contains(&origin.schema_id));
        for origin in stored() {
            self.store_origin(origin, delivery.sequence)?;
        }
        let too_large = AppendError::TooLarge { bytes: message.len() as u64, limit: u32::MAX.into() };
        let entry = stored::events_entry(delivery, events, message).ok_or(too_large)?;
        let schemas: Vec<_> = stored().map(|origin| origin.schema_id).collect();
        self.writer.append_of(&entry, &schemas, &shares)
    }

    /// Stores a schema before its first event, and again if the labels of its probe have changed.
    fn store_origin(&mut self, origin: &Origin, sequence: u64) -> Result<(), AppendError> {
        let labels = origin.labels();
        if self.known.get(&origin.schema_id).is_none_or(|known| !Arc::ptr_eq(known, &labels)) {
            self.writer.append(&stored::schema_entry(origin, &labels, sequence), &[])?;
            self.known.insert(origin.schema_id, labels);
        }
        Ok(())
    }
}
