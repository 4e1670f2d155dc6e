//! Event feed: the history from the requested position on, then live events, without a seam.
//!
//! Owns the transition from the history to live events. Streams of clients and exporters read a
//! feed. Never encodes or sends a message.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;

use crate::history::{History, HistoryError, HistoryReader, HistoryStart};
use crate::pipeline::{End, Item, Loss, LossCause, Subscription};
use crate::spool::Cursor;

/// The most events between the history and live events when the feed attaches its subscription: it
/// reads them while new ones wait in the queue.
const JOIN_EVENTS: u64 = 100_000;

/// How often the feed tries that if the history grows as fast as it reads.
const JOIN_TRIALS: u32 = 16;

/// Why a feed cannot begin, or ends early.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The subscriber asked for the past, and the daemon keeps no history.
    #[error("this daemon keeps no history")]
    NoHistory,
    /// The cursor is ahead of the log of this run.
    #[error("the log is at position {log}, and the cursor at {cursor}")]
    AheadOfLog {
        /// Position of the log.
        log: u64,
        /// Position of the cursor.
        cursor: u64,
    },
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The daemon stops, and everything was delivered.
    #[error("the daemon stops")]
    Stopping,
    /// The queue of the subscriber was full, and it asked to be disconnected in that case.
    #[error("the queue was full at log position {sequence}")]
    Overflowed {
        /// Log position of the first event that it did not receive.
        sequence: u64,
    },
}

impl From<End> for FeedError {
    fn from(end: End) -> Self {
        match end {
            End::Stopping => Self::Stopping,
            End::Overflowed { sequence } => Self::Overflowed { sequence },
        }
    }
}

#[derive(Debug)]
enum State {
    Past {
        reader: Box<HistoryReader>,
        trials: u32,
    },
    /// Reading the history up to the position at which live events begin.
    Joining {
        reader: Box<HistoryReader>,
        sequence: u64,
    },
    Present,
    Over,
}

/// Source of an event stream.
#[derive(Debug)]
pub struct Feed {
    subscription: Arc<Subscription>,
    history: Option<Arc<History>>,
    state: State,
    ready: VecDeque<Item>,
    until_now: bool,
    /// The run of live events; its sequence is not used.
    now: Cursor,
}

/// Where a stream begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedStart {
    /// Position in the history. Absent: live events only.
    pub place: Option<HistoryStart>,
    /// Whether it ends where live events begin.
    pub until_now: bool,
}

/// The log: this run of the daemon, and its history.
#[derive(Clone, Debug)]
pub struct Log {
    /// The history, if the daemon keeps one.
    pub history: Option<Arc<History>>,
    /// This run of the daemon.
    pub now: Cursor,
}

impl Feed {
    /// Opens a feed at the position that the subscriber asks for.
    ///
    /// # Errors
    /// See [`FeedError`].
    pub async fn open(log: &Log, subscription: Subscription, start: FeedStart) -> Result<Self, FeedError> {
        let mut feed = Self {
            subscription: Arc::new(subscription),
            history: log.history.clone(),
            state: State::Over,
            ready: VecDeque::new(),
            until_now: start.until_now,
            now: log.now,
        };
        let Some(place) = start.place else {
            let sequence = feed.subscription.attach();
            feed.begin(Cursor { sequence, ..feed.now }, false);
            feed.caught_up(sequence);
            return Ok(feed);
        };
        match (&feed.history, place) {
            (Some(history), place) => {
                let reader = history.read(place, Arc::clone(&feed.subscription)).await?;
                feed.state = State::Past { reader: Box::new(reader), trials: 0 };
            }
            (None, HistoryStart::Cursor(cursor)) => feed.resume_without_history(cursor)?,
            (None, _) => {
                return Err(FeedError::NoHistory);
            }
        }
        Ok(feed)
    }

    fn begin(&mut self, cursor: Cursor, may_miss: bool) {
        self.ready.push_back(Item::Epoch { cursor, may_miss });
    }

    fn caught_up(&mut self, sequence: u64) {
        self.ready.push_back(Item::CaughtUp(sequence));
        self.state = if self.until_now { State::Over } else { State::Present };
    }

    /// Resumes from a cursor without a history: all events since then are missing.
    fn resume_without_history(&mut self, cursor: Cursor) -> Result<(), FeedError> {
        let is_same = (cursor.boot_id, cursor.epoch) == (self.now.boot_id, self.now.epoch);
        let sequence = self.subscription.attach();
        let missed = sequence.checked_sub(cursor.sequence);
        if is_same && missed.is_none() {
            return Err(FeedError::AheadOfLog { log: sequence, cursor: cursor.sequence });
        }
        self.begin(Cursor { sequence, ..self.now }, !is_same);
        if !is_same || missed != Some(0) {
            let count = if is_same { missed } else { None };
            self.subscription.count_loss(count.unwrap_or(0));
            let loss = Loss::anywhere(LossCause::Expired, count);
            self.ready.push_back(Item::Loss(loss));
        }
        self.caught_up(sequence);
        Ok(())
    }

    /// The run of live events; its sequence has no meaning.
    pub const fn run(&self) -> Cursor {
        self.now
    }

    /// The subscription.
    pub fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// The next item. `None` after everything that the subscriber asked for.
    ///
    /// # Errors
    /// See [`FeedError`]. No item follows an error.
    pub async fn next(&mut self) -> Result<Option<Item>, FeedError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            match std::mem::replace(&mut self.state, State::Over) {
                State::Past { reader, trials } => self.go_on(reader, trials).await?,
                State::Joining { reader, sequence } => self.join(reader, sequence).await?,
                State::Present => {
                    let item = self.subscription.next().await?;
                    self.state = State::Present;
                    // Only the history sets marks.
                    if !matches!(item, Item::Mark(_)) {
                        return Ok(Some(item));
                    }
                }
                State::Over => return Ok(None),
            }
        }
    }

    async fn go_on(&mut self, reader: Box<HistoryReader>, trials: u32) -> Result<(), FeedError> {
        let (mut reader, is_at_end) = self.read(reader).await?;
        if !is_at_end {
            self.state = State::Past { reader, trials };
        } else if self.until_now {
            self.caught_up(reader.cursor().sequence);
        } else if trials < JOIN_TRIALS && reader.extend() > JOIN_EVENTS {
            self.state = State::Past { reader, trials: trials + 1 };
        } else if let Some(history) = &self.history {
            let (sequence, limit) = history.attach(&self.subscription).await?;
            reader.extend_to(limit);
            self.state = State::Joining { reader, sequence };
        }
        Ok(())
    }

    async fn join(&mut self, reader: Box<HistoryReader>, sequence: u64) -> Result<(), FeedError> {
        let (reader, is_at_end) = self.read(reader).await?;
        if is_at_end {
            self.ready.extend(reader.missing_before(sequence).map(Item::Loss));
            self.caught_up(sequence);
        } else {
            self.state = State::Joining { reader, sequence };
        }
        Ok(())
    }

    async fn read(
        &mut self,
        mut reader: Box<HistoryReader>,
    ) -> Result<(Box<HistoryReader>, bool), FeedError> {
        let read = tokio::task::spawn_blocking(move || reader.next_items().map(|read| (reader, read)));
        let (reader, (items, is_last)) =
            read.await.map_err(HistoryError::from)?.map_err(HistoryError::from)?;
        self.ready.extend(items);
        Ok((reader, is_last))
    }
}
