//! The OTLP span of a call.
//!
//! Ids are made of the numbers of entries in the log: a span that is sent again has the same ids, and a
//! call inside of another one knows the id of the outer call before that returns.
//!
//! The difference between the wall clock and the trace clock is sampled for each batch. Samples
//! differ by some microseconds, or by as much as the clock was set. All spans of a trace use the
//! sample of the outermost entry, so that each is as long as the trace clock says, and lies within
//! the span around it.

use kprobed_event::Row;
use kprobed_otlp::trace::Span;
use kprobed_otlp::trace::span::SpanKind;

use super::calls::{Entry, attributes};
use super::value::{attribute, text};
use kprobed_trace::spool::Cursor;

/// The span of a call in a run of the daemon.
pub(super) fn of_call(entry: Entry, exit: &Row<'_>, run: &Cursor) -> Span {
    let wall_ns = |timestamp_ns: u64| timestamp_ns.saturating_add_signed(entry.wall_offset_ns);
    let function = entry.location.split(['+', ' ']).next().unwrap_or_default();
    let mut span = Span {
        trace_id: trace_id(run, entry.outermost).to_vec(),
        span_id: span_id(run, entry.number).to_vec(),
        parent_span_id: entry.caller.map(|caller| span_id(run, caller).to_vec()).unwrap_or_default(),
        name: function.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: wall_ns(entry.timestamp_ns),
        end_time_unix_nano: wall_ns(exit.timestamp_ns()),
        attributes: entry.attributes,
        ..Span::default()
    };
    span.attributes.push(attribute("code.function.name", text(function)));
    span.attributes.push(attribute("kprobed.return_probe", text(exit.probe())));
    span.attributes.extend(attributes(exit, "kprobed.return"));
    span
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
    use kprobed_event::Batch;
    use kprobed_proto::v1;

    use super::*;
    use crate::export::otlp::calls::SpanCalls;
    use kprobed_trace::spool::BootId;

    /// A batch of one event of `vfs_read`.
    fn batch(is_return: bool, sequence: u64, timestamp_ns: u64, wall_offset_ns: i64) -> Batch {
        let probe = if is_return { "kprobes/returned" } else { "kprobes/read" }.to_owned();
        let schema = v1::EventSchema { schema_id: 1, probe, is_return, ..Default::default() };
        let group = v1::EventGroup {
            schema_id: 1,
            rows: 1,
            base_ns: timestamp_ns,
            offsets_ns: vec![0; 4].into(),
            tids: 7_i32.to_le_bytes().to_vec().into(),
            ips: 0x1000_u64.to_le_bytes().to_vec().into(),
            ..Default::default()
        };
        let batch = v1::EventBatch {
            sequence,
            log_events: 1,
            groups: vec![group],
            symbols: vec![v1::Symbol { address: 0x1000, text: "vfs_read+0x0/0x2e0".to_owned() }],
            clock: Some(v1::ClockMapping { wall_offset_ns, ..Default::default() }),
            ..Default::default()
        };
        Batch::from_parts(vec![schema], batch).unwrap()
    }

    fn spans(batches: impl IntoIterator<Item = Batch>) -> Vec<Span> {
        let run = Cursor { boot_id: BootId([7; 16]), epoch: 3, sequence: 100 };
        let mut calls = SpanCalls::default();
        let mut spans = Vec::new();
        for batch in batches {
            calls.push(batch, |_, _| panic!("no watermark has come"));
        }
        calls.until(u64::MAX, |entry, exit| spans.push(of_call(entry, exit, &run)));
        spans
    }

    #[test]
    fn a_span_is_as_long_as_the_trace_clock_says() {
        // The sample of the clocks for the batch with the return is 18 us lower, and the call took
        // 1 us.
        let spans = spans([batch(false, 1, 5_000, 1_000_000), batch(true, 2, 6_000, 982_000)]);
        let [span] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1_005_000, 1_006_000));
        assert_eq!((span.name.as_str(), span.kind()), ("vfs_read", SpanKind::Internal));
        assert!(span.parent_span_id.is_empty());
    }

    #[test]
    fn calls_inside_a_call_are_of_its_trace() {
        let spans = spans([
            batch(false, 1, 10, 0),
            batch(false, 2, 20, 0),
            batch(true, 3, 30, 0),
            batch(true, 4, 40, 0),
        ]);
        let [inner, outer] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!(outer.trace_id, inner.trace_id);
        assert_eq!(outer.span_id, inner.parent_span_id);
        assert_ne!(outer.span_id, inner.span_id);
    }
}
