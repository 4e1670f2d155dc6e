//! Queue of one subscriber, bounded by events and by bytes.
//!
//! Owns the subscriber's overflow policy and its terms of the ledger, and how much each queue may take when the memory
//! of all queues gets short. Before the next batch of a CPU, the queue reports how many events of that CPU it dropped.
//! A single batch that is larger than the whole queue still fits into an empty one, also when the memory of all queues
//! is used up. Never waits for the subscriber.

use std::collections::{BTreeMap, VecDeque};
use std::mem::discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counters::Span;
use super::item::{Delivery, Item, Mark};
use super::view::{Overflow, QueueLimits};
use super::{Loss, LossCause};

/// Number of events without a selected one after which the queue reports progress: a subscriber
/// that resumes need not examine them again.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// Ledger terms of a subscriber: read = `not_selected` + filtered + `sampled_out` + limited +
/// dropped + queued + delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Events read since it subscribed.
    pub read: u64,
    /// Events of probes that it did not ask for.
    pub not_selected: u64,
    /// Events that its filter rejected.
    pub filtered: u64,
    /// Events that its sampling skipped.
    pub sampled_out: u64,
    /// Events over its rate limit.
    pub limited: u64,
    /// Events that its queue dropped.
    pub dropped: u64,
    /// Times of the first events after those gaps.
    pub dropped_span: Span,
    /// Events in its queue.
    pub queued: u64,
    /// Events handed to its connection.
    pub delivered: u64,
    /// Times of the events delivered.
    pub delivered_span: Span,
    /// Events of the history handed to its connection; not a term of the sum.
    pub replayed: u64,
    /// Events of the history that had expired; not a term of the sum.
    pub expired: u64,
    /// Losses reported.
    pub loss_records: u64,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    /// The memory that the queues of clients share. One of the daemon's own has it alone.
    memory: Arc<QueueMemory>,
    entries: VecDeque<Item>,
    bytes: u64,
    /// Losses to report before the next entry of their CPU: events that the queue dropped, and
    /// losses that it dropped with them.
    untold: BTreeMap<Option<u32>, Vec<Loss>>,
    pub(super) counts: QueueCounts,
    /// The log position up to which the subscriber has been informed.
    told: u64,
    /// Whether the queue takes no more items but marks.
    pub(super) closed: bool,
    /// Whether the subscriber knows that the queue is closed, and reads no mark any more.
    pub(super) has_ended: bool,
    /// The queue was closed because it was full: it lacks everything from this log position on.
    pub(super) overflowed_at: Option<u64>,
}

impl Queue {
    pub(super) fn new(limits: QueueLimits, memory: Arc<QueueMemory>) -> Self {
        memory.begin();
        Self {
            limits,
            memory,
            entries: VecDeque::new(),
            bytes: 0,
            untold: BTreeMap::new(),
            counts: QueueCounts::default(),
            told: 0,
            closed: false,
            has_ended: false,
            overflowed_at: None,
        }
    }

    fn fits(&self, events: u64, bytes: u64) -> bool {
        self.counts.queued == 0
            || (self.counts.queued + events <= self.limits.events
                && self.bytes + bytes <= self.limits.bytes
                && self.memory.allows(self.bytes, bytes))
    }

    fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.memory.take(bytes);
    }

    fn shrink(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.memory.give(bytes);
    }

    /// Takes events, or applies the overflow policy.
    pub(super) fn push_batch(&mut self, batch: Delivery) {
        let (events, bytes) = (batch.events, batch.message.len() as u64);
        if !self.fits(events, bytes) {
            match self.limits.overflow {
                Overflow::DropOldest => self.make_room(events, bytes),
                Overflow::DropNewest => {
                    // After everything that is queued, as the gap is.
                    self.note_dropped(&batch);
                    return self.push_loss(dropped(&batch));
                }
                Overflow::Disconnect => {
                    // Not reported as a loss: the subscriber can resume from here.
                    self.note_dropped(&batch);
                    self.overflowed_at.get_or_insert(batch.sequence);
                    self.closed = true;
                    return;
                }
            }
        }
        self.counts.queued += events;
        self.grow(bytes);
        self.told = batch.sequence.saturating_add(batch.log_events);
        self.entries.push_back(Item::Batch(batch));
    }

    fn make_room(&mut self, events: u64, bytes: u64) {
        let mut marks = Vec::new();
        while !self.fits(events, bytes) {
            match self.entries.pop_front() {
                Some(Item::Batch(batch)) => {
                    self.counts.queued -= batch.events;
                    self.shrink(batch.message.len() as u64);
                    self.note_dropped(&batch);
                    self.remember(dropped(&batch));
                }
                Some(Item::Loss(loss)) => self.remember(loss),
                // A later watermark or progress supersedes this one.
                Some(Item::Watermark(_) | Item::Progress(_)) => {}
                Some(mark) => marks.push(mark),
                None => break,
            }
        }
        for mark in marks.into_iter().rev() {
            self.entries.push_front(mark);
        }
    }

    fn note_dropped(&mut self, batch: &Delivery) {
        self.counts.dropped += batch.events;
        self.counts.dropped_span.note(batch.span.first_ns);
    }

    /// Takes a loss, and adds it to an earlier one of the same cause if nothing of that CPU was
    /// queued in between: a subscriber that does not read, or that wants rare events only, must not
    /// collect losses without end.
    pub(super) fn push_loss(&mut self, loss: Loss) {
        for entry in self.entries.iter_mut().rev() {
            match entry {
                Item::Batch(batch) if loss.cpu.is_none_or(|cpu| cpu == batch.cpu) => break,
                Item::Loss(known) if known.is_like(&loss) => return known.absorb(&loss),
                _ => {}
            }
        }
        self.entries.push_back(Item::Loss(loss));
    }

    /// Takes a watermark, which replaces an earlier one if nothing but progress was queued since.
    pub(super) fn push_watermark(&mut self, watermark_ns: u64) {
        self.push_place(Item::Watermark(watermark_ns));
    }

    /// Records that no event was selected up to a log position, and queues a progress item if that
    /// is far enough from the last reported position. It replaces an earlier one if nothing but a watermark was queued
    /// since. Returns whether there is news.
    pub(super) fn push_progress(&mut self, sequence: u64) -> bool {
        if sequence.saturating_sub(self.told) < PROGRESS_EVENTS {
            return false;
        }
        self.told = sequence;
        self.push_place(Item::Progress(sequence));
        true
    }

    /// Takes a watermark or progress, each of which replaces an earlier one behind the last other item.
    fn push_place(&mut self, place: Item) {
        let is_place = |item: &&mut Item| matches!(item, Item::Watermark(_) | Item::Progress(_));
        let mut places = self.entries.iter_mut().rev().take_while(is_place);
        match places.find(|item| discriminant(&**item) == discriminant(&place)) {
            Some(earlier) => *earlier = place,
            None => self.entries.push_back(place),
        }
    }

    /// Takes a mark, which is dropped only after the end.
    pub(super) fn push_mark(&mut self, mark: Mark) {
        if !self.has_ended {
            self.entries.push_back(Item::Mark(mark));
        }
    }

    /// Adds a loss to those not yet reported, or to one of the same cause on the same CPU.
    fn remember(&mut self, loss: Loss) {
        let untold = self.untold.entry(loss.cpu).or_default();
        match untold.iter_mut().find(|known| known.is_like(&loss)) {
            Some(known) => known.absorb(&loss),
            None => untold.push(loss),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        let cpus = match self.entries.front() {
            // A loss that names no CPU may be of this one too.
            Some(Item::Batch(batch)) => [Some(Some(batch.cpu)), Some(None)],
            Some(Item::Loss(loss)) => [Some(loss.cpu), None],
            Some(Item::Progress(_) | Item::Mark(_) | Item::Epoch { .. } | Item::CaughtUp(_)) => [None, None],
            // All events before the losses have gone: a subscriber that has read everything knows them, and so does one
            // that takes everything before a watermark for complete.
            Some(Item::Watermark(_)) | None => [self.untold.keys().next().copied(), None],
        };
        let untold = cpus.into_iter().flatten().find_map(|cpu| self.take_untold(cpu)).map(Item::Loss);
        let mut item = untold.or_else(|| self.entries.pop_front())?;
        match &mut item {
            Item::Batch(batch) => {
                self.shrink(batch.message.len() as u64);
                self.counts.queued -= batch.events;
                self.counts.delivered += batch.events;
                self.counts.delivered_span.note(batch.span.first_ns);
                self.counts.delivered_span.note(batch.span.last_ns);
            }
            Item::Loss(loss) => {
                self.counts.loss_records += 1;
                if loss.before_ns == 0 {
                    loss.before_ns = self.next_time_of(loss.cpu);
                }
            }
            _ => {}
        }
        Some(item)
    }

    fn take_untold(&mut self, cpu: Option<u32>) -> Option<Loss> {
        let untold = self.untold.get_mut(&cpu)?;
        let loss = untold.pop();
        if untold.is_empty() {
            self.untold.remove(&cpu);
        }
        // The next event may be a later one than when the loss was dropped.
        Some(Loss { before_ns: 0, ..loss? })
    }

    /// Time stamp of the first queued event of a CPU; 0 if there is none yet.
    fn next_time_of(&self, cpu: Option<u32>) -> u64 {
        let mut times = self.entries.iter().filter_map(|entry| match entry {
            Item::Batch(batch) if cpu.is_none_or(|cpu| batch.cpu == cpu) => Some(batch.span.first_ns),
            _ => None,
        });
        times.next().unwrap_or(0)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.memory.end(self.bytes);
    }
}

