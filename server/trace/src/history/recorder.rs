//! Recorder: the thread that writes the history.
//!
//! Owns one subscription of the daemon's own. The hub never waits for its queue: if the disk is
//! slower than the events, the queue drops what does not fit, and readers of the history get a
//! report that those events were not stored. Never selects: it stores every event.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::stored;
use crate::pipeline::{Delivery, Item, LossCause, Origin, Subscription};
use crate::spool::{AppendError, Spool, SpoolWriter};
use kprobed_host::kernel::{ClockMapping, trace_clock_ns};
use kprobed_lang::model::Labels;

/// What the recorder counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Events that the spool has taken.
    pub(super) stored: AtomicU64,
    /// Events that it has refused.
    pub(super) refused: AtomicU64,
}

/// The recorder and its state.
pub(super) struct Recorder {
    pub(super) subscription: Arc<Subscription>,
    pub(super) spool: Spool,
    pub(super) writer: SpoolWriter,
    pub(super) counters: Arc<Counters>,
    /// The stored labels of each stored schema.
    pub(super) known: HashMap<u32, Arc<Labels>>,
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
                    if let Err(error) = self.writer.tick(Instant::now(), wall_ns()) {
                        tracing::debug!(%error, "cannot do what is due for the history");
                    }
                    self.note_state();
                }
            }
        }
        self.writer.note_log_end(self.subscription.log_end());
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
            // Losses of its own queue are gaps in the numbers of events, which the spool notices with the next entry
            // or at the end of the run.
            Item::Loss(loss) if loss.cause != LossCause::SubscriberQueue => {
                let offset_ns = ClockMapping::sample().wall_offset_ns;
                let entry = stored::loss_entry(&loss, self.sequence, offset_ns, trace_clock_ns());
                if let Err(error) = self.writer.append(&entry, &[]) {
                    tracing::debug!(%error, "a loss was not stored");
                }
            }
            Item::Mark(mark) => {
                if mark.send(self.spool.limit()).is_err() {
                    tracing::debug!("the waiter for a mark has gone");
                }
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
        match self.store(delivery) {
            Ok(()) => {
                self.counters.stored.fetch_add(delivery.log_events, Ordering::Relaxed);
            }
            Err(error) => {
                self.counters.refused.fetch_add(delivery.log_events, Ordering::Relaxed);
                if matches!(error, AppendError::Failing(_)) {
                    self.note_state();
                } else {
                    tracing::warn!(%error, events = delivery.log_events, "events were not stored");
                }
            }
        }
    }

    fn store(&mut self, delivery: &Delivery) -> Result<(), AppendError> {
        for origin in delivery.origins.iter() {
            self.store_origin(origin, delivery.sequence)?;
        }
        let too_large =
            || AppendError::TooLarge { bytes: delivery.message.len() as u64, limit: u32::MAX.into() };
        let entry = stored::events_entry(delivery).ok_or_else(too_large)?;
        let schemas: Vec<_> = delivery.origins.iter().map(|origin| origin.schema_id).collect();
        self.writer.append(&entry, &schemas)
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
