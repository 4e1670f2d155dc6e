//! Pairing of entry and return events into calls.
//!
//! Owns which return belongs to which entry: the last open entry of the same thread in the function
//! of the return probe. Events are taken in the order of time, up to the watermarks of the log. A
//! return after a gap is never paired with an entry before it.
//!
//! Events wait for a second of the log's time. While the exporter catches up, that second passes as fast as the disk is
//! read: when too many wait, the oldest are given up, and whose calls have no span is said.
//!
//! A part of the log that is read again after a failure is recognised by its log positions, so that
//! the pairs stay the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use kprobed_event::Row;

use super::log_record::put_task;
use super::protobuf::Protobuf;
use super::span::field;
use super::value::Attributes;

/// Calls that may be open. Of more, the oldest are given up: those that never return, and probes
/// that have no return probe.
const MOST_OPEN: usize = 1 << 14;

/// Events that may wait for the watermark, and their bytes; open calls may have as many bytes.
const MOST_WAITING: usize = 1 << 17;
const MOST_BYTES: usize = 32 << 20;

/// A thread. All idle tasks have the same id: their CPU tells them apart.
type Thread = (i32, Option<u32>);

/// Trace-clock time and place in the log.
type Moment = (u64, u64);

/// One end of a call.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Position in the log.
    pub(super) sequence: u64,
    /// Trace-clock time, in nanoseconds.
    pub(super) timestamp_ns: u64,
    /// Wall clock minus trace clock when its batch was read, in nanoseconds.
    pub(super) wall_offset_ns: i64,
    /// The place of the probe, by name if it is known.
    pub(super) location: String,
    /// The probe's name.
    pub(super) probe: String,
    /// Its fields, with a prefix before their names; of an entry, before them whose it is. As a
    /// span has them.
    pub(super) attributes: Protobuf,
}

impl End {
    /// Bytes of memory, about.
    fn bytes(&self) -> usize {
        size_of::<Open>() + self.location.len() + self.probe.len() + self.attributes.len()
    }
}

/// Calls that were given up because too many events waited.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    pub(super) calls: u64,
    probes: BTreeSet<String>,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many events waited for their order: calls have no span at ")?;
        for (index, probe) in self.probes.iter().enumerate() {
            write!(f, "{}`{probe}`", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// A call that returned.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) entry: End,
    pub(super) exit: End,
    /// Places of the entries of the calls that it was made in, the outermost first.
    pub(super) callers: Vec<u64>,
    /// Wall clock minus trace clock at the entry of the outermost of these, in nanoseconds.
    pub(super) wall_offset_ns: i64,
}

#[derive(Debug)]
enum Step {
    Entry(Thread, u64, End),
    Return(Thread, u64, End),
    Gap,
}

impl Step {
    /// Bytes of memory, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Entry(_, _, end) | Self::Return(_, _, end) => end.bytes(),
            Self::Gap => 0,
        }
    }
}

#[derive(Debug)]
struct Open {
    moment: Moment,
    function: u64,
    entry: End,
}

/// Calls that are open, and events that wait for the watermark.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    waiting: BTreeMap<Moment, Step>,
    open: HashMap<Thread, Vec<Open>>,
    /// The threads of open calls, the oldest first.
    ages: BTreeMap<Moment, Thread>,
    /// Bytes of the events that wait, and of the open calls.
    waiting_bytes: usize,
    open_bytes: usize,
    given_up: GivenUp,
    /// The log was read up to here.
    seen: u64,
}

impl Pairs {
    /// Another run of the daemon begins: its places begin anew, and no call goes on.
    pub(super) fn begin_epoch(&mut self) {
        *self = Self::default();
    }

    /// Whether a position of the log was read before.
    pub(super) const fn has_seen(&self, sequence: u64) -> bool {
        sequence < self.seen
    }

    /// Everything before a position was read.
    pub(super) fn saw(&mut self, sequence: u64) {
        self.seen = self.seen.max(sequence);
    }

