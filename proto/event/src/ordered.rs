//! Time order across CPUs: a merge of batches up to a watermark.
//!
//! Owns the waiting batches and the order of their events. It holds back a limited number of events
//! and never drops one: it returns an event that is too late for the order at once, and counts it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batch::Batch;
use crate::row::{Row, least};

/// The next row of a group: time stamp, number of the batch in the order of arrival, slot of the
/// batch, group, row.
type Head = (u64, u64, usize, usize, usize);

/// Events that wait until no earlier one can arrive.
///
/// Feed it with the batches and watermarks of a stream that was asked for in `EventOrder::Time`,
/// and take rows out after each watermark:
///
/// ```
/// # use kprobed_event::{StreamItem, TimeOrdered};
/// # fn example(stream: impl Iterator<Item = StreamItem>) {
/// let mut ordered = TimeOrdered::new(1_000_000);
/// for item in stream {
///     match item {
///         StreamItem::Batch(batch) => ordered.push(batch),
///         StreamItem::Watermark(watermark) => ordered.advance(watermark.watermark_ns),
///         // Another run of the daemon: nothing of the one before it will come.
///         StreamItem::Epoch(_) => ordered.finish(),
///         _ => {}
///     }
///     while let Some(row) = ordered.next_row() {
///         println!("{} {}", row.timestamp_ns(), row.probe());
///     }
/// }
/// ordered.finish();
/// # }
/// ```
#[derive(Debug)]
pub struct TimeOrdered {
    /// Batches with rows that wait, in slots that are used again.
    slots: Vec<Option<Held>>,
    free: Vec<usize>,
    /// The earliest head, apart from the others, since events of one group mostly come in runs.
    next: Option<Head>,
    others: BinaryHeap<Reverse<Head>>,
    /// The batch that ended with the last row: it stays alive while the caller may use that row.
    spent: Option<usize>,
    pushed: u64,
    held_events: usize,
    limit_events: usize,
    held_bytes: usize,
    limit_bytes: usize,
    bound: Bound,
    last_ns: u64,
    late_events: u64,
}

#[derive(Debug)]
struct Held {
    batch: Batch,
    bytes: usize,
    remaining: usize,
}

/// Rows that may be returned.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// Those before this time.
    Before(u64),
    /// All waiting rows, and later ones before this time.
    Everything(u64),
}

