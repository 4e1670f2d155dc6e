//! OTLP log records of an event, a gap, an epoch and the end of a chunk.
//!
//! Owns the names of their attributes, which are a promise.

use kprobed_event::{Context, Loss, Row, cause_name, reason_name};
use kprobed_otlp::logs::SeverityNumber;

use super::protobuf::Protobuf;
use super::value::{AnyValue, Attributes, value};
use crate::export::account::Walked;
use crate::export::read::cursor_of;
use kprobed_trace::spool::Cursor;

/// Numbers of the fields of `LogRecord`, as `opentelemetry/proto/logs/v1/logs.proto` has them.
mod field {
    pub(super) const TIME: u8 = 1;
    pub(super) const SEVERITY: u8 = 2;
    pub(super) const BODY: u8 = 5;
    pub(super) const ATTRIBUTES: u8 = 6;
    pub(super) const OBSERVED_TIME: u8 = 11;
    pub(super) const EVENT_NAME: u8 = 12;
}

/// An event: its fields are the body.
pub(super) fn of_event(out: &mut Protobuf, row: &Row<'_>, sequence: u64, now_ns: u64) {
    let mut has_fault = false;
    let body = |fields: &mut Attributes<'_>| {
        for (name, known) in row.fields() {
            has_fault |= known.has_fault();
            fields.put(name, |value| value.of_field(&known));
        }
    };
    head(out, row.wall_ns(), SeverityNumber::Info);
    value(out, field::BODY, |value| value.map(body));
    let attributes = &mut Attributes::new(out, field::ATTRIBUTES);
    put_task(attributes, row);
    attributes.put("kprobed.sequence", |value| value.unsigned(sequence));
    attributes.put("kprobed.timestamp_ns", |value| value.unsigned(row.timestamp_ns()));
    if let Some(context) = row.context() {
        attributes.put("kprobed.context", |value| value.map(|map| put_context(map, context)));
    }
    if has_fault {
        let faults = row.fields().filter(|(_, value)| value.has_fault()).map(|(name, _)| name);
        attributes.put("kprobed.faults", |value| value.texts(faults));
    }
    if row.schema().unproven().next().is_some() {
        attributes.put("kprobed.unproven", |value| value.texts(row.schema().unproven()));
    }
    tail(out, now_ns, "kprobed.event");
}

/// The probe, thread and CPU of an event.
pub(super) fn put_task(attributes: &mut Attributes<'_>, row: &Row<'_>) {
    attributes.put("kprobed.probe", |value| value.text(row.probe()));
    attributes.put("cpu.logical_number", |value| value.signed(row.cpu()));
    if let Some(tid) = row.tid() {
        attributes.put("thread.id", |value| value.signed(tid));
    }
    if let Some(comm) = row.comm() {
        attributes.put("thread.name", |value| value.bytes(comm));
    }
    if let Some(tgid) = row.tgid() {
        attributes.put("process.pid", |value| value.signed(tgid));
    }
    if let Some(location) = row.location() {
        attributes.put("kprobed.location", |value| value.address(location));
    }
    if let Some(location) = row.return_location() {
        attributes.put("kprobed.return_location", |value| value.address(location));
    }
}

/// Only what holds: a flag that is not there is false, a depth 0.
fn put_context(map: &mut Attributes<'_>, context: Context) {
    let flags = [
        ("irqs_off", context.irqs_off()),
        ("hardirq", context.hardirq()),
        ("softirq", context.softirq()),
        ("nmi", context.nmi()),
        ("need_resched", context.need_resched()),
        ("bh_off", context.bh_off()),
    ];
    let depths = [
        ("preempt_depth", context.preempt_depth()),
        ("migrate_disable_depth", context.migrate_disable_depth()),
    ];
    for (name, flag) in flags.into_iter().filter(|(_, flag)| *flag) {
        map.put(name, |value| value.bool(flag));
    }
    for (name, depth) in depths.into_iter().filter(|(_, depth)| *depth > 0) {
        map.put(name, |value| value.signed(depth));
    }
}

/// A gap. Its time is that of the first event after it, if there is one.
pub(super) fn of_loss(out: &mut Protobuf, loss: &Loss, now_ns: u64) {
    let body = |body: &mut Attributes<'_>| {
        body.put("cause", |value| value.text(&cause_name(loss.cause)));
        body.put("gaps", |value| value.unsigned(loss.gaps));
        if let Some(cpu) = loss.cpu {
            body.put("cpu", |value| value.signed(cpu));
        }
        if let Some(count) = loss.count {
            body.put("count", |value| value.unsigned(count));
        }
        if let Some(before_ns) = loss.before_ns {
            body.put("before_ns", |value| value.unsigned(before_ns));
        }
        if let Some(pause) = loss.pause {
            let duration_ns = u64::try_from(pause.duration.as_nanos()).unwrap_or(u64::MAX);
            let of_pause = |map: &mut Attributes<'_>| {
                map.put("reason", |value| value.text(&reason_name(pause.reason)));
                map.put("duration_ns", |value| value.unsigned(duration_ns));
                if let Some(hits) = pause.hits {
                    map.put("hits", |value| value.unsigned(hits));
                }
            };
            body.put("pause", |value| value.map(of_pause));
        }
    };
    let time_ns = loss.before_wall_ns.unwrap_or(now_ns);
    record(out, "kprobed.loss", (time_ns, now_ns), SeverityNumber::Warn, |value| value.map(body));
}

/// Another run of the daemon begins.
pub(super) fn of_epoch(out: &mut Protobuf, cursor: &Cursor, may_miss: bool, now_ns: u64) {
    let severity = if may_miss { SeverityNumber::Warn } else { SeverityNumber::Info };
    let body = |body: &mut Attributes<'_>| {
        body.put("cursor", |value| value.display(cursor_of(cursor)));
        body.put("may_miss", |value| value.bool(may_miss));
    };
    record(out, "kprobed.epoch", (now_ns, now_ns), severity, |value| value.map(body));
}

/// How far the records before it go in the log: read = events + not selected + expired.
pub(super) fn of_progress(out: &mut Protobuf, cursor: &Cursor, walked: &Walked, now_ns: u64) {
    let body = |body: &mut Attributes<'_>| {
        body.put("cursor", |value| value.display(cursor_of(cursor)));
        body.put("read", |value| value.unsigned(walked.places));
        body.put("events", |value| value.unsigned(walked.selected));
        body.put("not_selected", |value| value.unsigned(walked.not_selected));
        body.put("expired", |value| value.unsigned(walked.expired));
    };
    record(out, "kprobed.progress", (now_ns, now_ns), SeverityNumber::Info, |value| value.map(body));
}

fn record(
    out: &mut Protobuf,
    event_name: &str,
    (time_ns, now_ns): (u64, u64),
    severity: SeverityNumber,
    body: impl FnOnce(AnyValue<'_>),
) {
    head(out, time_ns, severity);
    value(out, field::BODY, body);
    tail(out, now_ns, event_name);
}

fn head(out: &mut Protobuf, time_ns: u64, severity: SeverityNumber) {
    out.fixed64(field::TIME, time_ns);
    out.signed(field::SEVERITY, i32::from(severity).into());
}

fn tail(out: &mut Protobuf, now_ns: u64, event_name: &str) {
    out.fixed64(field::OBSERVED_TIME, now_ns);
    out.bytes(field::EVENT_NAME, event_name.as_bytes());
}
