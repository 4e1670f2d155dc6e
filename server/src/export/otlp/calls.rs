//! Calls whose spans are sent: the order of their events, and what a span needs of an entry.
//!
//! [`Calls`] joins entries with returns of the same function. Events wait for the watermarks of the log, which come
//! for each second of its time. While the exporter catches up, that second passes as fast as the disk is read: when
//! too many wait, the oldest go without an order, no call is joined over them, and whose calls have no span is said.
//!
//! A part of the log that is read again after a failure is recognised by its log positions, so that
//! the calls stay the same.

use std::collections::BTreeSet;
use std::fmt;

use kprobed_event::{Batch, CallEnd, Calls, Loss, Row, TimeOrdered};
use kprobed_otlp::common::KeyValue;
use prost::Message as _;

use super::log_record::of_task;
use super::value::field;

/// Calls that may be open. Of more, the oldest are given up: those that never return, and probes
/// that have no return probe.
const MOST_OPEN: usize = 1 << 14;

/// Events that may wait for the watermark, and bytes of their batches; open calls may have as many bytes.
const MOST_WAITING: usize = 1 << 17;
const MOST_BYTES: usize = 32 << 20;

/// The entry of a call.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its number in the log.
    pub(super) number: u64,
    /// The number of the entry of the call that it was made in.
    pub(super) caller: Option<u64>,
    /// That of the outermost of these; its own if there is none.
    pub(super) outermost: u64,
    /// Wall clock minus trace clock at the outermost entry, in nanoseconds.
    pub(super) wall_offset_ns: i64,
    /// Trace-clock time, in nanoseconds.
    pub(super) timestamp_ns: u64,
    /// The place of the probe, by name if it is known.
    pub(super) location: String,
    probe: String,
    /// Whose it is, and its fields, as a span has them.
    pub(super) attributes: Vec<KeyValue>,
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

/// Events that wait for the watermark, and calls that are open.
#[derive(Debug)]
pub(super) struct SpanCalls {
    ordered: TimeOrdered,
    open: Calls<Entry>,
    given_up: GivenUp,
    /// The log was read up to here.
    pub(super) seen: u64,
}

impl Default for SpanCalls {
    fn default() -> Self {
        Self {
            ordered: TimeOrdered::new(MOST_WAITING).with_limit_bytes(MOST_BYTES),
            open: Calls::new(MOST_OPEN, MOST_BYTES),
            given_up: GivenUp::default(),
            seen: 0,
        }
    }
}

impl SpanCalls {
    /// Another run of the daemon begins: its places begin anew, and no call goes on.
    pub(super) fn begin_epoch(&mut self) {
        *self = Self::default();
    }

    /// The calls that were given up since this was last asked.
    pub(super) fn given_up(&mut self) -> Option<GivenUp> {
        (self.given_up.calls > 0).then(|| std::mem::take(&mut self.given_up))
    }

