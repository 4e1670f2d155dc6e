//! Row events: batches converted to rows, for consumers that do not want columns.
//!
//! Owns the text of their values, and how many rows a message has. Never filters an event: it reads the messages that
//! other subscribers get.

use std::collections::HashMap;

use kprobed_event::format::push_name;
use kprobed_event::{Address, Context, FieldSchema, Group, Row, TimeOrdered, Value};
use kprobed_proto::v1;
use prost::Message as _;

use crate::export::{KEPT_SCHEMAS, Reader};
use kprobed_trace::pipeline::Delivery;
use kprobed_trace::wire::{Projected, Projection};

/// Rows in one message, and bytes after which it has no more: far below the 4 MiB that gRPC clients take by
/// default.
const MESSAGE_ROWS: usize = 512;
const MESSAGE_BYTES: usize = 256 << 10;

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
    ) -> Result<(), String> {
        // Each batch names its schemas again.
        if self.projected.len() > KEPT_SCHEMAS {
            self.projected.clear();
        }
        let batch = self.reader.batch(delivery)?;
        // The history names all probes with each batch.
        for schema in batch.groups().iter().map(Group::schema) {
            self.projected.entry(schema.id()).or_insert_with(|| projection.of(schema.fields()));
        }
        self.rows.push(batch);
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
    let all = row.schema().fields();
    let fields = projected.fields.iter().filter_map(|index| {
        let (field, value) = (all.get(*index)?, row.value(*index)?);
        let (name, text) = (field.name.clone(), shown(field, &value));
        Some(v1::NamedValue { name, text, value: Some(value_message(&value)) })
    });
    let unproven = projected.fields.iter().filter_map(|index| all.get(*index));
    let unproven = unproven.filter(|field| !field.fault_detected).map(|field| field.name.clone());
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
        unproven: unproven.collect(),
        fields: fields.collect(),
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
    use std::sync::Arc;

    use kprobed_event::{FieldKind, Notation};
    use kprobed_lang::model::{ProbeName, ProbeUid};
    use kprobed_trace::decode::Schema;
    use kprobed_trace::pipeline::samples::{hub, publish, source};
    use kprobed_trace::pipeline::{Item, Origin, Span, View};

    use super::*;

    fn origin(schema_id: u32, event: &str, fields: Vec<FieldSchema>) -> Arc<Origin> {
        let name = ProbeName::new("g", event).unwrap();
        let schema = Arc::new(Schema { fields, is_return: false });
        Arc::new(Origin::new(schema_id, ProbeUid(1), name, 7, schema))
    }

    fn values(bytes: &[u8], faults: &[u8]) -> v1::Column {
        v1::Column { values: bytes.to_vec().into(), faults: faults.to_vec().into(), ..Default::default() }
    }

    fn text(bytes: &[u8]) -> v1::Column {
        let end = u32::try_from(bytes.len()).unwrap();
        let offsets = [0_u32.to_le_bytes(), end.to_le_bytes()].concat();
        v1::Column { offsets: offsets.into(), data: bytes.to_vec().into(), ..Default::default() }
    }

    /// An event of a probe with a field of each kind, beside another probe.
    fn delivery() -> Delivery {
        let field = FieldSchema::new;
        let fields = vec![
            FieldSchema { notation: Notation::Errno, ..field("error", FieldKind::Signed { bytes: 4 }) },
            FieldSchema {
                notation: Notation::Ipv6,
                array_len: Some(16),
                fault_detected: false,
                ..field("peer", FieldKind::Unsigned { bytes: 1 })
            },
            FieldSchema { array_len: Some(2), ..field("pair", FieldKind::Unsigned { bytes: 2 }) },
            field("place", FieldKind::Symbol),
            field("pointer", FieldKind::Symbol),
            field("word", FieldKind::String),
            field("raw", FieldKind::String),
            field("letter", FieldKind::Char),
        ];
        let mut peer = [0_u8; 16];
        peer[15] = 1;
        let group = v1::EventGroup {
            schema_id: 1,
            rows: 1,
            base_ns: 5,
            offsets_ns: vec![0; 4].into(),
            tids: 7_i32.to_le_bytes().to_vec().into(),
            flags: vec![1].into(),
            preempt_counts: vec![2].into(),
            ips: 0x1000_u64.to_le_bytes().to_vec().into(),
            columns: vec![
                values(&(-2_i32).to_le_bytes(), &[]),
                values(&peer, &[]),
                values(&[3, 0, 0, 0], &[2]),
                values(&0x1000_u64.to_le_bytes(), &[]),
                values(&0x2000_u64.to_le_bytes(), &[]),
                text(b"a"),
                text(b"\xff"),
                values(b"x", &[]),
            ],
            ..Default::default()
        };
        let batch = v1::EventBatch {
            cpu: 3,
            sequence: 10,
            log_events: 1,
            groups: vec![group],
            tasks: vec![v1::Task { tid: 7, comm: b"cat".to_vec(), tgid: 6 }],
            symbols: vec![v1::Symbol { address: 0x1000, text: "vfs_read+0x0/0x10".to_owned() }],
            clock: Some(v1::ClockMapping { wall_offset_ns: 1_000_000_000, ..Default::default() }),
        };
        let message = v1::stream_events_response::Message::Batch(batch);
        Delivery {
            cpu: 3,
            sequence: 10,
            log_events: 1,
            events: 1,
            span: Span { first_ns: 5, last_ns: 5 },
            wall_offset_ns: 1_000_000_000,
            origins: Arc::from([origin(1, "all", fields), origin(2, "other", Vec::new())]),
            message: v1::StreamEventsResponse { message: Some(message) }.encode_to_vec().into(),
        }
    }

    /// The only event of a batch; the cursor is the one after it.
    fn row(projection: &Projection) -> v1::EventRow {
        let mut rows = BatchRows::new();
        let end = v1::Cursor { sequence: 11, ..Default::default() };
        rows.take(&delivery(), projection, end.clone()).unwrap();
        assert_eq!(rows.projected.keys().collect::<Vec<_>>(), [&1], "only probes of the batch are looked at");
        let v1::EventRows { mut events, cursor } = rows.next().unwrap();
        assert_eq!((events.len(), cursor), (1, Some(end)));
        assert_eq!(rows.next(), None);
        events.remove(0)
    }

    #[test]
    fn a_row_has_the_values_of_all_kinds() {
        use v1::value::Kind;
        let row = row(&Projection::default());
        let value = |kind: Option<Kind>| v1::Value { kind };
        let pair = vec![value(Some(Kind::Unsigned(3))), value(None)];
        let peer = (0..16).map(|index| value(Some(Kind::Unsigned(u64::from(index == 15))))).collect();
        let expected = [
            ("error", "ENOENT", Kind::Signed(-2)),
            ("peer", "::1", Kind::List(v1::ValueList { values: peer })),
            ("pair", "", Kind::List(v1::ValueList { values: pair })),
            ("place", "", Kind::Symbol("vfs_read+0x0/0x10".to_owned())),
            ("pointer", "", Kind::Symbol("0x2000".to_owned())),
            ("word", "", Kind::Text("a".to_owned())),
            ("raw", "", Kind::Bytes(vec![0xff])),
            ("letter", "", Kind::Text("x".to_owned())),
        ];
        let expected = expected.map(|(name, text, kind)| v1::NamedValue {
            name: name.to_owned(),
            text: text.to_owned(),
            value: Some(value(Some(kind))),
        });
        assert_eq!(row.fields, expected);
        let names =
            (row.probe.as_str(), row.comm.as_str(), row.location.as_str(), row.return_location.as_str());
        assert_eq!(names, ("g/all", "cat", "vfs_read+0x0/0x10", ""));
        assert_eq!((row.cpu, row.tid, row.tgid, row.timestamp_ns), (3, 7, 6, 5));
        assert_eq!(row.time, Some(prost_types::Timestamp { seconds: 1, nanos: 5 }));
        let context = v1::EventContext { irqs_off: true, preempt_depth: 2, ..Default::default() };
        assert_eq!((row.context, row.unproven), (Some(context), vec!["peer".to_owned()]));
    }

    #[test]
    fn a_row_has_only_what_was_asked_for() {
        let row = row(&Projection::new(vec!["comm".to_owned(), "letter".to_owned()]));
        let names: Vec<_> = row.fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!((names, row.unproven.len()), (vec!["letter"], 0));
        assert_eq!((row.comm.as_str(), row.tid), ("cat", 7), "a task is found by its thread id");
        assert_eq!((row.location.as_str(), row.context), ("", None));
    }

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
            assert!(rows.projected.len().max(rows.reader.schemas()) <= KEPT_SCHEMAS + 1);
        }
    }
}
