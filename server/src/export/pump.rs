//! Gathering the items of a feed into chunks of limited size and age.
//!
//! A task of its own reads the feed, because a chunk must end at its deadline and a step of a feed
//! cannot be cancelled.

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::account::{Walk, Walked};
use super::exporter::Policy;
use crate::shutdown::Tasks;
use kprobed_trace::feed::{Feed, FeedError};
use kprobed_trace::pipeline::{Item, Loss, LossCause};
use kprobed_trace::spool::Cursor;

/// Items that may wait for the exporter, in addition to the queue of its subscription.
const AHEAD: usize = 8;

/// A part of the log, as one exporter sees it.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Runs of the daemon that begin, events, gaps, and watermarks for an exporter that reads by time
    /// ([`Policy::order`]), in the order of the log.
    pub items: Vec<Item>,
    /// The cursor after the chunk is acknowledged.
    pub end: Option<Cursor>,
    /// The part of the log that it covers.
    pub walked: Walked,
    /// Bytes of the messages in it.
    pub bytes: usize,
}

/// A feed that is read by a task.
#[derive(Debug)]
pub(super) struct Pump {
    items: mpsc::Receiver<Result<Item, FeedError>>,
    /// What ended the chunk before, and belongs to the next one.
    left: Option<Result<Item, FeedError>>,
}

impl Pump {
    /// Starts the task. It ends with the feed, or with the pump.
    pub(super) fn start(tasks: &Tasks, mut feed: Feed) -> Self {
        let (sender, items) = mpsc::channel(AHEAD);
        tasks.spawn("pump", async move {
            loop {
                let item = tokio::select! {
                    item = feed.next() => item.and_then(|item| item.ok_or(FeedError::Stopping)),
                    () = sender.closed() => return,
                };
                let is_last = item.is_err();
                if sender.send(item).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { items, left: None }
    }

    /// The first item of the next chunk, to be given to [`Pump::gather`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn first(&mut self) -> Result<Item, FeedError> {
        match self.left.take() {
            Some(item) => item,
            None => self.items.recv().await.unwrap_or(Err(FeedError::Stopping)),
        }
    }

    /// The chunk that begins with an item. An error that ends the feed is returned with the next
    /// item.
    pub(super) async fn gather(&mut self, first: Item, walk: &mut Walk, policy: &Policy) -> Chunk {
        let mut chunk = Chunk::default();
        let deadline = Instant::now() + policy.linger;
        let mut events = 0;
        let mut item = first;
        loop {
            if let Item::Batch(delivery) = &item {
                events += delivery.events;
                chunk.bytes += delivery.message.len();
            }
            if pass(walk, &item, u64::MAX) {
                chunk.items.push(item);
            }
            if chunk.bytes >= policy.chunk_bytes || events >= policy.chunk_events {
                break;
            }
            match tokio::time::timeout_at(deadline, self.items.recv()).await {
                // A chunk is of one run of the daemon.
                Ok(Some(Ok(next))) if !matches!(next, Item::Epoch { .. }) || chunk.items.is_empty() => {
                    item = next;
                }
                Ok(next) => {
                    self.left = next;
                    break;
                }
                Err(_elapsed) => break,
            }
        }
        chunk.walked = walk.take();
        chunk.end = walk.place();
        chunk
    }
}

/// Walks over an item, but not beyond a position in its run. Returns whether there is something to send of it.
fn pass(walk: &mut Walk, item: &Item, limit: u64) -> bool {
    match item {
        Item::Epoch { cursor, may_miss } => return walk.epoch(*cursor) || *may_miss,
        Item::CaughtUp(sequence) | Item::Progress(sequence) => {
            walk.reach((*sequence).min(limit));
            return false;
        }
        // A feed gives none.
        Item::Mark(_) => return false,
        Item::Loss(loss) if is_of_the_log(loss) => walk.missing(loss.count),
        Item::Watermark(_) | Item::Loss(_) => {}
        Item::Batch(delivery) => {
            let events = delivery.log_events.min(limit.saturating_sub(delivery.sequence));
            walk.entry(delivery.sequence.min(limit), events, delivery.events);
        }
    }
    true
}

/// Whether the missing events have places in the log. Those that the kernel lost have none.
fn is_of_the_log(loss: &Loss) -> bool {
    use LossCause::{Damaged, Expired, NotStored, SubscriberQueue};
    matches!(loss.cause, Expired | NotStored | Damaged | SubscriberQueue)
}

/// Whether the receiver is further in the log than its answers say. Boots have no order: of
/// another boot, nothing is known.
pub(super) fn is_ahead(answered: Cursor, taken: Cursor) -> bool {
    answered.boot_id == taken.boot_id && (answered.epoch, answered.sequence) < (taken.epoch, taken.sequence)
}

/// The part of the log between two cursors, read once more without sending anything: the receiver has its events
/// although its acknowledgement was lost. From a feed that begins with the first one and ends
/// with the present.
pub(super) async fn between(feed: &mut Feed, answered: Cursor, taken: Cursor) -> Result<Walked, FeedError> {
    let mut walk = Walk::from(Some(answered));
    while let Some(item) = feed.next().await? {
        let until = limit(&walk, taken);
        pass(&mut walk, &item, until);
        if walk.place().is_some_and(|place| place.sequence >= limit(&walk, taken)) {
            break;
        }
    }
    walk.epoch(taken);
    Ok(walk.take())
}

/// Where a walk ends in the run that it is in.
fn limit(walk: &Walk, end: Cursor) -> u64 {
    let is_last_run =
        walk.place().is_none_or(|place| (place.boot_id, place.epoch) == (end.boot_id, end.epoch));
    if is_last_run { end.sequence } else { u64::MAX }
}
