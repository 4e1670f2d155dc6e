//! Events, losses and other items of a stream as JSON and YAML objects.
//!
//! The key `type` is `event`, `loss` (a gap), `interruption` (a lost connection), `epoch` (a new
//! run of the daemon; events of the run before may be missing), or `caught_up` (the end of the
//! history). The client library writes events in JSON, which is faster; both forms are the same.

use kprobed_client::event::format::{EXACT, Origin};
use kprobed_client::event::{Address, Context, Cursor, Interruption, Loss, Row, Value};
use serde::Serialize;
use serde::ser::{SerializeMap as _, SerializeSeq as _, SerializeStruct as _, Serializer};

use super::super::data::Text;
use super::super::time::rfc3339_ns;

/// An event.
pub(super) struct EventView<'a>(pub(super) &'a Row<'a>, pub(super) Option<Origin<'a>>);

impl Serialize for EventView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut event = serializer.serialize_struct("event", 17)?;
        event.serialize_field("type", "event")?;
        if let Some(origin) = self.1 {
            event.serialize_field("host", origin.host)?;
            event.serialize_field("corrected_time", &rfc3339_ns(origin.corrected_ns))?;
            event.serialize_field("late", &origin.late)?;
        }
        event.serialize_field("time", &rfc3339_ns(row.wall_ns()))?;
        event.serialize_field("timestamp_ns", &Integer(row.timestamp_ns().into()))?;
        event.serialize_field("probe", row.probe())?;
        event.serialize_field("cpu", &row.cpu())?;
        event.serialize_field("tid", &row.tid())?;
        event.serialize_field("tgid", &row.tgid())?;
        event.serialize_field("comm", &row.comm().map(Text))?;
        event.serialize_field("context", &row.context().map(ContextView::new))?;
        event.serialize_field("location", &row.location().map(AddressView))?;
        event.serialize_field("return_location", &row.return_location().map(AddressView))?;
        event.serialize_field("fields", &FieldsView(row))?;
        event.serialize_field("faults", &FaultsView(row))?;
        event.serialize_field("unproven", &UnprovenView(row))?;
        event.end()
    }
}

struct AddressView<'a>(Address<'a>);

impl Serialize for AddressView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct FieldsView<'a>(&'a Row<'a>);

impl Serialize for FieldsView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.fields() {
            map.serialize_entry(name, &ValueView(value))?;
        }
        map.end()
    }
}

struct FaultsView<'a>(&'a Row<'a>);

impl Serialize for FaultsView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut names = serializer.serialize_seq(None)?;
        for (name, _) in self.0.fields().filter(|(_, value)| value.has_fault()) {
            names.serialize_element(name)?;
        }
        names.end()
    }
}

struct UnprovenView<'a>(&'a Row<'a>);

impl Serialize for UnprovenView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.schema().unproven())
    }
}

/// A number, or a text of its digits where it would not be exact as a double, as in
/// [`JsonLines`](kprobed_client::event::format::JsonLines).
struct Integer(i128);

impl Serialize for Integer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(value) if value.unsigned_abs() <= EXACT => serializer.serialize_i64(value),
            _ => serializer.collect_str(&self.0),
        }
    }
}

struct ValueView<'a>(Value<'a>);

impl Serialize for ValueView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Unsigned { value, .. } => Integer(value.into()).serialize(serializer),
            Value::Signed { value, .. } => Integer(value.into()).serialize(serializer),
            Value::Char(byte) => Text(&[byte]).serialize(serializer),
            Value::Symbol(symbol) => serializer.collect_str(&symbol),
            Value::Bytes(bytes) => Text(bytes).serialize(serializer),
            Value::List(list) => serializer.collect_seq(list.iter().map(ValueView)),
            Value::Fault => serializer.serialize_none(),
        }
    }
}

/// In which context an event happened.
#[derive(Serialize)]
struct ContextView {
    irqs_off: bool,
    hardirq: bool,
    softirq: bool,
    nmi: bool,
    need_resched: bool,
    bh_off: bool,
    preempt_depth: u8,
    migrate_disable_depth: u8,
}

impl ContextView {
    fn new(context: Context) -> Self {
        Self {
            irqs_off: context.irqs_off(),
            hardirq: context.hardirq(),
            softirq: context.softirq(),
            nmi: context.nmi(),
            need_resched: context.need_resched(),
            bh_off: context.bh_off(),
            preempt_depth: context.preempt_depth(),
            migrate_disable_depth: context.migrate_disable_depth(),
        }
    }
}

/// A gap.
#[derive(Serialize)]
pub(super) struct LossView<'a> {
    r#type: &'static str,
    /// Absent for events of one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    cause: &'static str,
    /// `null`: any.
    cpu: Option<u32>,
    /// `null`: some.
    count: Option<u64>,
    /// `null`: nothing has followed yet.
    before: Option<String>,
    before_ns: Option<u64>,
    gaps: u64,
    /// Absent unless the cause is a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseView>,
}

/// A pause in which the daemon recorded nothing.
#[derive(Serialize)]
struct PauseView {
    reason: &'static str,
    duration_ns: u64,
    /// `null`: the kernel did not count them.
    hits: Option<u64>,
}

impl<'a> LossView<'a> {
    pub(super) fn new(host: Option<&'a str>, loss: &Loss) -> Self {
        Self {
            r#type: "loss",
            host,
            cause: loss.cause.name(),
            cpu: loss.cpu,
            count: loss.count,
            before: loss.before_wall_ns.map(rfc3339_ns),
            before_ns: loss.before_ns,
            gaps: loss.gaps,
            pause: loss.pause.map(|pause| PauseView {
                reason: pause.reason.name(),
                duration_ns: u64::try_from(pause.duration.as_nanos()).unwrap_or(u64::MAX),
                hits: pause.hits,
            }),
        }
    }
}

/// Behind a run of the daemon whose last events may not be kept.
#[derive(Serialize)]
pub(super) struct EpochView<'a> {
    r#type: &'static str,
    /// Absent for events of one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    cursor: String,
    may_miss: bool,
}

impl<'a> EpochView<'a> {
    pub(super) fn new(host: Option<&'a str>, cursor: &Cursor) -> Self {
        Self { r#type: "epoch", host, cursor: cursor.to_string(), may_miss: true }
    }
}

/// Behind the history.
#[derive(Serialize)]
pub(super) struct CaughtUpView {
    r#type: &'static str,
    cursor: String,
}

impl CaughtUpView {
    pub(super) fn new(cursor: &Cursor) -> Self {
        Self { r#type: "caught_up", cursor: cursor.to_string() }
    }
}

/// A connection that was lost, or could not be made again.
#[derive(Serialize)]
pub(super) struct InterruptionView {
    r#type: &'static str,
    error: String,
    failures: u32,
}

impl InterruptionView {
    pub(super) fn new(interruption: &Interruption) -> Self {
        Self {
            r#type: "interruption",
            error: super::text::why(interruption),
            failures: interruption.failures,
        }
    }
}