    /// An event.
    pub(super) fn push(&mut self, row: &Row<'_>, sequence: u64) {
        let (Some(tid), Some(location)) = (row.tid(), row.location()) else { return };
        let thread = (tid, (tid == 0).then(|| row.cpu()));
        let is_return = row.schema().is_return();
        let end = End {
            sequence,
            timestamp_ns: row.timestamp_ns(),
            wall_offset_ns: row.wall_offset_ns(),
            location: location.to_string(),
            probe: row.probe().to_owned(),
            attributes: attributes(row, is_return),
        };
        let step = if is_return {
            Step::Return(thread, location.address, end)
        } else {
            Step::Entry(thread, location.address, end)
        };
        self.wait((row.timestamp_ns(), sequence + 1), step);
    }

    fn wait(&mut self, moment: Moment, step: Step) {
        self.waiting_bytes += step.bytes();
        self.waiting.insert(moment, step);
        if self.waiting.len() <= MOST_WAITING && self.waiting_bytes <= MOST_BYTES {
            return;
        }
        // The oldest quarter. Nothing is paired over it.
        for _ in 0..self.waiting.len().div_ceil(4) {
            let Some((_, step)) = self.waiting.pop_first() else { break };
            self.waiting_bytes -= step.bytes();
            if let Step::Entry(_, _, entry) = step {
                self.give_up_call(entry.probe);
            }
        }
        for call in std::mem::take(&mut self.open).into_values().flatten() {
            self.give_up_call(call.entry.probe);
        }
        self.close_all();
    }

    fn give_up_call(&mut self, probe: String) {
        self.given_up.calls += 1;
        self.given_up.probes.insert(probe);
    }

    /// The calls that were given up since this was last asked.
    pub(super) fn given_up(&mut self) -> Option<GivenUp> {
        (self.given_up.calls > 0).then(|| std::mem::take(&mut self.given_up))
    }

    fn close_all(&mut self) {
        self.open.clear();
        self.ages.clear();
        self.open_bytes = 0;
    }

    /// Events are missing before a time; absent if nothing has followed them yet.
    pub(super) fn gap(&mut self, before_ns: Option<u64>) {
        if let Some(before_ns) = before_ns {
            // Before everything of that moment: places count from 1 here.
            self.waiting.insert((before_ns, 0), Step::Gap);
        } else {
            let given_up = std::mem::take(&mut self.given_up);
            *self = Self { seen: self.seen, given_up, ..Self::default() };
        }
    }

    /// The calls that returned before a time, of which no event is still to come.
    pub(super) fn until(&mut self, watermark_ns: u64) -> Vec<Pair> {
        let later = self.waiting.split_off(&(watermark_ns, 0));
        let steps = std::mem::replace(&mut self.waiting, later);
        let mut pairs = Vec::new();
        for (moment, step) in steps {
            self.waiting_bytes -= step.bytes();
            match step {
                Step::Gap => self.close_all(),
                Step::Entry(thread, function, entry) => {
                    self.open_bytes += entry.bytes();
                    self.open.entry(thread).or_default().push(Open { moment, function, entry });
                    self.ages.insert(moment, thread);
                    self.give_up();
                }
                Step::Return(thread, function, exit) => pairs.extend(self.pair(thread, function, exit)),
            }
        }
        pairs
    }

    fn pair(&mut self, thread: Thread, function: u64, exit: End) -> Option<Pair> {
        let calls = self.open.get_mut(&thread)?;
        let index = calls.iter().rposition(|call| call.function == function)?;
        // Calls inside it cannot return any more.
        let mut inner = calls.split_off(index).into_iter();
        let call = inner.next();
        let callers = calls.iter().map(|call| call.entry.sequence).collect();
        let outermost = calls.first().map(|call| call.entry.wall_offset_ns);
        if calls.is_empty() {
            self.open.remove(&thread);
        }
        for abandoned in inner {
            self.ages.remove(&abandoned.moment);
            self.open_bytes -= abandoned.entry.bytes();
        }
        let Open { moment, entry, .. } = call?;
        self.ages.remove(&moment);
        self.open_bytes -= entry.bytes();
        let wall_offset_ns = outermost.unwrap_or(entry.wall_offset_ns);
        Some(Pair { entry, exit, callers, wall_offset_ns })
    }