/// The loss of events that the queue dropped.
fn dropped(batch: &Delivery) -> Loss {
    Loss::on(batch.cpu, LossCause::SubscriberQueue, Some(batch.events), 0)
}

/// Memory of all queues of clients together, with what is in use of it.
///
/// When it gets short, one half of it is divided among them, so that each has a part that no other one can take,
/// and the other half is for whichever needs it first. So a client that does not read costs others no events.
#[derive(Debug)]
pub(super) struct QueueMemory {
    bytes: u64,
    used: AtomicU64,
    queues: AtomicU64,
}

impl QueueMemory {
    pub(super) const fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0), queues: AtomicU64::new(0) }
    }

    /// There is one more queue.
    pub(super) fn begin(&self) {
        self.queues.fetch_add(1, Ordering::Relaxed);
    }

    /// A queue ends, which has so many bytes.
    pub(super) fn end(&self, bytes: u64) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
        self.give(bytes);
    }

    /// Whether a queue that has `own` bytes may have so many more.
    pub(super) fn allows(&self, own: u64, more: u64) -> bool {
        let half = self.bytes / 2;
        let part = half / self.queues.load(Ordering::Relaxed).max(1);
        own.saturating_add(more) <= part
            || self.used.load(Ordering::Relaxed).saturating_add(more) <= self.bytes - half
    }

    pub(super) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes in all queues.
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the queues want, all of them together stay within the memory, and each gets its part.
        #[test]
        fn the_sum_is_bounded(wishes in proptest::collection::vec((0_usize..8, 1_u64..200, any::<bool>()), 1..300)) {
            let memory = QueueMemory::new(1000);
            let mut queues = [0_u64; 8];
            for _ in &queues {
                memory.begin();
            }
            for (queue, bytes, takes) in wishes {
                if takes && memory.allows(queues[queue], bytes) {
                    memory.take(bytes);
                    queues[queue] += bytes;
                } else if takes {
                    prop_assert!(queues[queue] + bytes > 500 / 8, "its own part is refused");
                } else {
                    let bytes = bytes.min(queues[queue]);
                    memory.give(bytes);
                    queues[queue] -= bytes;
                }
                prop_assert_eq!(memory.used(), queues.iter().sum::<u64>());
                prop_assert!(memory.used() <= 1000, "{:?}", queues);
            }
            for bytes in queues {
                memory.end(bytes);
            }
            prop_assert_eq!(memory.used(), 0);
        }
    }
}
