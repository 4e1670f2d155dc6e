//! The loop of one exporter: read a chunk, send it, advance the cursor, reconnect after a failure.
//!
//! Owns when the cursor advances: only after the receiver has acknowledged everything before it. A
//! chunk that failed is not kept in memory: it is read from the log again.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::OptionFuture;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::account::Walk;
use super::pump::{Pump, between, is_ahead};
use super::status::Shared;
use super::{ExportParts, Sent, Sink, SinkError};
use kprobed_trace::feed::{Feed, FeedError, FeedStart};
use kprobed_trace::history::{HistoryError, HistoryStart};
use kprobed_trace::pipeline::{Order, Overflow, Pace, QueueLimits, View};
use kprobed_trace::spool::{Cursor, SpoolError};

/// Limits and intervals of an exporter.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long events may wait for others to be sent with them.
    pub linger: Duration,
    /// Bytes of messages that are sent at once.
    pub chunk_bytes: usize,
    /// Events that are sent at once.
    pub chunk_events: u64,
    /// Time limit of an answer of the receiver.
    pub timeout: Duration,
    /// Interval at which the cursor is stored. As much is sent again after the daemon was killed.
    pub save_interval: Duration,
    /// The order in which it reads. By time, it gets watermarks.
    pub order: Order,
    /// By time: how often a watermark comes at least, even if nothing happens.
    pub heartbeat: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            linger: Duration::from_millis(200),
            chunk_bytes: 1 << 20,
            chunk_events: 1 << 16,
            timeout: Duration::from_secs(10),
            save_interval: Duration::from_secs(1),
            order: Order::default(),
            heartbeat: None,
        }
    }
}

/// Events that may wait in memory for the receiver, in bytes. The others wait in the history.
const QUEUE_BYTES: u64 = 8 << 20;

/// Time limit of the receiver's last answer when the daemon stops.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// The first wait, before jitter.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Waits that double with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure. `random` is any number: many daemons do not come
    /// back at the same moment.
    fn next(&mut self, random: u64) -> Duration {
        let full = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        let percent = u32::try_from(random % 51).unwrap_or(0);
        full.saturating_sub(full / 100 * percent)
    }
}

/// An exporter that is to be run.
#[derive(Debug)]
pub struct Exporter<S> {
    pub(super) sink: S,
    pub(super) selection: View,
    pub(super) policy: Policy,
    pub(super) shared: Arc<Shared>,
    pub(super) parts: ExportParts,
}

/// A cursor that is not stored yet, and the time at which it must be.
type Unsaved = Option<(Cursor, Instant)>;

