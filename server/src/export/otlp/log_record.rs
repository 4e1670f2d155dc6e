//! What an event, a gap, an epoch and the end of a chunk are as log records.
//!
//! Owns their names, which are a promise.

use kprobed_event::{Context, Loss, Row};
use kprobed_otlp::common::any_value::Value as Any;
use kprobed_otlp::common::{AnyValue, KeyValue};
use kprobed_otlp::logs::{LogRecord, SeverityNumber};

use super::value::{address, attribute, bytes, map, of_field, text, texts, unsigned};
use crate::export::account::Walked;
use crate::export::read::cursor_of;
use crate::spool::Cursor;

const EVENT: &str = "kprobed.event";

/// An event: its fields are the body.
pub(super) fn of_event(row: &Row<'_>, sequence: u64, now_ns: u64) -> LogRecord {
    let mut faults = Vec::new();
    let field = |(name, value): (&str, kprobed_event::Value<'_>)| {
        if value.has_fault() {
            faults.push(name.to_owned());
        }
        KeyValue { key: name.to_owned(), value: Some(of_field(&value)), ..KeyValue::default() }
    };
    let fields = row.fields().map(field).collect();
    let mut attributes = of_task(row);
    attributes.push(attribute("kprobed.sequence", unsigned(sequence)));
    attributes.push(attribute("kprobed.timestamp_ns", unsigned(row.timestamp_ns())));
    attributes.extend(row.context().map(|context| attribute("kprobed.context", map(of_context(context)))));
    if !faults.is_empty() {
        attributes.push(attribute("kprobed.faults", texts(faults)));
    }
    if row.schema().unproven().next().is_some() {
        attributes.push(attribute("kprobed.unproven", texts(row.schema().unproven())));
    }
    record(EVENT, row.wall_ns(), now_ns, SeverityNumber::Info, (map(fields), attributes))
}

/// Whether a record is an event.
pub(super) fn is_event(record: &LogRecord) -> bool {
    record.event_name == EVENT
}

/// Whose an event is, and where it was.
pub(super) fn of_task(row: &Row<'_>) -> Vec<KeyValue> {
    let mut attributes = vec![
        attribute("kprobed.probe", text(row.probe())),
        attribute("cpu.logical_number", Any::IntValue(row.cpu().into())),
    ];
    attributes.extend(row.tid().map(|tid| attribute("thread.id", Any::IntValue(tid.into()))));
    attributes.extend(row.comm().map(|comm| attribute("thread.name", bytes(comm))));
    attributes.extend(row.tgid().map(|tgid| attribute("process.pid", Any::IntValue(tgid.into()))));
    attributes.extend(row.location().map(|location| attribute("kprobed.location", address(location))));
    let returned = row.return_location();
    attributes.extend(returned.map(|location| attribute("kprobed.return_location", address(location))));
    attributes
}

/// Only what holds: a flag that is not there is false, a depth 0.
fn of_context(context: Context) -> Vec<KeyValue> {
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
    let flags = flags.into_iter().filter(|(_, flag)| *flag);
    let depths = depths.into_iter().filter(|(_, depth)| *depth > 0);
    flags
        .map(|(name, flag)| attribute(name, Any::BoolValue(flag)))
        .chain(depths.map(|(name, depth)| attribute(name, Any::IntValue(depth.into()))))
        .collect()
}

/// A gap. Its time is that of the first event behind it, where there is one.
pub(super) fn of_loss(loss: &Loss, now_ns: u64) -> LogRecord {
    let mut body = vec![attribute("cause", text(loss.cause.name())), attribute("gaps", unsigned(loss.gaps))];
    body.extend(loss.cpu.map(|cpu| attribute("cpu", Any::IntValue(cpu.into()))));
    body.extend(loss.count.map(|count| attribute("count", unsigned(count))));
    body.extend(loss.before_ns.map(|before| attribute("before_ns", unsigned(before))));
    if let Some(pause) = loss.pause {
        let duration_ns = u64::try_from(pause.duration.as_nanos()).unwrap_or(u64::MAX);
        let mut of_pause = vec![
            attribute("reason", text(pause.reason.name())),
            attribute("duration_ns", unsigned(duration_ns)),
        ];
        of_pause.extend(pause.hits.map(|hits| attribute("hits", unsigned(hits))));
        body.push(attribute("pause", map(of_pause)));
    }
    let time_ns = loss.before_wall_ns.unwrap_or(now_ns);
    record("kprobed.loss", time_ns, now_ns, SeverityNumber::Warn, (map(body), Vec::new()))
}

/// Another run of the daemon begins.
pub(super) fn of_epoch(cursor: &Cursor, may_miss: bool, now_ns: u64) -> LogRecord {
    let severity = if may_miss { SeverityNumber::Warn } else { SeverityNumber::Info };
    let body = vec![
        attribute("cursor", text(cursor_of(cursor).to_string())),
        attribute("may_miss", Any::BoolValue(may_miss)),
    ];
    record("kprobed.epoch", now_ns, now_ns, severity, (map(body), Vec::new()))
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
    record("kprobed.progress", now_ns, now_ns, SeverityNumber::Info, (map(body), Vec::new()))
}

fn record(
    event_name: &str,
    time_unix_nano: u64,
    observed_time_unix_nano: u64,
    severity: SeverityNumber,
    (body, attributes): (Any, Vec<KeyValue>),
) -> LogRecord {
    LogRecord {
        time_unix_nano,
        observed_time_unix_nano,
        severity_number: severity.into(),
        event_name: event_name.to_owned(),
        body: Some(AnyValue { value: Some(body) }),
        attributes,
        ..LogRecord::default()
    }
}
