//! Events as objects for programs.
//!
//! An event is `{"type": "event", …}`, a gap `{"type": "loss", …}`. A value that could not be read is `null`, and its field is
//! listed in `faults`.

use kprobed_client::event::{Context, Loss, LossCause, Row, Value};
use serde::Serialize;
use serde::ser::{SerializeMap as _, SerializeSeq as _, SerializeStruct as _, Serializer};

use super::super::data::Text;
use super::super::time::rfc3339_ns;

/// An event.
pub(super) struct EventView<'a>(pub(super) &'a Row<'a>);

impl Serialize for EventView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut event = serializer.serialize_struct("event", 12)?;
        event.serialize_field("type", "event")?;
        event.serialize_field("time", &rfc3339_ns(row.wall_ns()))?;
        event.serialize_field("timestamp_ns", &row.timestamp_ns())?;
        event.serialize_field("probe", row.probe())?;
        event.serialize_field("cpu", &row.cpu())?;
        event.serialize_field("tid", &row.tid())?;
        event.serialize_field("comm", &row.comm().map(Text))?;
        event.serialize_field("context", &row.context().map(ContextView::new))?;
        event.serialize_field("location", &format_args!("{}", row.location()))?;
        match row.return_location() {
            Some(location) => event.serialize_field("return_location", &format_args!("{location}"))?,
            None => event.serialize_field("return_location", &None::<&str>)?,
        }
        event.serialize_field("fields", &FieldsView(row))?;
        event.serialize_field("faults", &FaultsView(row))?;
        event.end()
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

struct ValueView<'a>(Value<'a>);

impl Serialize for ValueView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Unsigned { value, .. } => serializer.serialize_u64(value),
            Value::Signed { value, .. } => serializer.serialize_i64(value),
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
pub(super) struct LossView {
    r#type: &'static str,
    cause: &'static str,
    cpu: u32,
    /// `null`: some.
    count: Option<u64>,
    before: String,
    before_ns: u64,
}

impl LossView {
    pub(super) fn new(loss: &Loss) -> Self {
        let cause = match loss.cause {
            LossCause::Overrun => "overrun",
            LossCause::SubscriberQueue => "subscriber_queue",
            LossCause::Undecodable => "undecodable",
            LossCause::Other => "other",
        };
        Self {
            r#type: "loss",
            cause,
            cpu: loss.cpu,
            count: loss.count,
            before: rfc3339_ns(loss.before_wall_ns),
            before_ns: loss.before_ns,
        }
    }
}
