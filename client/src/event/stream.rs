//! Event streams: of one connection, and one that reconnects and resumes.
//!
//! Owns when to reconnect, from which cursor, and when to stop. Missed events come from the
//! daemon's history, or the daemon reports them as a loss. No event comes twice.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Streaming};

use super::request::StreamRequest;
use crate::api;
use crate::client::Client;
use crate::error::Error;
use kprobed_event::{Batch, Cursor, Decoder, StreamItem};

/// Event stream that has begun: the daemon has subscribed this client.
#[derive(Debug)]
pub struct EventStream {
    inner: Streaming<api::StreamEventsResponse>,
    decoder: Decoder,
    started: api::StreamStarted,
    /// Whether the caller has taken that as the first item.
    is_taken: bool,
}

impl EventStream {
    pub(crate) fn new(
        first: api::StreamEventsResponse,
        rest: Streaming<api::StreamEventsResponse>,
    ) -> Result<Self, Error> {
        let mut decoder = Decoder::default();
        match decoder.item(first)? {
            Some(StreamItem::Started(started)) => Ok(Self { inner: rest, decoder, started, is_taken: false }),
            _ => Err(Error::Incomplete("started")),
        }
    }

    /// What the daemon said when the stream began: the first item.
    pub fn started(&self) -> &api::StreamStarted {
        &self.started
    }

    /// The next item; `None` when the daemon ended the stream in order.
    ///
    /// A slow caller slows down no other client: when the windows of the connection are full, the
    /// daemon's queue for this client fills, and the overflow policy decides. A
    /// [`StreamItem::Loss`] reports the events that it drops.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a message does not fit the API; the stream can be read on after
    /// that. [`Error::Disconnected`] and [`Error::Rpc`] end it.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, Error> {
        if !std::mem::replace(&mut self.is_taken, true) {
            return Ok(Some(StreamItem::Started(self.started.clone())));
        }
        while let Some(response) = self.inner.message().await? {
            if let Some(item) = self.decoder.item(response)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Where to continue: after everything that was read so far. `None` before
    /// [`StreamItem::Epoch`].
    pub fn cursor(&self) -> Option<&Cursor> {
        self.decoder.cursor()
    }
}

/// How long to wait before trying again: twice as long each time, with up to a half taken off at
/// random, so that the clients of a daemon that comes back do not come all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second try; the first one is immediate.
    pub initial: Duration,
    /// At most.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// How long to wait after this many attempts in a row without a message. `random` is any
    /// number.
    fn delay(&self, failures: u32, random: u64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let full = self.initial.saturating_mul(2_u32.saturating_pow(doublings)).min(self.longest);
        let percent = u32::try_from(random % 51).unwrap_or(0);
        full.saturating_sub(full / 100 * percent)
    }
}

/// One item of a stream that resumes.
#[derive(Debug)]
pub enum ResumingItem {
    /// An item of the stream. After an interruption the stream restarts with
    /// [`StreamItem::Started`].
    Item(StreamItem),
    /// The connection was lost, or could not be made again. The stream tries again by itself.
    Interrupted(Interruption),
}

/// A connection that was lost or could not be made.
#[derive(Debug)]
pub struct Interruption {
    /// Why. `None`: the daemon ended the stream in order, as it does when it stops.
    pub error: Option<Error>,
    /// Attempts in a row without a message, this one included.
    pub failures: u32,
    /// How long the stream waits until it tries again.
    pub retry_in: Duration,
}

/// Events as they happen, also across restarts of the daemon.
#[derive(Debug)]
pub struct ResumingStream {
    client: Client,
    request: StreamRequest,
    backoff: Backoff,
    state: State,
    cursor: Option<Cursor>,
    /// Attempts in a row without a message.
    failures: u32,
    random: RandomState,
}

#[derive(Debug)]
enum State {
    Open(Box<EventStream>),
    Waiting(Instant),
    /// The end of the stream was reached, or an error that further attempts do not resolve.
    Ended,
}

impl ResumingStream {
    /// Opens a stream.
    ///
    /// # Errors
    /// When the stream cannot be opened at once; only afterwards it is tried again.
    pub async fn open(client: &Client, request: StreamRequest) -> Result<Self, Error> {
        Self::with_backoff(client, request, Backoff::default()).await
    }

    /// Opens a stream that waits as long as this between tries.
    ///
    /// # Errors
    /// As [`ResumingStream::open`].
    pub async fn with_backoff(
        client: &Client,
        request: StreamRequest,
        backoff: Backoff,
    ) -> Result<Self, Error> {
        let stream = client.stream_events(request.clone()).await?;
        Ok(Self {
            client: client.clone(),
            request,
            backoff,
            state: State::Open(Box::new(stream)),
            cursor: None,
            failures: 0,
            random: RandomState::new(),
        })
    }

