//! Gathering the items of a feed into chunks of limited size and age.
//!
//! A task of its own reads the feed, because a chunk must end at its deadline and a step of a feed
//! cannot be cancelled.

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::account::Walk;
use super::exporter::Policy;
use super::{Chunk, ChunkItem};
use crate::shutdown::Tasks;
use kprobed_trace::feed::{Feed, FeedError};
use kprobed_trace::pipeline::{Item, Loss, LossCause};

/// Items that may wait for the exporter, in addition to the queue of its subscription.
const AHEAD: usize = 8;

/// A feed that is read by a task.
#[derive(Debug)]
pub(super) struct Pump {
    items: mpsc::Receiver<Result<Item, FeedError>>,
    /// What ended the chunk before, and belongs to the next one.
    left: Option<Item>,
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

    async fn next(&mut self) -> Result<Item, FeedError> {
        match self.left.take() {
            Some(item) => Ok(item),
            None => self.items.recv().await.unwrap_or(Err(FeedError::Stopping)),
        }
    }

    /// The first item of the next chunk, to be given to [`Pump::gather`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn first(&mut self) -> Result<Item, FeedError> {
        self.next().await
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
            }
            take(item, walk, &mut chunk);
            if chunk.bytes >= policy.chunk_bytes || events >= policy.chunk_events {
                break;
            }
            match tokio::time::timeout_at(deadline, self.items.recv()).await {
                // A chunk is of one run of the daemon.
                Ok(Some(Ok(epoch @ Item::Epoch { .. }))) if !chunk.is_empty() => {
                    self.left = Some(epoch);
                    break;
                }
                Ok(Some(Ok(next))) => item = next,
                Ok(Some(Err(error))) => {
                    self.end(error);
                    break;
                }
                Ok(None) | Err(_) => break,
            }
        }
        chunk.walked = walk.take();
        chunk.end = walk.place();
        chunk
    }

    /// The feed has ended: says so once more.
    fn end(&mut self, error: FeedError) {
        let (sender, items) = mpsc::channel(1);
        drop(sender.try_send(Err(error)));
        self.items = items;
    }
}

fn take(item: Item, walk: &mut Walk, chunk: &mut Chunk) {
    match item {
        Item::Epoch { cursor, may_miss } => {
            if walk.epoch(cursor) || may_miss {
                chunk.items.push(ChunkItem::Epoch { cursor, may_miss });
            }
        }
        Item::CaughtUp(sequence) | Item::Progress(sequence) => walk.reach(sequence),
        Item::Watermark(watermark_ns) => chunk.items.push(ChunkItem::Watermark(watermark_ns)),
        // A feed gives none.
        Item::Mark(_) => {}
        Item::Loss(loss) => {
            if is_of_the_log(&loss) {
                walk.missing(loss.count);
            }
            chunk.items.push(ChunkItem::Loss(loss));
        }
        Item::Batch(delivery) => {
            walk.entry(delivery.sequence, delivery.log_events, delivery.events);
            chunk.bytes += delivery.message.len();
            chunk.items.push(ChunkItem::Events(delivery));
        }
    }
}

/// Whether the missing events have places in the log. Those that the kernel lost have none.
pub(super) fn is_of_the_log(loss: &Loss) -> bool {
    use LossCause::{Damaged, Expired, NotStored, SubscriberQueue};
    matches!(loss.cause, Expired | NotStored | Damaged | SubscriberQueue)
}