    /// Events. Shows the calls that are whole, if some events need not wait any longer.
    pub(super) fn push(&mut self, batch: Batch, show: impl FnMut(Entry, &Row<'_>)) {
        self.open.arrived(&batch);
        self.ordered.push(batch);
        self.take(show);
    }

    /// Events are missing.
    pub(super) fn gap(&mut self, loss: &Loss) {
        self.open.gap(loss);
    }

    /// Shows the calls that returned before a time, of which no event is still to come.
    pub(super) fn until(&mut self, watermark_ns: u64, show: impl FnMut(Entry, &Row<'_>)) {
        self.ordered.advance(watermark_ns);
        self.take(show);
    }

    fn take(&mut self, mut show: impl FnMut(Entry, &Row<'_>)) {
        let Self { ordered, open, given_up, .. } = self;
        loop {
            let is_hurried = ordered.is_next_hurried();
            let Some(row) = ordered.next_row() else { break };
            if is_hurried {
                open.close();
            }
            if let Some(function) = row.location()
                && let Some(end) = CallEnd::of(&row, function.address)
            {
                if row.schema().is_return() {
                    if let Ok(entry) = open.leave(end) {
                        show(entry, &row);
                    }
                } else {
                    let location = function.to_string();
                    let attributes = attributes(&row, "kprobed.entry");
                    let of_attribute = |value: &KeyValue| size_of::<KeyValue>() + value.encoded_len();
                    let of_attributes: usize = attributes.iter().map(of_attribute).sum();
                    let bytes = size_of::<Entry>() + location.len() + row.probe().len() + of_attributes;
                    open.enter(end, bytes, |caller| Entry {
                        number: row.number(),
                        caller: caller.map(|caller| caller.number),
                        outermost: caller.map_or_else(|| row.number(), |caller| caller.outermost),
                        wall_offset_ns: caller.map_or(row.wall_offset_ns(), |caller| caller.wall_offset_ns),
                        timestamp_ns: row.timestamp_ns(),
                        location,
                        probe: row.probe().to_owned(),
                        attributes,
                    });
                }
            }
            // Others have no span either, and what they lack is said elsewhere.
            while let Some((entry, _)) = open.next_incomplete() {
                if is_hurried {
                    given_up.calls += 1;
                    given_up.probes.insert(entry.probe);
                }
            }
        }
    }
}

/// The fields of an event with a prefix before their names; of an entry, before them whose it is.
pub(super) fn attributes(row: &Row<'_>, prefix: &str) -> Vec<KeyValue> {
    let mut attributes = if row.schema().is_return() { Vec::new() } else { of_task(row) };
    attributes.extend(row.fields().map(|(name, value)| field(format!("{prefix}.{name}"), &value)));
    attributes
}

#[cfg(test)]
mod tests {
    use kprobed_event::LossCause;
    use kprobed_proto::v1;
    use proptest::prelude::*;

    use super::*;

    /// An event of an entry or a return probe: thread, function, time.
    type End = (bool, i32, u64, u64);

    /// A batch of one event. Its number is its time, and its clock is of its own.
    fn batch((is_return, tid, function, time): End) -> Batch {
        let schema = v1::EventSchema {
            schema_id: 1,
            probe: format!("kprobes/{}", if is_return { "out" } else { "in" }),
            is_return,
            ..Default::default()
        };
        let group = v1::EventGroup {
            schema_id: 1,
            rows: 1,
            base_ns: time,
            offsets_ns: vec![0; 4].into(),
            tids: tid.to_le_bytes().to_vec().into(),
            ips: function.to_le_bytes().to_vec().into(),
            ..Default::default()
        };
        let clock = v1::ClockMapping { wall_offset_ns: 1000 + time.cast_signed(), ..Default::default() };
        let batch = v1::EventBatch {
            sequence: time,
            log_events: 1,
            groups: vec![group],
            clock: Some(clock),
            ..Default::default()
        };
        Batch::from_parts(vec![schema], batch).unwrap()
    }

    /// Times of entry and return, and the time of the entry of the call around it.
    type Whole = (u64, u64, Option<u64>);

    fn push(calls: &mut SpanCalls, ends: impl IntoIterator<Item = End>) -> Vec<Whole> {
        let mut whole = Vec::new();
        for end in ends {
            calls.push(batch(end), |entry, exit| {
                whole.push((entry.timestamp_ns, exit.timestamp_ns(), entry.caller));
            });
        }
        whole
    }

    fn until(calls: &mut SpanCalls, watermark_ns: u64) -> Vec<Whole> {
        let mut whole = Vec::new();
        calls.until(watermark_ns, |entry, exit| {
            whole.push((entry.timestamp_ns, exit.timestamp_ns(), entry.caller));
        });
        whole
    }

    const fn entry(tid: i32, function: u64, time: u64) -> End {
        (false, tid, function, time)
    }

    const fn exit(tid: i32, function: u64, time: u64) -> End {
        (true, tid, function, time)
    }

    #[test]
    fn calls_nest_and_recurse() {
        let mut calls = SpanCalls::default();
        push(
            &mut calls,
            [
                entry(1, 10, 100),
                entry(1, 20, 110),
                entry(1, 10, 120),
                entry(2, 10, 125),
                exit(1, 10, 130),
                exit(1, 20, 140),
                exit(2, 10, 145),
                exit(1, 10, 150),
            ],
        );
        let whole = until(&mut calls, 151);
        assert_eq!(whole, [(120, 130, Some(110)), (110, 140, Some(100)), (125, 145, None), (100, 150, None)]);
        assert_eq!((calls.open.open(), calls.open.bytes(), calls.ordered.held_events()), (0, 0, 0));
    }

    #[test]
    fn calls_of_a_trace_have_the_clocks_of_its_beginning() {
        let mut calls = SpanCalls::default();
        let ends = [
            entry(1, 10, 100),
            entry(1, 20, 110),
            exit(1, 20, 120),
            exit(1, 10, 130),
            entry(1, 10, 140),
            exit(1, 10, 150),
        ];
        push(&mut calls, ends);
        let mut traces = Vec::new();
        calls.until(200, |entry, _| traces.push((entry.outermost, entry.wall_offset_ns)));
        assert_eq!(traces, [(100, 1100), (100, 1100), (140, 1140)]);
    }

    #[test]
    fn nothing_is_paired_before_its_watermark_or_over_a_gap() {
        let mut calls = SpanCalls::default();
        // The return was read first: it was on another CPU.
        push(&mut calls, [exit(1, 10, 200)]);
        assert!(until(&mut calls, 100).is_empty());
        push(&mut calls, [entry(1, 10, 150)]);
        assert!(until(&mut calls, 200).is_empty());
        assert_eq!(until(&mut calls, 201), [(150, 200, None)]);
        push(&mut calls, [entry(1, 10, 300)]);
        let cause = LossCause::Overrun;
        calls.gap(&Loss {
            cause,
            cpu: None,
            count: None,
            before_ns: Some(350),
            before_wall_ns: None,
            gaps: 1,
            pause: None,
        });
        push(&mut calls, [exit(1, 10, 400)]);
        assert!(until(&mut calls, 500).is_empty());
        assert_eq!(calls.open.open(), 0);
        assert!(calls.given_up().is_none(), "nothing waited for too long");
    }

    #[test]
    fn entries_without_returns_do_not_grow_for_ever() {
        let mut calls = SpanCalls::default();
        push(&mut calls, (0..MOST_OPEN as u64 * 2).map(|time| entry((time % 100) as i32, 30, time)));
        assert!(until(&mut calls, u64::MAX).is_empty());
        assert_eq!(calls.open.open(), MOST_OPEN);
        assert!(calls.given_up().is_none());
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_given_up_is_named() {
        let mut calls = SpanCalls::default();
        let count = MOST_WAITING as u64 * 2;
        // All of one second: no watermark comes.
        let mut whole = 0;
        for call in 0..count {
            whole += push(&mut calls, [entry(1, 10, 2 * call), exit(1, 10, 2 * call + 1)]).len() as u64;
            assert!(calls.ordered.held_events() <= MOST_WAITING && calls.ordered.held_bytes() <= MOST_BYTES);
        }
        whole += until(&mut calls, u64::MAX).len() as u64;
        let given_up = calls.given_up().unwrap();
        assert!(whole > 32_768, "{whole}");
        assert_eq!(whole + given_up.calls, count, "each call has a span or is given up");
        assert!(given_up.to_string().ends_with("calls have no span at `kprobes/in`"), "{given_up}");
        assert!(calls.given_up().is_none() && calls.ordered.held_bytes() == 0 && calls.open.bytes() == 0);
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
            let mut stacks: std::collections::HashMap<i32, Vec<(u64, u64)>> = std::collections::HashMap::new();
            let mut expected = Vec::new();
            let mut time = 0;
            for (tid, enters, function) in calls {
                time += 1;
                let stack = stacks.entry(tid).or_default();
                if enters {
                    stack.push((function, time));
                    steps.push(entry(tid, function, time));
                } else if let Some((function, entered)) = stack.pop() {
                    expected.push((entered, time));
                    steps.push(exit(tid, function, time));
                }
            }
            // Only what is after the last watermark may still be mixed.
            let mut calls = SpanCalls::default();
            let mut found = Vec::new();
            let mut rest = steps;
            let mut limits = watermarks;
            limits.push(u64::MAX);
            limits.sort_unstable();
            for limit in limits {
                let (mut now, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(|step| step.3 < limit);
                rest = later;
                now.sort_by_key(|step| step.3.wrapping_mul(order | 1));
                push(&mut calls, now);
                found.extend(until(&mut calls, limit).into_iter().map(|(entry, exit, _)| (entry, exit)));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