impl TimeOrdered {
    /// `limit_events`: how many events may wait at most. If more wait, the earliest of them are
    /// returned, whatever the watermark is.
    pub fn new(limit_events: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            next: None,
            others: BinaryHeap::new(),
            spent: None,
            pushed: 0,
            held_events: 0,
            limit_events,
            held_bytes: 0,
            limit_bytes: usize::MAX,
            bound: Bound::Before(0),
            last_ns: 0,
            late_events: 0,
        }
    }

    /// With a limit on the bytes of batches with events that wait, too.
    #[must_use]
    pub fn with_limit_bytes(self, limit_bytes: usize) -> Self {
        Self { limit_bytes, ..self }
    }

    /// Takes a batch.
    pub fn push(&mut self, batch: Batch) {
        self.release_spent();
        if let Bound::Everything(watermark_ns) = self.bound {
            self.bound = Bound::Before(watermark_ns);
        }
        if batch.is_empty() {
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let number = self.pushed;
        self.pushed += 1;
        for (group, rows) in batch.groups().iter().enumerate().filter(|(_, group)| group.rows() > 0) {
            self.others.push(Reverse((rows.timestamp_ns(0), number, slot, group, 0)));
        }
        self.others.extend(self.next.take().map(Reverse));
        self.next = self.others.pop().map(|Reverse(head)| head);
        self.held_events += batch.len();
        let bytes = batch.bytes();
        self.held_bytes += bytes;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Held { remaining: batch.len(), bytes, batch });
        }
    }

    /// Takes a watermark: all events before this trace-clock time, in nanoseconds, have arrived.
    pub fn advance(&mut self, watermark_ns: u64) {
        self.bound = match self.bound {
            Bound::Before(before) => Bound::Before(before.max(watermark_ns)),
            Bound::Everything(before) => Bound::Everything(before.max(watermark_ns)),
        };
    }

    /// Releases all waiting events, in the order of time: no earlier event will arrive. The next
    /// batch that is pushed begins a new order, and its clock may be another one.
    pub fn finish(&mut self) {
        self.bound = Bound::Everything(0);
    }

    /// The next event that may be returned. `None`: the others must wait for a watermark.
    pub fn next_row(&mut self) -> Option<Row<'_>> {
        self.release_spent();
        let Some(head) = self.next else {
            if let Bound::Everything(_) = self.bound {
                // The next event may be of another boot, which counts from 0 again.
                self.last_ns = 0;
            }
            return None;
        };
        let (timestamp_ns, number, slot, group, row) = head;
        if !self.may_go(timestamp_ns) && !self.is_over_limit() {
            return None;
        }
        if timestamp_ns < self.last_ns {
            self.late_events += 1;
        } else {
            self.last_ns = timestamp_ns;
        }
        self.held_events -= 1;
        let held = self.slots.get_mut(slot)?.as_mut()?;
        held.remaining -= 1;
        if held.remaining == 0 {
            self.held_bytes -= held.bytes;
            self.spent = Some(slot);
        }
        let rows = held.batch.groups().get(group)?;
        let following =
            (row + 1 < rows.rows()).then(|| (rows.timestamp_ns(row + 1), number, slot, group, row + 1));
        self.next = least(following, &mut self.others);
        Row::of(&self.slots.get(slot)?.as_ref()?.batch, group, row)
    }

    /// Time stamp of the event that [`TimeOrdered::next_row`] returns next, in nanoseconds. `None`:
    /// it returns none.
    pub fn next_ns(&self) -> Option<u64> {
        let (timestamp_ns, ..) = self.next?;
        (self.may_go(timestamp_ns) || self.is_over_limit()).then_some(timestamp_ns)
    }

    /// Whether the event that [`TimeOrdered::next_row`] returns next goes before a watermark allows it: an earlier one
    /// may follow.
    pub fn is_next_hurried(&self) -> bool {
        self.next.is_some_and(|(timestamp_ns, ..)| !self.may_go(timestamp_ns)) && self.is_over_limit()
    }

    /// Whether the earliest event goes, whatever the watermark is.
    fn is_over_limit(&self) -> bool {
        self.held_events > self.limit_events || self.held_bytes > self.limit_bytes
    }

    fn may_go(&self, timestamp_ns: u64) -> bool {
        match self.bound {
            Bound::Before(before_ns) => timestamp_ns < before_ns,
            Bound::Everything(_) => true,
        }
    }

    /// Events that wait.
    pub fn held_events(&self) -> usize {
        self.held_events
    }

    /// Bytes of the batches with events that wait, about.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Log position in the epoch of the earliest batch with waiting events. `None`: no event waits.
    pub fn oldest_sequence(&self) -> Option<u64> {
        let waiting = self.slots.iter().flatten().filter(|held| held.remaining > 0);
        waiting.map(|held| held.batch.sequence()).min()
    }

    /// Events so far that were returned after a later event.
    pub fn late_events(&self) -> u64 {
        self.late_events
    }

    fn release_spent(&mut self) {
        if let Some(slot) = self.spent.take() {
            if let Some(place) = self.slots.get_mut(slot) {
                *place = None;
            }
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api;

    /// A batch of one CPU, whose groups have events at these times. The number of the event is its
    /// thread id.
    fn batch(cpu: u32, groups: &[Vec<(u64, i32)>]) -> Batch {
        let schema = api::EventSchema { schema_id: 1, probe: "a/b".to_owned(), ..Default::default() };
        let groups = groups.iter().map(|events| {
            let base_ns = events.first().map_or(0, |event| event.0);
            let offset = |event: &(u64, i32)| u32::try_from(event.0 - base_ns).unwrap().to_le_bytes();
            api::EventGroup {
                schema_id: 1,
                rows: u32::try_from(events.len()).unwrap(),
                base_ns,
                offsets_ns: events.iter().flat_map(offset).collect(),
                tids: events.iter().flat_map(|event| event.1.to_le_bytes()).collect(),
                ..Default::default()
            }
        });
        let batch = api::EventBatch { cpu, groups: groups.collect(), ..Default::default() };
        Batch::from_parts(vec![schema], batch).unwrap()
    }

    /// Takes all that may be returned, and counts those of them that go before a watermark allows it.
    fn drain(ordered: &mut TimeOrdered, into: &mut Vec<(u64, i32)>) -> u64 {
        let mut hurried = 0;
        loop {
            let announced = ordered.next_ns();
            let is_hurried = ordered.is_next_hurried();
            let Some(row) = ordered.next_row() else {
                assert_eq!(announced, None);
                return hurried;
            };
            hurried += u64::from(is_hurried);
            assert_eq!(announced, Some(row.timestamp_ns()));
            into.push((row.timestamp_ns(), row.tid().unwrap()));
        }
    }

    #[test]
    fn nothing_goes_before_its_watermark() {
        let mut ordered = TimeOrdered::new(100);
        let mut seen = Vec::new();
        ordered.push(batch(0, &[vec![(10, 1), (30, 3)], vec![(20, 2)]]));
        drain(&mut ordered, &mut seen);
        assert!(seen.is_empty());
        ordered.advance(21);
        drain(&mut ordered, &mut seen);
        assert_eq!((seen.as_slice(), ordered.held_events()), (&[(10, 1), (20, 2)][..], 1));
        // Too late for the order, and not lost.
        ordered.push(batch(1, &[vec![(15, 4)]]));
        drain(&mut ordered, &mut seen);
        assert_eq!((seen.last(), ordered.late_events()), (Some(&(15, 4)), 1));
        ordered.finish();
        drain(&mut ordered, &mut seen);
        assert_eq!((seen.len(), ordered.held_events(), ordered.oldest_sequence()), (4, 0, None));
        // Another boot, whose clock is younger.
        ordered.push(batch(1, &[vec![(5, 5)]]));
        drain(&mut ordered, &mut seen);
        assert_eq!(seen.len(), 4, "it waits for a watermark of its own");
        ordered.advance(6);
        drain(&mut ordered, &mut seen);
        assert_eq!((seen.last(), ordered.late_events()), (Some(&(5, 5)), 1));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut ordered = TimeOrdered::new(10);
        let mut seen = Vec::new();
        ordered
            .push(batch(0, &[(0..25_i32).map(|event| (u64::from(event.unsigned_abs()), event)).collect()]));
        let hurried = drain(&mut ordered, &mut seen);
        assert_eq!((seen.len(), ordered.held_events(), hurried), (15, 10, 15));
        ordered.push(batch(1, &[vec![(3, 99)]]));
        let hurried = hurried + drain(&mut ordered, &mut seen);
        assert_eq!((seen.last(), ordered.late_events(), hurried), (Some(&(3, 99)), 1, 16));
    }

    #[test]
    fn the_bytes_of_what_waits_are_bounded_too() {
        let one = batch(0, &[vec![(1, 1)]]).bytes();
        let mut ordered = TimeOrdered::new(1000).with_limit_bytes(3 * one);
        let (mut seen, mut hurried) = (Vec::new(), 0);
        for time in 0..10 {
            ordered.push(batch(0, &[vec![(time, 0)]]));
            assert_eq!(ordered.is_next_hurried(), time >= 3);
            hurried += drain(&mut ordered, &mut seen);
            assert!(ordered.held_bytes() <= 3 * one);
        }
        assert_eq!((seen.len(), hurried, ordered.held_events()), (7, 7, 3));
        ordered.finish();
        assert!(!ordered.is_next_hurried());
        drain(&mut ordered, &mut seen);
        assert_eq!((seen.len(), ordered.held_bytes()), (10, 0));
    }

    /// A log of several CPUs: for each CPU the gaps between its events, cut into batches.
    fn logs() -> impl Strategy<Value = Vec<Vec<Vec<u64>>>> {
        let batch = proptest::collection::vec(0..20_u64, 0..6);
        proptest::collection::vec(proptest::collection::vec(batch, 0..8), 1..4)
    }

    proptest! {
        #[test]
        fn any_arrival_that_keeps_to_its_watermarks_is_sorted_and_whole(
            logs in logs(),
            choices in proptest::collection::vec((0..4_usize, any::<bool>(), 0..3_u64), 40),
        ) {
            let mut number = 0;
            let mut waiting: Vec<std::collections::VecDeque<Vec<(u64, i32)>>> = logs.iter().map(|batches| {
                let mut now = 0;
                batches.iter().map(|gaps| gaps.iter().map(|gap| {
                    now += gap;
                    number += 1;
                    (now, number)
                }).collect()).collect()
            }).collect();
            let mut ordered = TimeOrdered::new(usize::MAX);
            let (mut seen, mut hurried) = (Vec::new(), 0);
            for (cpu, watermark, back) in choices {
                let cpu = cpu % waiting.len();
                if let Some(events) = waiting[cpu].pop_front() {
                    // Two groups, as if of two probes.
                    let (even, odd): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event.1 % 2 == 0);
                    ordered.push(batch(u32::try_from(cpu).unwrap(), &[even, odd]));
                }
                // No event that is still to arrive is earlier than this.
                let sound = waiting.iter().flatten().flatten().map(|event| event.0).min().unwrap_or(1_000);
                if watermark {
                    ordered.advance(sound.saturating_sub(back));
                }
                hurried += drain(&mut ordered, &mut seen);
            }
            for (cpu, batches) in waiting.into_iter().enumerate() {
                for events in batches {
                    ordered.push(batch(u32::try_from(cpu).unwrap(), &[events]));
                }
            }
            ordered.finish();
            hurried += drain(&mut ordered, &mut seen);
            prop_assert!(seen.is_sorted_by_key(|event| event.0), "{:?}", seen);
            prop_assert_eq!((ordered.late_events(), hurried, ordered.held_events()), (0, 0, 0));
            let mut numbers: Vec<i32> = seen.iter().map(|event| event.1).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (1..=number).collect::<Vec<_>>());
        }

        #[test]
        fn nothing_is_lost_whatever_the_limit_and_the_watermarks(
            batches in proptest::collection::vec((proptest::collection::vec(0..100_u64, 0..6), any::<Option<u8>>()), 0..12),
            limit in 0..10_usize,
        ) {
            let mut ordered = TimeOrdered::new(limit);
            let (mut seen, mut pushed) = (Vec::new(), 0);
            for (mut times, watermark) in batches {
                times.sort_unstable();
                pushed += times.len();
                ordered.push(batch(0, &[times.into_iter().map(|time| (time, 0)).collect()]));
                if let Some(watermark) = watermark {
                    ordered.advance(watermark.into());
                }
                drain(&mut ordered, &mut seen);
                prop_assert!(ordered.held_events() <= limit);
            }
            ordered.finish();
            drain(&mut ordered, &mut seen);
            prop_assert_eq!(seen.len(), pushed);
            let mut latest = 0;
            let late = seen.iter().filter(|event| {
                let late = event.0 < latest;
                latest = latest.max(event.0);
                late
            });
            prop_assert_eq!(late.count() as u64, ordered.late_events());
        }
    }
}
