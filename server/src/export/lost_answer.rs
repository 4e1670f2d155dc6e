//! Accounting for events that the receiver has, although its acknowledgement was lost.
//!
//! The log between the last acknowledgement and the receiver's own position is read once more.
//! Nothing is sent.

use super::account::{Walk, Walked};
use super::pump::is_of_the_log;
use kprobed_trace::feed::{Feed, FeedError};
use kprobed_trace::pipeline::Item;
use kprobed_trace::spool::Cursor;

/// Whether the receiver is further in the log than its answers say. Boots have no order: of
/// another boot, nothing is known.
pub(super) fn is_ahead(answered: Cursor, taken: Cursor) -> bool {
    answered.boot_id == taken.boot_id && (answered.epoch, answered.sequence) < (taken.epoch, taken.sequence)
}

/// The part of the log between two cursors, from a feed that begins with the first one and ends
/// with the present.
pub(super) async fn between(feed: &mut Feed, answered: Cursor, taken: Cursor) -> Result<Walked, FeedError> {
    let mut walk = Walk::from(Some(answered));
    while let Some(item) = feed.next().await? {
        if !step(&mut walk, &item, taken) {
            break;
        }
    }
    walk.epoch(taken);
    Ok(walk.take())
}

/// Walks on, but not beyond the end. Returns whether it is still before it.
fn step(walk: &mut Walk, item: &Item, end: Cursor) -> bool {
    if let Item::Epoch { cursor, .. } = item {
        walk.epoch(*cursor);
    }
    let is_last_run =
        walk.place().is_none_or(|place| (place.boot_id, place.epoch) == (end.boot_id, end.epoch));
    let limit = if is_last_run { end.sequence } else { u64::MAX };
    match item {
        Item::CaughtUp(sequence) | Item::Progress(sequence) => walk.reach((*sequence).min(limit)),
        Item::Loss(loss) if is_of_the_log(loss) => walk.missing(loss.count),
        Item::Batch(delivery) => {
            let events = delivery.log_events.min(limit.saturating_sub(delivery.sequence));
            walk.entry(delivery.sequence.min(limit), events, delivery.events);
        }
        Item::Epoch { .. } | Item::Loss(_) | Item::Watermark(_) | Item::Mark(_) => {}
    }
    !is_last_run || walk.place().is_none_or(|place| place.sequence < limit)
}
