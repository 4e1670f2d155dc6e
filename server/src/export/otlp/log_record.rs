//! OTLP log records of an event, a gap, an epoch and the end of a chunk.
//!
//! Owns the names of their attributes, which are a promise.

use kprobed_event::{Context, Loss, Row, cause_name, reason_name};
use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, KeyValue};
use kprobed_otlp::logs::{LogRecord, SeverityNumber};

use super::value::{address, attribute, bytes, field, map, signed, text, texts, unsigned};
use crate::export::account::Walked;
use crate::export::read::cursor_of;
use kprobed_trace::spool::Cursor;

/// An event: its fields are the body.
pub(super) fn of_event(row: &Row<'_>, sequence: u64, now_ns: u64) -> LogRecord {
    let mut has_fault = false;
    let fields = row.fields().map(|(name, value)| {
        has_fault |= value.has_fault();
        field(name, &value)
    });
    let body = fields.collect();
    let mut attributes = of_task(row);
    attributes.push(attribute("kprobed.sequence", unsigned(sequence)));
    attributes.push(attribute("kprobed.timestamp_ns", unsigned(row.timestamp_ns())));
    attributes.extend(row.context().map(|context| attribute("kprobed.context", of_context(context))));
    if has_fault {
        let faults = row.fields().filter(|(_, value)| value.has_fault()).map(|(name, _)| name);
        attributes.push(attribute("kprobed.faults", texts(faults)));
    }
    if row.schema().unproven().next().is_some() {
        attributes.push(attribute("kprobed.unproven", texts(row.schema().unproven())));
    }
    let record = record("kprobed.event", (row.wall_ns(), now_ns), SeverityNumber::Info, body);
    LogRecord { attributes, ..record }
}

/// The probe, thread and CPU of an event.
pub(super) fn of_task(row: &Row<'_>) -> Vec<KeyValue> {
    let mut task = vec![
        attribute("kprobed.probe", text(row.probe())),
        attribute("cpu.logical_number", signed(row.cpu())),
    ];
    let optional = [
        ("thread.id", row.tid().map(signed)),
        ("thread.name", row.comm().map(bytes)),
        ("process.pid", row.tgid().map(signed)),
        ("kprobed.location", row.location().map(address)),
        ("kprobed.return_location", row.return_location().map(address)),
    ];
    task.extend(optional.into_iter().filter_map(|(name, value)| Some(attribute(name, value?))));
    task
}

/// Only what holds: a flag that is not there is false, a depth 0.
fn of_context(context: Context) -> Any {
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
    let flags = flags.into_iter().filter(|(_, flag)| *flag).map(|(name, _)| (name, Any::BoolValue(true)));
    let depths =
        depths.into_iter().filter(|(_, depth)| *depth > 0).map(|(name, depth)| (name, signed(depth)));
    map(flags.chain(depths).map(|(name, value)| attribute(name, value)).collect())
}

/// A gap. Its time is that of the first event after it, if there is one.
pub(super) fn of_loss(loss: &Loss, now_ns: u64) -> LogRecord {
    let mut body =
        vec![attribute("cause", text(cause_name(loss.cause))), attribute("gaps", unsigned(loss.gaps))];
    body.extend(loss.cpu.map(|cpu| attribute("cpu", signed(cpu))));
    body.extend(loss.count.map(|count| attribute("count", unsigned(count))));
    body.extend(loss.before_ns.map(|before_ns| attribute("before_ns", unsigned(before_ns))));
    if let Some(pause) = loss.pause {
        let duration_ns = u64::try_from(pause.duration.as_nanos()).unwrap_or(u64::MAX);
        let mut of_pause = vec![
            attribute("reason", text(reason_name(pause.reason))),
            attribute("duration_ns", unsigned(duration_ns)),
        ];
        of_pause.extend(pause.hits.map(|hits| attribute("hits", unsigned(hits))));
        body.push(attribute("pause", map(of_pause)));
    }
    let time_ns = loss.before_wall_ns.unwrap_or(now_ns);
    record("kprobed.loss", (time_ns, now_ns), SeverityNumber::Warn, body)
}

/// Another run of the daemon begins.
pub(super) fn of_epoch(cursor: &Cursor, may_miss: bool, now_ns: u64) -> LogRecord {
    let severity = if may_miss { SeverityNumber::Warn } else { SeverityNumber::Info };
    let body = vec![
        attribute("cursor", text(cursor_of(cursor).to_string())),
        attribute("may_miss", Any::BoolValue(may_miss)),
    ];
    record("kprobed.epoch", (now_ns, now_ns), severity, body)
}

/// How far the records before it go in the log: read = events + not selected + expired.
pub(super) fn of_progress(cursor: &Cursor, walked: &Walked, now_ns: u64) -> LogRecord {
    let body = vec![
        attribute("cursor", text(cursor_of(cursor).to_string())),
        attribute("read", unsigned(walked.places)),
        attribute("events", unsigned(walked.selected)),
        attribute("not_selected", unsigned(walked.not_selected)),
        attribute("expired", unsigned(walked.expired)),
    ];
    record("kprobed.progress", (now_ns, now_ns), SeverityNumber::Info, body)
}

fn record(
    event_name: &str,
    (time_ns, now_ns): (u64, u64),
    severity: SeverityNumber,
    body: Vec<KeyValue>,
) -> LogRecord {
    LogRecord {
        time_unix_nano: time_ns,
        observed_time_unix_nano: now_ns,
        severity_number: severity.into(),
        body: Some(AnyValue { value: Some(map(body)) }),
        event_name: event_name.to_owned(),
        ..LogRecord::default()
    }
}
