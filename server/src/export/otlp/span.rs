//! The OTLP span of a call.
//!
//! Ids are made of the log positions of entries: a span that is sent again has the same ids, and a
//! call inside of another one knows the id of the outer call before that returns.
//!
//! The difference between the wall clock and the trace clock is sampled for each batch. Samples
//! differ by some microseconds, or by as much as the clock was set. All spans of a trace use the
//! sample of the outermost entry, so that each is as long as the trace clock says, and lies within
//! the span around it.

use kprobed_otlp::trace::span::SpanKind;

use super::pairs::Pair;
use super::protobuf::Protobuf;
use super::value::Attributes;
use kprobed_trace::spool::Cursor;

/// Numbers of the fields of `Span`, as `opentelemetry/proto/trace/v1/trace.proto` has them.
pub(super) mod field {
    pub(super) const TRACE_ID: u8 = 1;
    pub(super) const SPAN_ID: u8 = 2;
    pub(super) const PARENT_SPAN_ID: u8 = 4;
    pub(super) const NAME: u8 = 5;
    pub(super) const KIND: u8 = 6;
    pub(super) const START: u8 = 7;
    pub(super) const END: u8 = 8;
    pub(in super::super) const ATTRIBUTES: u8 = 9;
}

/// The span of a call in a run of the daemon.
pub(super) fn of_call(out: &mut Protobuf, pair: &Pair, run: &Cursor) {
    let Pair { entry, exit, callers, wall_offset_ns } = pair;
    let wall_ns = |timestamp_ns: u64| timestamp_ns.saturating_add_signed(*wall_offset_ns);
    let function = entry.location.split(['+', ' ']).next().unwrap_or_default();
    let outermost = callers.first().copied().unwrap_or(entry.sequence);
    out.bytes(field::TRACE_ID, &trace_id(run, outermost));
    out.bytes(field::SPAN_ID, &span_id(run, entry.sequence));
    if let Some(caller) = callers.last() {
        out.bytes(field::PARENT_SPAN_ID, &span_id(run, *caller));
    }
    out.bytes(field::NAME, function.as_bytes());
    out.signed(field::KIND, i32::from(SpanKind::Internal).into());
    out.fixed64(field::START, wall_ns(entry.timestamp_ns));
    out.fixed64(field::END, wall_ns(exit.timestamp_ns));
    out.fields(&entry.attributes);
    let attributes = &mut Attributes::new(out, field::ATTRIBUTES);
    attributes.put("code.function.name", |value| value.text(function));
    attributes.put("kprobed.return_probe", |value| value.text(&exit.probe));
    out.fields(&exit.attributes);
}

fn trace_id(run: &Cursor, sequence: u64) -> [u8; 16] {
    let (high, low) = seeds(run);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&mix(high ^ sequence).to_be_bytes());
    id[8..].copy_from_slice(&mix(low ^ sequence).to_be_bytes());
    id
}

fn span_id(run: &Cursor, sequence: u64) -> [u8; 8] {
    let (high, low) = seeds(run);
    // An id must not be 0.
    mix(high.rotate_left(32) ^ low ^ sequence).max(1).to_be_bytes()
}

fn seeds(run: &Cursor) -> (u64, u64) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (high, low) = run.boot_id.0.split_at(8);
    (number(high) ^ mix(run.epoch), number(low))
}

/// The finaliser of SplitMix64: a bijection, so that no two places have the same id, whose bits all
/// depend on all bits.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use kprobed_otlp::trace::Span;
    use prost::Message as _;

    use super::*;
    use crate::export::otlp::pairs::End;
    use kprobed_trace::spool::BootId;

    fn end(sequence: u64, timestamp_ns: u64, wall_offset_ns: i64) -> End {
        End {
            sequence,
            timestamp_ns,
            wall_offset_ns,
            location: "vfs_read+0x0/0x2e0".to_owned(),
            probe: "kprobes/returned".to_owned(),
            attributes: Protobuf::default(),
        }
    }

    fn span(pair: &Pair) -> Span {
        let run = Cursor { boot_id: BootId([7; 16]), epoch: 3, sequence: 100 };
        let mut out = Protobuf::default();
        of_call(&mut out, pair, &run);
        Span::decode(out.into_bytes().as_slice()).unwrap()
    }

    #[test]
    fn a_span_is_as_long_as_the_trace_clock_says() {
        // The sample of the clocks for the batch with the return is 18 us lower, and the call took
        // 1 us.
        let (entry, exit) = (end(1, 5_000, 1_000_000), end(2, 6_000, 982_000));
        let pair = Pair { entry, exit, callers: Vec::new(), wall_offset_ns: 1_000_000 };
        let span = span(&pair);
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1_005_000, 1_006_000));
        assert_eq!((span.name.as_str(), span.kind()), ("vfs_read", SpanKind::Internal));
        assert!(span.parent_span_id.is_empty());
    }

    #[test]
    fn calls_inside_a_call_are_of_its_trace() {
        let outer =
            Pair { entry: end(1, 10, 0), exit: end(4, 40, 0), callers: Vec::new(), wall_offset_ns: 0 };
        let inner = Pair { entry: end(2, 20, 0), exit: end(3, 30, 0), callers: vec![1], wall_offset_ns: 0 };
        let (outer, inner) = (span(&outer), span(&inner));
        assert_eq!(outer.trace_id, inner.trace_id);
        assert_eq!(outer.span_id, inner.parent_span_id);
        assert_ne!(outer.span_id, inner.span_id);
    }
}
