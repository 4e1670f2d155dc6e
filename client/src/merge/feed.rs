//! Feed of one host into the merge.
//!
//! Owns the connection: reconnects, clock measurements, and that it reads no more than the merge
//! permits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, MissedTickBehavior};

use super::clock::{ClockOffset, LocalClock};
use super::stream::MergeOptions;
use crate::client::Client;
use crate::error::Error;
use crate::event::{Backoff, Cursor, Interruption, ResumingItem, ResumingStream, StreamItem, StreamRequest};
use crate::fleet::{Host, Operation as _, Outcome};

/// How often an idle host sends a heartbeat. A quarter of [`MergeOptions::max_wait`] at most.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// How often the clocks are compared.
const CLOCK_INTERVAL: Duration = Duration::from_secs(30);

/// How long to wait between tries.
pub(super) const BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(100), longest: Duration::from_secs(2) };

/// A message from a host's feed to the merge.
#[derive(Debug)]
pub(super) enum Signal {
    /// It is being connected to.
    Connecting,
    /// Its stream has begun, over this connection.
    Connected(Client),
    /// The clocks were compared.
    Clock(ClockOffset),
    /// Wall clock minus trace clock of the boot that its stream is in, in nanoseconds, where the
    /// clocks cannot be compared.
    #[cfg(feature = "nats")]
    WallOffset(i64),
    /// An item of its stream. The first one after a connection is [`StreamItem::Started`].
    Item(StreamItem),
    /// A message that cannot be read, and where its stream was.
    Malformed { problem: String, cursor: Option<Cursor> },
    /// No connection. It is tried again.
    Lost { reason: String, outcome: Outcome },
    /// The stream came to its end.
    Ended,
    /// It is not tried again.
    GivenUp { reason: String, outcome: Outcome },
}

/// The side of the merge that the feed of a host has.
pub(super) struct Link {
    pub(super) index: usize,
    pub(super) options: MergeOptions,
    /// How many connections may be opened at once. Open ones stay.
    pub(super) gate: Arc<Semaphore>,
    /// Items that the merge has room for.
    pub(super) permits: Arc<Semaphore>,
    pub(super) signals: UnboundedSender<(usize, Signal)>,
}

/// The merge was dropped.
pub(super) struct Gone;

impl Link {
    pub(super) fn tell(&self, signal: Signal) -> Result<(), Gone> {
        self.signals.send((self.index, signal)).map_err(|_gone| Gone)
    }
}

/// One host, and the parts that its feed needs.
pub(super) struct Feed {
    pub(super) host: Host,
    /// An open connection, which is used as long as it lasts.
    pub(super) client: Option<Client>,
    pub(super) request: StreamRequest,
    pub(super) local: LocalClock,
    pub(super) link: Link,
}

/// The outcome of a host that could not be connected to.
fn problem(error: &Error) -> (String, Outcome) {
    (error.without_target(), error.outcome())
}

