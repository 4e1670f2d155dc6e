//! Row events: batches converted to rows, for consumers that do not want columns.
//!
//! Owns the text of their values, and how many rows a message has. Never filters an event: it reads the messages that
//! other subscribers get.

use std::collections::HashMap;

use kprobed_event::format::push_name;
use kprobed_event::{Address, Context, FieldSchema, Row, TimeOrdered, Value};
use kprobed_proto::v1;
use prost::Message as _;

use crate::export::{ReadError, Reader};
use kprobed_trace::pipeline::Delivery;
use kprobed_trace::wire::{Projected, Projection};

/// Rows in one message, and bytes after which it has no more: far below the 4 MiB that gRPC clients take by
/// default.
const MESSAGE_ROWS: usize = 512;
const MESSAGE_BYTES: usize = 256 << 10;

/// Schemas that are kept from one batch to the next, unless a batch names as many itself. Probes come and go as long
/// as a stream lasts.
const KEPT_SCHEMAS: usize = 4096;

/// Batches that are sent as rows, message by message.
pub(super) struct BatchRows {
    reader: Reader,
    /// The wanted fields of each schema.
    projected: HashMap<u32, Projected>,
    /// The events of the last batch that are still to be sent.
    rows: TimeOrdered,
    /// Where the stream is after the last of them.
    end: v1::Cursor,
}

impl BatchRows {
    /// No batch yet.
    pub(super) fn new() -> Self {
        Self {
            reader: Reader::default(),
            projected: HashMap::new(),
            rows: TimeOrdered::new(usize::MAX),
            end: v1::Cursor::default(),
        }
    }

    /// What follows is of another run of the daemon.
    pub(super) fn begin_epoch(&mut self) {
        self.reader.begin_epoch();
        self.projected.clear();
    }

    /// Takes the next batch, once all rows of the last one were sent. The stream is at `end` after it.
    pub(super) fn take(
        &mut self,
        delivery: &Delivery,
        projection: &Projection,
        end: v1::Cursor,
    ) -> Result<(), ReadError> {
        // Each batch names its schemas again.
        if self.projected.len() > KEPT_SCHEMAS.max(2 * delivery.origins.len()) {
            self.begin_epoch();
        }
        for origin in delivery.origins.iter() {
            self.projected.entry(origin.schema_id).or_insert_with(|| projection.of(&origin.schema.fields));
        }
        self.rows.push(self.reader.batch(delivery)?);
        self.rows.finish();
        self.end = end;
        Ok(())
    }

    /// The next message. None after the last one of a batch.
    pub(super) fn next(&mut self) -> Option<v1::EventRows> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < MESSAGE_ROWS
            && bytes < MESSAGE_BYTES
            && let Some(row) = self.rows.next_row()
        {
            if let Some(projected) = self.projected.get(&row.schema().id()) {
                let event = event(&row, projected);
                bytes += event.encoded_len();
                events.push(event);
            }
        }
        if events.is_empty() {
            return None;
        }
        let is_last = self.rows.held_events() == 0;
        Some(v1::EventRows { events, cursor: is_last.then(|| self.end.clone()) })
    }
}

fn event(row: &Row<'_>, projected: &Projected) -> v1::EventRow {
    let symbol = |address: Option<Address<'_>>| {
        let shown = address.filter(|_| projected.location);
        shown.map(|address| address.to_string()).unwrap_or_default()
    };
    let field = |index: &usize| Some((row.schema().fields().get(*index)?, row.value(*index)?));
    let named = |(field, value): (&FieldSchema, Value<'_>)| v1::NamedValue {
        name: field.name.clone(),
        text: shown(field, &value),
        value: Some(value_message(&value)),
    };
    let fields = projected.fields.iter().filter_map(field);
    let unproven = fields.clone().filter(|(field, _)| !field.fault_detected);
    let comm = row.comm().filter(|_| projected.comm).map(|comm| String::from_utf8_lossy(comm).into_owned());
    v1::EventRow {
        probe: row.probe().to_owned(),
        time: Some(row.time().into()),
        timestamp_ns: row.timestamp_ns(),
        cpu: row.cpu(),
        tid: row.tid().filter(|_| projected.tid).unwrap_or_default(),
        comm: comm.unwrap_or_default(),
        context: row.context().filter(|_| projected.context).map(event_context),
        location: symbol(row.location()),
        return_location: symbol(row.return_location()),
        unproven: unproven.map(|(field, _)| field.name.clone()).collect(),
        fields: fields.map(named).collect(),
        tgid: row.tgid().filter(|_| projected.tid).unwrap_or_default(),
    }
}

/// What people write for a value; empty if that is the value itself.
fn shown(field: &FieldSchema, value: &Value<'_>) -> String {
    let mut text = Vec::new();
    push_name(&mut text, field, value);
    String::from_utf8(text).unwrap_or_default()
}

fn value_message(value: &Value<'_>) -> v1::Value {
    use v1::value::Kind;
    let kind = match value {
        Value::Fault => None,
        Value::Unsigned { value, .. } => Some(Kind::Unsigned(*value)),
        Value::Signed { value, .. } => Some(Kind::Signed(*value)),
        Value::Char(byte) => Some(text_or_bytes(&[*byte])),
        Value::Symbol(address) => Some(Kind::Symbol(address.to_string())),
        Value::Bytes(bytes) => Some(text_or_bytes(bytes)),
        Value::List(list) => {
            let values = list.iter().map(|value| value_message(&value)).collect();
            Some(Kind::List(v1::ValueList { values }))
        }
    };
    v1::Value { kind }
}

fn text_or_bytes(bytes: &[u8]) -> v1::value::Kind {
    match std::str::from_utf8(bytes) {
        Ok(text) => v1::value::Kind::Text(text.to_owned()),
        Err(_) => v1::value::Kind::Bytes(bytes.to_vec()),
    }
}

fn event_context(context: Context) -> v1::EventContext {
    v1::EventContext {
        irqs_off: context.irqs_off(),
        hardirq: context.hardirq(),
        softirq: context.softirq(),
        nmi: context.nmi(),
        need_resched: context.need_resched(),
        bh_off: context.bh_off(),
        preempt_depth: context.preempt_depth().into(),
        migrate_disable_depth: context.migrate_disable_depth().into(),
    }
}

#[cfg(test)]
mod tests {
    use kprobed_trace::pipeline::samples::{hub, publish, source};
    use kprobed_trace::pipeline::{Item, View};

    use super::*;

    #[tokio::test]
    async fn schemas_of_probes_that_are_gone_are_not_kept() {
        let hub = hub();
        let subscription = hub.subscribe(View::default());
        subscription.attach();
        let mut rows = BatchRows::new();
        for schema_id in 1..=u32::try_from(KEPT_SCHEMAS + 9).unwrap() {
            publish(&hub, &source("a", schema_id), 0, 2, schema_id.into());
            let Ok(Item::Batch(delivery)) = subscription.next().await else { panic!("no events") };
            rows.take(&delivery, &Projection::default(), v1::Cursor::default()).unwrap();
            let message = rows.next().unwrap();
            let probes: Vec<_> = message.events.iter().map(|event| event.probe.as_str()).collect();
            assert_eq!((probes, message.cursor), (vec!["kprobes/a"; 2], Some(v1::Cursor::default())));
            assert_eq!(rows.next(), None);
            assert!(rows.projected.len() <= KEPT_SCHEMAS + 1);
        }
    }
}