    fn give_up(&mut self) {
        while (self.ages.len() > MOST_OPEN || self.open_bytes > MOST_BYTES)
            && let Some((moment, thread)) = self.ages.pop_first()
        {
            let Some(calls) = self.open.get_mut(&thread) else { continue };
            for call in calls.extract_if(.., |call| call.moment == moment) {
                self.open_bytes -= call.entry.bytes();
            }
            if calls.is_empty() {
                self.open.remove(&thread);
            }
        }
    }
}

fn attributes(row: &Row<'_>, is_return: bool) -> Protobuf {
    let mut out = Protobuf::default();
    let attributes = &mut Attributes::new(&mut out, field::ATTRIBUTES);
    if !is_return {
        put_task(attributes, row);
    }
    let prefix = if is_return { "kprobed.return" } else { "kprobed.entry" };
    for (name, known) in row.fields() {
        attributes.put(&format!("{prefix}.{name}"), |value| value.of_field(&known));
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(sequence: u64, timestamp_ns: u64) -> End {
        End {
            sequence,
            timestamp_ns,
            wall_offset_ns: 1000 + sequence.cast_signed(),
            location: String::new(),
            probe: String::new(),
            attributes: Protobuf::default(),
        }
    }

    impl Pairs {
        fn entry(&mut self, tid: i32, function: u64, time: u64, sequence: u64) {
            let step = Step::Entry((tid, None), function, end(sequence, time));
            self.wait((time, sequence + 1), step);
        }

        fn exit(&mut self, tid: i32, function: u64, time: u64, sequence: u64) {
            let step = Step::Return((tid, None), function, end(sequence, time));
            self.wait((time, sequence + 1), step);
        }
    }

    fn times(pairs: &[Pair]) -> Vec<(u64, u64, usize)> {
        pairs
            .iter()
            .map(|pair| (pair.entry.timestamp_ns, pair.exit.timestamp_ns, pair.callers.len()))
            .collect()
    }

    #[test]
    fn calls_nest_and_recurse() {
        let mut pairs = Pairs::default();
        pairs.entry(1, 10, 100, 0);
        pairs.entry(1, 20, 110, 1);
        pairs.entry(1, 10, 120, 2);
        pairs.entry(2, 10, 125, 3);
        pairs.exit(1, 10, 130, 4);
        pairs.exit(1, 20, 140, 5);
        pairs.exit(2, 10, 145, 6);
        pairs.exit(1, 10, 150, 7);
        assert_eq!(times(&pairs.until(151)), [(120, 130, 2), (110, 140, 1), (125, 145, 0), (100, 150, 0)]);
        assert!(pairs.open.is_empty() && pairs.ages.is_empty() && pairs.waiting.is_empty());
    }

    #[test]
    fn calls_of_a_trace_have_the_clocks_of_its_beginning() {
        let mut pairs = Pairs::default();
        pairs.entry(1, 10, 100, 0);
        pairs.entry(1, 20, 110, 7);
        pairs.exit(1, 20, 120, 8);
        pairs.exit(1, 10, 130, 9);
        pairs.entry(1, 10, 140, 10);
        pairs.exit(1, 10, 150, 11);
        let offsets: Vec<i64> = pairs.until(200).iter().map(|pair| pair.wall_offset_ns).collect();
        assert_eq!(offsets, [1000, 1000, 1010]);
    }

    #[test]
    fn nothing_is_paired_before_its_watermark_or_over_a_gap() {
        let mut pairs = Pairs::default();
        // The return was read first: it was on another CPU.
        pairs.exit(1, 10, 200, 0);
        assert!(pairs.until(100).is_empty());
        pairs.entry(1, 10, 150, 1);
        assert!(pairs.until(200).is_empty());
        assert_eq!(times(&pairs.until(201)), [(150, 200, 0)]);
        pairs.entry(1, 10, 300, 2);
        pairs.gap(Some(350));
        pairs.exit(1, 10, 400, 3);
        assert!(pairs.until(500).is_empty());
        assert!(pairs.open.is_empty());
    }

    #[test]
    fn entries_without_returns_do_not_grow_for_ever() {
        let mut pairs = Pairs::default();
        for index in 0..MOST_OPEN as u64 * 2 {
            pairs.entry((index % 100) as i32, 30, index, index);
        }
        assert!(pairs.until(u64::MAX).is_empty());
        assert_eq!(pairs.ages.len(), MOST_OPEN);
        assert_eq!(pairs.open.values().map(Vec::len).sum::<usize>(), MOST_OPEN);
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_given_up_is_named() {
        let mut pairs = Pairs::default();
        let count = MOST_WAITING as u64 * 2;
        // All of one second: no watermark comes.
        for call in 0..count {
            pairs.entry(1, 10, 2 * call, 2 * call);
            pairs.exit(1, 10, 2 * call + 1, 2 * call + 1);
            assert!(pairs.waiting.len() <= MOST_WAITING && pairs.waiting_bytes <= MOST_BYTES);
        }
        let whole = pairs.until(u64::MAX).len() as u64;
        let given_up = pairs.given_up().unwrap();
        assert!(whole > MOST_WAITING as u64 / 4);
        assert_eq!(whole + given_up.calls, count, "each call has a span or is given up");
        assert!(given_up.to_string().ends_with("calls have no span at ``"), "{given_up}");
        assert!(pairs.given_up().is_none() && pairs.waiting_bytes == 0 && pairs.open_bytes == 0);
        // Few, and large.
        let large = Protobuf::from(vec![0; 1 << 20]);
        for sequence in 0..100 {
            let end = End { attributes: large.clone(), ..end(sequence, sequence) };
            pairs.wait((sequence, sequence + 1), Step::Entry((1, None), 10, end));
            assert!(pairs.waiting_bytes <= MOST_BYTES);
        }
        pairs.until(u64::MAX);
        assert!(pairs.open_bytes <= MOST_BYTES && pairs.given_up().is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]
        /// Well-nested calls of some threads: each is found, however the log mixes them, and
        /// wherever watermarks fall.
        #[test]
        fn every_call_is_found(
            calls in prop::collection::vec((0..4_i32, any::<bool>(), 0..3_u64), 1..80),
            order in any::<u64>(),
            watermarks in prop::collection::vec(0..200_u64, 0..6),
        ) {
            let mut steps = Vec::new();
            let mut stacks: HashMap<i32, Vec<(u64, u64)>> = HashMap::new();
            let mut expected = Vec::new();
            let mut time = 0;
            for (tid, enters, function) in calls {
                time += 1;
                let stack = stacks.entry(tid).or_default();
                if enters {
                    stack.push((function, time));
                    steps.push((time, tid, function, false));
                } else if let Some((function, entered)) = stack.pop() {
                    expected.push((entered, time));
                    steps.push((time, tid, function, true));
                }
            }
            // Only what is after the last watermark may still be mixed.
            let mut pairs = Pairs::default();
            let mut found = Vec::new();
            let mut rest = steps;
            let mut limits = watermarks;
            limits.push(u64::MAX);
            limits.sort_unstable();
            for limit in limits {
                let (mut now, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(|step| step.0 < limit);
                rest = later;
                now.sort_by_key(|step| step.0.wrapping_mul(order | 1));
                for (time, tid, function, is_return) in now {
                    if is_return {
                        pairs.exit(tid, function, time, time);
                    } else {
                        pairs.entry(tid, function, time, time);
                    }
                }
                found.extend(pairs.until(limit).into_iter().map(|pair| (pair.entry.timestamp_ns, pair.exit.timestamp_ns)));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