    /// The next item; `None` when a request that has an end ([`StreamRequest::until_now`]) came to
    /// it.
    ///
    /// # Errors
    /// [`Error::Malformed`] if a message does not fit the API; the stream can be read on after
    /// that. Any other error is permanent, and ends the stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<ResumingItem>, Error> {
        loop {
            let result = match &mut self.state {
                State::Open(stream) => stream.next().await,
                State::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    let request = match &self.cursor {
                        Some(cursor) => self.request.clone().after(cursor.clone()),
                        None => self.request.clone(),
                    };
                    match self.client.stream_events(request).await {
                        Ok(stream) => {
                            self.state = State::Open(Box::new(stream));
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                State::Ended => return Ok(None),
            };
            match result {
                Ok(Some(StreamItem::Batch(batch))) if self.has_seen(&batch) => {}
                Ok(Some(item)) => {
                    self.learn(&item);
                    return Ok(Some(ResumingItem::Item(item)));
                }
                Ok(None) if self.request.ends() => self.state = State::Ended,
                Ok(None) => return Ok(Some(self.interrupted(None))),
                Err(error @ Error::Malformed(_)) => return Err(error),
                Err(error) if self.is_transient(&error) => return Ok(Some(self.interrupted(Some(error)))),
                Err(error) => {
                    self.state = State::Ended;
                    return Err(error);
                }
            }
        }
    }

    /// Reopens the stream at its cursor, for a caller that needs a message that was malformed.
    pub fn restart(&mut self) {
        if self.stream().is_some() {
            self.interrupted(None);
        }
    }

    /// What the daemon said when the stream of the present connection began. `None` without a connection.
    pub fn started(&self) -> Option<&api::StreamStarted> {
        self.stream().map(EventStream::started)
    }

    /// Where to continue: after everything that was read so far. `None` before the first item.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Whether a batch precedes the cursor: a daemon may begin with one that was delivered before.
    fn has_seen(&self, batch: &Batch) -> bool {
        let now = self.stream().and_then(EventStream::cursor);
        let (Some(seen), Some(now)) = (&self.cursor, now) else { return false };
        let same_log = seen.boot_id == now.boot_id && seen.epoch == now.epoch;
        same_log && batch.sequence() < seen.sequence && batch.end_sequence() <= seen.sequence
    }

    /// The stream of the present connection.
    fn stream(&self) -> Option<&EventStream> {
        match &self.state {
            State::Open(stream) => Some(stream),
            State::Waiting(_) | State::Ended => None,
        }
    }

    /// Moves the cursor. Not with an epoch, unless nothing before it was requested: the losses
    /// before it are reported only after it, and must be reported again if the connection is lost
    /// in between.
    fn learn(&mut self, item: &StreamItem) {
        let moves = match item {
            StreamItem::Batch(_) | StreamItem::CaughtUp(_) | StreamItem::Loss(_) => true,
            StreamItem::Epoch(_) => self.cursor.is_none() && self.request.starts_now(),
            StreamItem::Started(_) | StreamItem::Schema(_) | StreamItem::Watermark(_) => false,
        };
        if moves && let Some(mut now) = self.stream().and_then(EventStream::cursor).cloned() {
            if let Some(seen) = &self.cursor
                && (&seen.boot_id, seen.epoch) == (&now.boot_id, now.epoch)
            {
                // A daemon may begin earlier than it was asked to.
                now.sequence = now.sequence.max(seen.sequence);
            }
            self.cursor = Some(now);
        }
        // Only progress justifies an immediate attempt after the next failure.
        if moves || matches!(item, StreamItem::Watermark(_)) {
            self.failures = 0;
        }
    }

    fn interrupted(&mut self, error: Option<Error>) -> ResumingItem {
        let retry_in = self.backoff.delay(self.failures, self.random.hash_one(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.state = State::Waiting(Instant::now() + retry_in);
        ResumingItem::Interrupted(Interruption { error, failures: self.failures, retry_in })
    }

    /// Whether the same request may succeed later.
    fn is_transient(&self, error: &Error) -> bool {
        // That is how the daemon ends a stream whose queue is full, if it was asked to: what did
        // not fit is in the history.
        let overflow = error.rpc().is_some_and(|error| error.code == Code::ResourceExhausted)
            && self.request.disconnects_on_overflow()
            && self.stream().is_some();
        overflow || error.is_transient()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_grow_to_a_limit(failures: u32, random: u64) {
            let backoff = Backoff::default();
            let (now, next) = (backoff.delay(failures, random), backoff.delay(failures.saturating_add(1), 0));
            prop_assert!(now <= next && next <= backoff.longest);
            prop_assert!(failures == 0 || now >= backoff.initial / 2);
            prop_assert!(failures < 10 || now >= backoff.longest / 2);
        }
    }
}