impl Feed {
    /// Reads the host until its end, or until the merge is dropped.
    pub(super) async fn follow(self) -> Result<(), Gone> {
        let Some((client, mut stream)) = self.open().await? else { return Ok(()) };
        let mut compare = tokio::time::interval_at(Instant::now() + CLOCK_INTERVAL, CLOCK_INTERVAL);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_lost = false;
        let mut malformed_at = None;
        loop {
            // What exceeds the permits waits in the daemon's queue.
            let Ok(permit) = self.link.permits.acquire().await else { return Ok(()) };
            let item = loop {
                tokio::select! {
                    biased;
                    item = stream.next() => break item,
                    _ = compare.tick() => self.compare(&client).await?,
                }
            };
            match item {
                Ok(Some(ResumingItem::Item(item))) => {
                    if was_lost && matches!(item, StreamItem::Started(_)) {
                        // The host may have rebooted: its clock is a new one.
                        self.compare(&client).await?;
                        was_lost = false;
                    }
                    permit.forget();
                    self.link.tell(Signal::Item(item))?;
                }
                Ok(Some(ResumingItem::Interrupted(Interruption { error, .. }))) => {
                    was_lost = true;
                    let (reason, outcome) = match &error {
                        Some(error) => problem(error),
                        None => ("the daemon ended the stream".to_owned(), Outcome::Failed),
                    };
                    if !self.link.options.reconnect {
                        return self.link.tell(Signal::GivenUp { reason, outcome });
                    }
                    self.link.tell(Signal::Lost { reason, outcome })?;
                }
                Ok(None) => return self.link.tell(Signal::Ended),
                // The stream could continue, but the content of the message is lost: reopen it to
                // read the message again. If it is malformed twice, the daemon writes it so.
                Err(error @ Error::Malformed(_)) => {
                    let (problem, outcome) = problem(&error);
                    let cursor = stream.cursor().cloned();
                    self.link.tell(Signal::Malformed { problem: problem.clone(), cursor: cursor.clone() })?;
                    let is_again = malformed_at.as_ref() == Some(&cursor);
                    if is_again || !self.link.options.reconnect {
                        let again = if is_again { ", twice at the same place" } else { "" };
                        return self
                            .link
                            .tell(Signal::GivenUp { reason: format!("{problem}{again}"), outcome });
                    }
                    malformed_at = Some(cursor);
                    was_lost = true;
                    stream.restart();
                    self.link.tell(Signal::Lost { reason: problem, outcome })?;
                }
                Err(error) => {
                    let (reason, outcome) = problem(&error);
                    return self.link.tell(Signal::GivenUp { reason, outcome });
                }
            }
        }
    }

    /// Measures the clock offset again. If that fails, the last one stays: the stream reports what
    /// is wrong with the connection.
    async fn compare(&self, client: &Client) -> Result<(), Gone> {
        let limit = self.link.options.max_wait / 2;
        match tokio::time::timeout(limit, ClockOffset::measure(client, self.local)).await {
            Ok(Ok(clock)) => self.link.tell(Signal::Clock(clock)),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Opens the stream, with as many attempts as needed. None: it is given up.
    async fn open(&self) -> Result<Option<(Client, ResumingStream)>, Gone> {
        let mut delay = BACKOFF.initial;
        loop {
            let Ok(place) = self.link.gate.acquire().await else { return Ok(None) };
            self.link.tell(Signal::Connecting)?;
            let tried = self.try_open().await;
            drop(place);
            let error = match tried {
                Ok((client, clock, stream)) => {
                    self.link.tell(Signal::Connected(client.clone()))?;
                    self.link.tell(Signal::Clock(clock))?;
                    return Ok(Some((client, stream)));
                }
                Err(error) => error,
            };
            let (reason, outcome) = problem(&error);
            if !error.is_transient() || !self.link.options.reconnect {
                self.link.tell(Signal::GivenUp { reason, outcome })?;
                return Ok(None);
            }
            self.link.tell(Signal::Lost { reason, outcome })?;
            tokio::time::sleep(delay).await;
            delay = delay.saturating_mul(2).min(BACKOFF.longest);
        }
    }

    async fn try_open(&self) -> Result<(Client, ClockOffset, ResumingStream), Error> {
        // Connecting has a limit of its own, so that a host that cannot be reached never counts as
        // one that did not answer.
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.host.connect().await?,
        };
        let limit = self.host.options.request_timeout;
        let begin = async {
            let clock = ClockOffset::measure(&client, self.local).await?;
            let stream = ResumingStream::with_backoff(&client, self.request.clone(), BACKOFF).await?;
            Ok((clock, stream))
        };
        let (clock, stream) =
            tokio::time::timeout(limit, begin).await.unwrap_or(Err(Error::timeout(limit)))?;
        Ok((client, clock, stream))
    }
}

/// How often watermarks must arrive so that no live host looks late.
pub(super) fn heartbeat(options: &MergeOptions) -> Duration {
    HEARTBEAT.min(options.max_wait / 4)
}
