//! What a stream consists of: the history as far back as was asked for, and then the present, without a seam.
//!
//! Owns the way from the one to the other. Both kinds of streams are made from it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::stream_start::Start;
use tonic::Status;

use super::status;
use crate::control::ControlError;
use crate::history::{History, HistoryError, HistoryItem, HistoryReader, HistoryStart};
use crate::pipeline::{Delivery, End, Item, Loss, LossCause, Subscription};
use crate::spool::{BootId, Cursor};

/// One thing in a stream.
#[derive(Debug)]
pub(super) enum FeedItem {
    /// Of another run of the daemon from here on, or the beginning.
    Epoch(v1::EpochStarted),
    /// The present begins.
    CaughtUp(v1::Cursor),
    /// Events.
    Batch(Delivery),
    /// A gap.
    Loss(Loss),
    /// Everything before was delivered.
    Watermark(u64),
    /// Everything before was looked at.
    Progress(v1::Cursor),
}

/// Events that may be between the history and the present when the present is joined: they are read while new ones wait in the queue.
const JOIN_EVENTS: u64 = 100_000;

/// How often that is tried for a history that grows as fast as it is read.
const JOIN_TRIALS: u32 = 16;

#[derive(Debug)]
enum State {
    Past {
        reader: Box<HistoryReader>,
        trials: u32,
    },
    /// Up to where the present begins.
    Joining {
        reader: Box<HistoryReader>,
        sequence: u64,
    },
    Present,
    Over,
}

/// A stream's source.
#[derive(Debug)]
pub(super) struct Feed {
    subscription: Arc<Subscription>,
    history: Option<Arc<History>>,
    state: State,
    ready: VecDeque<FeedItem>,
    until_now: bool,
    /// Where the present is in the log; its sequence is not looked at.
    now: Cursor,
}

/// Where the log of this run is, and what was before.
#[derive(Clone, Debug)]
pub struct Log {
    /// The history, when one is kept.
    pub history: Option<Arc<History>>,
    /// This run of the daemon.
    pub now: Cursor,
}

impl Feed {
    /// Begins where the client wants.
    pub(super) async fn open(
        log: &Log,
        subscription: Subscription,
        start: Option<v1::StreamStart>,
    ) -> Result<Self, Status> {
        let start = start.unwrap_or_default();
        let mut feed = Self {
            subscription: Arc::new(subscription),
            history: log.history.clone(),
            state: State::Over,
            ready: VecDeque::new(),
            until_now: start.until_now,
            now: log.now,
        };
        let Some(place) = start.start else {
            let sequence = feed.subscription.attach();
            feed.begin(Cursor { sequence, ..feed.now }, false);
            feed.caught_up(sequence);
            return Ok(feed);
        };
        let place = place_of(place)?;
        match (&feed.history, place) {
            (Some(history), place) => {
                let reader = history
                    .read(place, Arc::clone(&feed.subscription))
                    .await
                    .map_err(|error| status::of_history(&error))?;
                feed.state = State::Past { reader: Box::new(reader), trials: 0 };
            }
            (None, HistoryStart::Cursor(cursor)) => feed.resume_without_history(cursor)?,
            (None, _) => {
                return Err(status::no_history());
            }
        }
        Ok(feed)
    }

    fn begin(&mut self, cursor: Cursor, may_miss: bool) {
        self.ready.push_back(FeedItem::Epoch(v1::EpochStarted { cursor: Some(message(&cursor)), may_miss }));
    }

    fn caught_up(&mut self, sequence: u64) {
        self.ready.push_back(FeedItem::CaughtUp(message(&Cursor { sequence, ..self.now })));
        self.state = if self.until_now { State::Over } else { State::Present };
    }

    /// Nothing that was is there any more.
    fn resume_without_history(&mut self, cursor: Cursor) -> Result<(), Status> {
        let is_same = (cursor.boot_id, cursor.epoch) == (self.now.boot_id, self.now.epoch);
        let sequence = self.subscription.attach();
        let missed = sequence.checked_sub(cursor.sequence);
        if is_same && missed.is_none() {
            let message = format!(
                "`start.cursor` is ahead of the log: the log is at position {sequence}, the cursor at {}",
                cursor.sequence
            );
            return Err(status::invalid("start.cursor", &message));
        }
        self.begin(Cursor { sequence, ..self.now }, !is_same);
        if !is_same || missed != Some(0) {
            let count = if is_same { missed } else { None };
            self.subscription.count_loss(count.unwrap_or(0));
            let loss = Loss { cause: LossCause::Expired, cpu: None, count, before_ns: 0, gaps: 1 };
            self.ready.push_back(FeedItem::Loss(loss));
        }
        self.caught_up(sequence);
        Ok(())
    }

