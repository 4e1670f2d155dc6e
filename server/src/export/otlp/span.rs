//! What a call is as a span.
//!
//! Ids are made of the places of entries in the log: a span that is sent again has the same ones, and calls inside a call know its id before
//! it returns.

use kprobed_otlp::trace::Span;
use kprobed_otlp::trace::span::SpanKind;

use super::pairs::Pair;
use super::value::{attribute, text};
use crate::spool::Cursor;

/// The span of a call in a run of the daemon.
pub(super) fn of_call(pair: Pair, run: &Cursor) -> Span {
    let Pair { entry, exit, callers } = pair;
    let function = entry.location.split(['+', ' ']).next().unwrap_or_default().to_owned();
    let outermost = callers.first().copied().unwrap_or(entry.sequence);
    let mut attributes = entry.task;
    attributes.push(attribute("code.function.name", text(function.clone())));
    attributes.push(attribute("kprobed.return_probe", text(exit.probe)));
    attributes.extend(entry.fields);
    attributes.extend(exit.fields);
    Span {
        trace_id: trace_id(run, outermost).to_vec(),
        span_id: span_id(run, entry.sequence).to_vec(),
        parent_span_id: callers.last().map_or_else(Vec::new, |caller| span_id(run, *caller).to_vec()),
        name: function,
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: entry.wall_ns,
        end_time_unix_nano: exit.wall_ns.max(entry.wall_ns),
        attributes,
        ..Span::default()
    }
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

/// The finaliser of SplitMix64: a bijection, so that no two places have the same id, whose bits all depend on all bits.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