impl<S: Sink> Exporter<S> {
    /// Sends until the daemon stops.
    pub async fn run(mut self) {
        let (mut backoff, random) = (Backoff::default(), RandomState::new());
        let (mut place, mut unsaved) = (None, None);
        let mut first = self.begin().await;
        let stopping = self.parts.tasks.stopping().clone();
        while !stopping.is_cancelled() {
            let round = self.round(&mut first, &mut place, &mut unsaved, &mut backoff).await;
            let Err(error) = round else { break };
            let own = backoff.next(random.hash_one(SystemTime::now()));
            let wait = own.max(error.wait.unwrap_or_default());
            self.shared.begin_at(place.or(first));
            self.shared.failed(&error.to_string(), SystemTime::now() + wait);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopping.cancelled() => break,
            }
        }
        self.save(&mut unsaved).await;
    }

    /// Where a new exporter begins: with the present. Absent if it has begun before. The cursor is stored: what its
    /// receiver does not take yet is sent later, by the next run of the daemon if need be.
    async fn begin(&mut self) -> Option<Cursor> {
        let first = Cursor { sequence: self.parts.hub.sequence(), ..self.parts.log.now };
        let Ok(None) = self.parts.store.exporter_place(self.shared.name).await else { return None };
        let saved = self.parts.store.set_exporter_place(self.shared.name, first).await;
        self.shared.saved(saved.err().map(|error| error.to_string()));
        Some(first)
    }

    /// Opens the receiver, and sends until the daemon stops or something fails. `first` is where the exporter has
    /// begun, until its receiver has acknowledged something.
    async fn round(
        &mut self,
        first: &mut Option<Cursor>,
        place: &mut Option<Cursor>,
        unsaved: &mut Unsaved,
        backoff: &mut Backoff,
    ) -> Result<(), SinkError> {
        let (timeout, stopping) = (self.policy.timeout, self.parts.tasks.stopping().clone());
        match within_time("connect", timeout, &stopping, self.sink.open()).await? {
            Some(own) => {
                if let Some(answered) = *place {
                    self.account_for(answered, own).await?;
                }
                *place = Some(own);
            }
            None if place.is_none() => {
                let stored = self.parts.store.exporter_place(self.shared.name).await;
                let stored = stored.map_err(|error| SinkError::new("read where the exporter was", error))?;
                *place = stored.or(*first);
            }
            None => {}
        }
        // A new one is shown at its place once its receiver has taken something, or has failed to.
        self.shared.begin_at(place.filter(|place| Some(*place) != *first));
        loop {
            let (mut pump, mut walk) = match self.pump(*first, place).await {
                Err(FeedError::Stopping) => return Ok(()),
                pump => pump?,
            };
            self.shared.opened();
            let ended = loop {
                let item = tokio::select! {
                    item = pump.first() => item,
                    Some(()) = OptionFuture::from(unsaved.map(|(_, due)| sleep_until(due))) => {
                        self.save(unsaved).await;
                        continue;
                    }
                    () = stopping.cancelled() => return Ok(()),
                };
                let item = match item {
                    Ok(item) => item,
                    Err(error) => break error,
                };
                let chunk = pump.gather(item, &mut walk, &self.policy).await;
                let mut answer = Sent::default();
                if !chunk.items.is_empty() {
                    let sent = within_time("send", timeout, &stopping, self.sink.send(&chunk)).await;
                    answer = sent.inspect_err(|_| self.shared.not_taken())?;
                    *backoff = Backoff::default();
                    *first = None;
                }
                self.shared.settled(chunk.end, &chunk.walked, &answer);
                if chunk.end != *place {
                    *place = chunk.end;
                    let due = unsaved.map(|(_, due)| due);
                    let due = due.unwrap_or_else(|| Instant::now() + self.policy.save_interval);
                    *unsaved = chunk.end.map(|end| (end, due));
                }
            };
            match ended {
                FeedError::Stopping => return Ok(()),
                // It was too slow for the present, and reads what it missed from the history.
                FeedError::Overflowed { .. } => {}
                error => return Err(error.into()),
            }
        }
    }

    /// Events whose acknowledgement was lost count as acknowledged too.
    async fn account_for(&mut self, answered: Cursor, own: Cursor) -> Result<(), FeedError> {
        if is_ahead(answered, own) {
            let start = FeedStart { place: Some(HistoryStart::Cursor(answered)), until_now: true };
            let walked = between(&mut self.feed(start).await?, answered, own).await?;
            self.shared.settled(Some(own), &walked, &Sent::default());
        }
        Ok(())
    }

    /// Reads from a cursor on; from the present without one.
    async fn pump(
        &mut self,
        first: Option<Cursor>,
        place: &mut Option<Cursor>,
    ) -> Result<(Pump, Walk), FeedError> {
        let start = |place: Option<HistoryStart>| FeedStart { place, until_now: false };
        let feed = match self.feed(start(place.map(HistoryStart::Cursor))).await {
            // The history is another one: that of this directory was lost, or is a copy.
            Err(FeedError::History(HistoryError::Spool(error @ SpoolError::ForeignCursor { .. }))) => {
                tracing::warn!(exporter = self.shared.name, %error, "continuing with the oldest event of the history");
                *place = None;
                self.feed(start(Some(HistoryStart::Oldest))).await?
            }
            opened => opened?,
        };
        let walk = match *place {
            Some(cursor) if first == Some(cursor) => Walk::first(cursor),
            place => Walk::from(place),
        };
        Ok((Pump::start(&self.parts.tasks, feed), walk))
    }

    async fn feed(&mut self, start: FeedStart) -> Result<Feed, FeedError> {
        let view = View {
            pace: Pace::Throughput,
            order: self.policy.order,
            heartbeat: self.policy.heartbeat,
            limits: QueueLimits { events: u64::MAX, bytes: QUEUE_BYTES, overflow: Overflow::Disconnect },
            ..self.selection.clone()
        };
        Feed::open(&self.parts.log, self.parts.hub.subscribe_own(view), start).await
    }

    /// Stores the cursor.
    async fn save(&mut self, unsaved: &mut Unsaved) {
        let Some((place, _)) = unsaved.take() else { return };
        if let Err(error) = self.sink.settle().await {
            // Stored later: what is not durable at the receiver is sent again.
            self.shared.saved(Some(error.to_string()));
            return;
        }
        let saved = self.parts.store.set_exporter_place(self.shared.name, place).await;
        self.shared.saved(saved.err().map(|error| error.to_string()));
    }
}

/// Runs a request to the receiver with a timeout.
async fn within_time<T>(
    action: &str,
    timeout: Duration,
    stopping: &CancellationToken,
    act: impl Future<Output = Result<T, SinkError>>,
) -> Result<T, SinkError> {
    tokio::select! {
        done = act => done,
        () = tokio::time::sleep(timeout) => {
            Err(SinkError::new(action, format_args!("no answer within {} s", timeout.as_secs_f32())))
        }
        () = async { stopping.cancelled().await; tokio::time::sleep(LAST_ANSWER).await } => {
            Err(SinkError::new(action, "the daemon stops"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_end() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.next(0).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.next(50), LONGEST_WAIT / 2);
        backoff = Backoff::default();
        assert_eq!(backoff.next(51), FIRST_WAIT);
    }
}