    /// The subscription.
    pub(super) fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// What comes next. `None` after everything that was asked for.
    pub(super) async fn next(&mut self) -> Result<Option<FeedItem>, Status> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            match std::mem::replace(&mut self.state, State::Over) {
                State::Past { reader, trials } => self.go_on(reader, trials).await?,
                State::Joining { reader, sequence } => self.join(reader, sequence).await?,
                State::Present => {
                    let item = self.subscription.next().await.map_err(ended)?;
                    self.state = State::Present;
                    match item {
                        Item::Batch(delivery) => return Ok(Some(FeedItem::Batch(delivery))),
                        Item::Loss(loss) => return Ok(Some(FeedItem::Loss(loss))),
                        Item::Watermark(watermark_ns) => return Ok(Some(FeedItem::Watermark(watermark_ns))),
                        Item::Progress(sequence) => {
                            return Ok(Some(FeedItem::Progress(message(&Cursor { sequence, ..self.now }))));
                        }
                        // Only the history sets them.
                        Item::Mark(_) => {}
                    }
                }
                State::Over => return Ok(None),
            }
        }
    }

    async fn go_on(&mut self, reader: Box<HistoryReader>, trials: u32) -> Result<(), Status> {
        let (mut reader, is_at_end) = self.read(reader).await?;
        if !is_at_end {
            self.state = State::Past { reader, trials };
        } else if self.until_now {
            self.caught_up(reader.cursor().sequence);
        } else if trials < JOIN_TRIALS && reader.extend() > JOIN_EVENTS {
            self.state = State::Past { reader, trials: trials + 1 };
        } else if let Some(history) = &self.history {
            let (sequence, limit) =
                history.attach(&self.subscription).await.map_err(|error| status::of_history(&error))?;
            reader.extend_to(limit);
            self.state = State::Joining { reader, sequence };
        }
        Ok(())
    }

    async fn join(&mut self, reader: Box<HistoryReader>, sequence: u64) -> Result<(), Status> {
        let (reader, is_at_end) = self.read(reader).await?;
        if is_at_end {
            self.ready.extend(reader.missing_before(sequence).map(FeedItem::Loss));
            self.caught_up(sequence);
        } else {
            self.state = State::Joining { reader, sequence };
        }
        Ok(())
    }

    async fn read(&mut self, mut reader: Box<HistoryReader>) -> Result<(Box<HistoryReader>, bool), Status> {
        let read = tokio::task::spawn_blocking(move || reader.next_piece().map(|piece| (reader, piece)));
        let (reader, piece) = read
            .await
            .map_err(HistoryError::from)
            .and_then(|read| read.map_err(HistoryError::from))
            .map_err(|error| status::of_history(&error))?;
        for item in piece.items {
            match item {
                HistoryItem::Epoch { cursor, may_miss } => self.begin(cursor, may_miss),
                HistoryItem::Batch(delivery) => self.ready.push_back(FeedItem::Batch(delivery)),
                HistoryItem::Loss(loss) => self.ready.push_back(FeedItem::Loss(loss)),
                HistoryItem::Watermark(watermark_ns) => {
                    self.ready.push_back(FeedItem::Watermark(watermark_ns));
                }
            }
        }
        Ok((reader, piece.is_last))
    }
}

fn place_of(start: Start) -> Result<HistoryStart, Status> {
    Ok(match start {
        Start::Oldest(true) => HistoryStart::Oldest,
        Start::Oldest(false) => {
            return Err(status::invalid("start.oldest", "`start.oldest` can only be true"));
        }
        Start::LastEvents(events) => HistoryStart::Last(events),
        Start::Since(time) => {
            let bad = || status::invalid("start.since", "`start.since` must be a time between 1970 and 2554");
            let seconds = u64::try_from(time.seconds).map_err(|_negative| bad())?;
            let nanos = u64::try_from(time.nanos).map_err(|_negative| bad())?;
            let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanos));
            HistoryStart::SinceWall(ns.ok_or_else(bad)?)
        }
        Start::Cursor(cursor) => {
            let boot_id = cursor.boot_id.parse::<BootId>();
            let field = "start.cursor.boot_id";
            let boot_id = boot_id.map_err(|error| status::invalid(field, &format!("`{field}`: {error}")))?;
            HistoryStart::Cursor(Cursor { boot_id, epoch: cursor.epoch, sequence: cursor.sequence })
        }
    })
}

/// A place as a message.
pub(super) fn message(cursor: &Cursor) -> v1::Cursor {
    let Cursor { boot_id, epoch, sequence } = *cursor;
    v1::Cursor { boot_id: boot_id.to_string(), epoch, sequence }
}

/// How a stream ends.
fn ended(end: End) -> Status {
    match end {
        End::Stopping => ControlError::Stopping.into(),
        End::Overflowed { sequence } => status::overflowed(sequence),
    }
}
