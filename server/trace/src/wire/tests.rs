//! Tests of the batch encoder: the generated reader reads what it writes.

use std::sync::Arc;

use kprobed_proto::v1;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::decode::{Base, Columns, FieldKind, FieldSchema, Notation, Schema, Value};
use kprobed_host::kernel::ClockMapping;
use kprobed_lang::model::{ProbeName, ProbeUid};

fn field(name: &str, kind: FieldKind, array_len: Option<u32>) -> FieldSchema {
    let base = matches!(kind, FieldKind::Unsigned { .. }).then_some(Base::Hex);
    FieldSchema { base, array_len, ..FieldSchema::new(name, kind) }
}

fn schema() -> Arc<Schema> {
    let fields = vec![
        field("a", FieldKind::Unsigned { bytes: 8 }, None),
        field("b", FieldKind::Signed { bytes: 2 }, Some(3)),
        field("s", FieldKind::String, None),
        field("t", FieldKind::String, Some(2)),
    ];
    Arc::new(Schema { fields, is_return: true })
}

/// One event.
#[derive(Clone, Debug)]
struct Event {
    time: u32,
    tid: i32,
    flags: u8,
    ip: u64,
    a: Option<u64>,
    b: [u16; 3],
    texts: [Option<Vec<u8>>; 3],
}

fn event() -> impl Strategy<Value = Event> {
    let text = || proptest::option::of(vec(any::<u8>(), 0..6));
    let head =
        (0_u32..1000, prop_oneof![Just(7), any::<i32>()], any::<bool>(), prop_oneof![Just(9), any::<u64>()]);
    (head, proptest::option::of(any::<u64>()), any::<[u16; 3]>(), [text(), text(), text()]).prop_map(
        |((time, tid, irqs, ip), a, b, texts)| Event { time, tid, flags: u8::from(irqs), ip, a, b, texts },
    )
}

fn faults(values: impl Iterator<Item = bool>) -> Vec<u8> {
    let values: Vec<bool> = values.collect();
    if !values.contains(&true) {
        return Vec::new();
    }
    values.chunks(8).map(|chunk| (0..).zip(chunk).map(|(bit, fault)| u8::from(*fault) << bit).sum()).collect()
}

fn texts(values: &[&Option<Vec<u8>>]) -> v1::Column {
    let (mut offsets, mut data) = (vec![0_u8; 4], Vec::<u8>::new());
    for text in values {
        data.extend(text.iter().flatten());
        offsets.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
    }
    let faults = faults(values.iter().map(|text| text.is_none()));
    v1::Column { offsets: offsets.into(), data: data.into(), faults: faults.into(), ..Default::default() }
}

/// The bytes of all rows, or those of one row if all are equal.
fn packed<const N: usize>(rows: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    let mut rows: Vec<_> = rows.collect();
    if rows.iter().all(|row| *row == rows[0]) {
        rows.truncate(1);
    }
    rows.concat()
}

/// The columns of events, in the order of time.
fn columns(events: &[Event], base_ns: u64) -> Columns {
    let mut offsets_ns = Vec::<u8>::new();
    let mut offset_ns = 0_u32;
    for event in events {
        offset_ns += event.time;
        offsets_ns.extend(offset_ns.to_le_bytes());
    }
    let fields = vec![
        v1::Column {
            values: packed(events.iter().map(|event| event.a.unwrap_or(0).to_le_bytes())).into(),
            faults: faults(events.iter().map(|event| event.a.is_none())).into(),
            ..Default::default()
        },
        v1::Column {
            values: packed(events.iter().map(|event| {
                let mut bytes = [0; 6];
                bytes
                    .as_chunks_mut()
                    .0
                    .iter_mut()
                    .zip(event.b)
                    .for_each(|(bytes, b)| *bytes = b.to_le_bytes());
                bytes
            }))
            .into(),
            ..Default::default()
        },
        texts(&events.iter().map(|event| &event.texts[0]).collect::<Vec<_>>()),
        texts(&events.iter().flat_map(|event| &event.texts[1..]).collect::<Vec<_>>()),
    ];
    let group = v1::EventGroup {
        rows: u32::try_from(events.len()).unwrap(),
        base_ns,
        offsets_ns: offsets_ns.into(),
        tids: packed(events.iter().map(|event| event.tid.to_le_bytes())).into(),
        flags: packed(events.iter().map(|event| [event.flags])).into(),
        preempt_counts: vec![1].into(),
        ips: packed(events.iter().map(|event| event.ip.to_le_bytes())).into(),
        return_ips: packed(events.iter().map(|event| (event.ip ^ 1).to_le_bytes())).into(),
        columns: fields,
        ..Default::default()
    };
    Columns::from_message(schema(), group).unwrap()
}

#[test]
fn a_column_of_equal_values_is_sent_once() {
    let event = |a, b, tid| Event {
        time: 5,
        tid,
        flags: 0,
        ip: 9,
        a,
        b,
        texts: [Some(b"x".to_vec()), None, Some(Vec::new())],
    };
    let same: Vec<_> = (0..100).map(|tid| event(Some(1 << 40), [1, 2, 3], tid)).collect();
    let mut differs = same.clone();
    differs[99].a = Some(1);
    differs[50].b[2] = 4;
    let bytes = |events: &[Event], rows: Option<&[u32]>| {
        let columns = columns(events, 1000);
        let read = round_trip(&columns, rows).unwrap();
        for (read, written) in read.fields.iter().zip(&columns.take_rows(&rows_of(rows, events.len())).fields)
        {
            assert_eq!((&read.values, &read.offsets), (&written.values, &written.offsets));
        }
        let group = GroupRows { schema_id: 9, columns: &columns, rows, projected: &projected() };
        let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
        let envelope = Envelope { cpu: 0, sequence: 0, log_events: 0, clock, tasks: &[], symbols: &[] };
        encode(&envelope, &[group], &MessagePool::default()).len()
    };
    // Values of 8 bytes and three of 2, of one row in place of a hundred; 100 differ in each of the
    // others.
    assert_eq!(bytes(&differs, None) - bytes(&same, None), 99 * (8 + 6) + 2);
    let some = [3, 50, 70];
    assert!(bytes(&same, Some(&some)) + 2 * (8 + 6) <= bytes(&differs, Some(&some)));
    // One row is its own column, whatever the others have.
    bytes(&differs, Some(&[50]));
}

fn rows_of(rows: Option<&[u32]>, count: usize) -> Vec<u32> {
    match rows {
        None => (0..u32::try_from(count).unwrap()).collect(),
        Some(rows) => rows.to_vec(),
    }
}

fn projected() -> Projected {
    Projection::default().of(&schema().fields)
}

/// Writes and reads again.
fn round_trip(columns: &Columns, rows: Option<&[u32]>) -> Option<Columns> {
    let clock = ClockMapping { wall_offset_ns: -5, error_bound_ns: 3, sampled_at_ns: 1 << 60 };
    let tasks = [Task { tid: 7, comm: Arc::from(&b"seven"[..]), tgid: -1 }];
    let symbols = [Symbol { address: u64::MAX, text: "x+0x1/0x2".into() }];
    let envelope =
        Envelope { cpu: 300, sequence: 1 << 40, log_events: 77, clock, tasks: &tasks, symbols: &symbols };
    let projected = projected();
    let group = GroupRows { schema_id: 9, columns, rows, projected: &projected };
    let message = encode(&envelope, &[group], &MessagePool::default());
    let batch = read_batch(&message).unwrap();
    assert_eq!((batch.cpu, batch.sequence, batch.log_events), (300, 1 << 40, 77));
    let read = batch.clock.unwrap();
    assert_eq!((read.wall_offset_ns, read.error_bound_ns, read.sampled_at_ns), (-5, 3, 1 << 60));
    assert_eq!((batch.tasks[0].tid, &batch.tasks[0].comm[..], batch.tasks[0].tgid), (7, &b"seven"[..], -1));
    assert_eq!((batch.symbols[0].address, batch.symbols[0].text.as_str()), (u64::MAX, "x+0x1/0x2"));
    let group = batch.groups.into_iter().next()?;
    assert_eq!(group.schema_id, 9);
    Some(Columns::from_message(schema(), group).unwrap())
}

fn assert_same(read: &Columns, expected: &Columns) {
    assert_eq!(read.timestamps_ns, expected.timestamps_ns);
    assert_eq!(read.tids, expected.tids);
    assert_eq!((&read.flags, &read.preempt_counts), (&expected.flags, &expected.preempt_counts));
    assert_eq!((&read.ips, &read.return_ips), (&expected.ips, &expected.return_ips));
    for (index, (read, expected)) in read.fields.iter().zip(&expected.fields).enumerate() {
        for row in 0..expected_rows(expected, index) {
            for element in 0..3 {
                assert_eq!(read.value(row, element), expected.value(row, element), "{index} {row} {element}");
            }
        }
        assert_eq!(
            (&read.values, &read.offsets, &read.bytes),
            (&expected.values, &expected.offsets, &expected.bytes)
        );
    }
}

fn expected_rows(column: &crate::decode::Column, index: usize) -> usize {
    match index {
        0 | 1 => column.values.rows(),
        2 => column.offsets.len() / 4 - 1,
        _ => (column.offsets.len() / 4 - 1) / 2,
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in vec(event(), 1..40), base_ns in 0_u64..1 << 60) {
        let columns = columns(&events, base_ns);
        assert_same(&round_trip(&columns, None).unwrap(), &columns);
    }

    #[test]
    fn selected_rows_are_what_they_were(events in vec((event(), any::<bool>()), 1..40)) {
        let all: Vec<Event> = events.iter().map(|(event, _)| event.clone()).collect();
        let rows: Vec<u32> = (0..).zip(&events).filter(|(_, (_, kept))| *kept).map(|(row, _)| row).collect();
        let whole = columns(&all, 1000);
        let read = round_trip(&whole, Some(&rows));
        if rows.is_empty() {
            prop_assert!(read.is_none(), "a group without rows is left out");
            return Ok(());
        }
        let read = read.unwrap();
        for (at, row) in rows.iter().enumerate() {
            let row = *row as usize;
            prop_assert_eq!(read.timestamps_ns[at], whole.timestamps_ns[row]);
            prop_assert_eq!(read.tid(at), whole.tid(row));
            prop_assert_eq!(read.ip(at), whole.ip(row));
            for (read, whole) in read.fields.iter().zip(&whole.fields) {
                for element in 0..3 {
                    prop_assert_eq!(read.value(at, element), whole.value(row, element));
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_survived(mut bytes in vec(any::<u8>(), 0..300), events in vec(event(), 1..5), at in any::<usize>()) {
        drop(read_batch(&bytes));
        let columns = columns(&events, 0);
        let projected = projected();
        let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
        let envelope = Envelope { cpu: 0, sequence: 0, log_events: 1, clock, tasks: &[], symbols: &[] };
        let rows = GroupRows { schema_id: 1, columns: &columns, rows: None, projected: &projected };
        let mut message = encode(&envelope, &[rows], &MessagePool::default()).to_vec();
        bytes.truncate(4);
        for (offset, byte) in bytes.into_iter().enumerate() {
            let at = at.wrapping_add(offset * 7) % message.len();
            message[at] ^= byte;
        }
        let Some(batch) = read_batch(&message) else { return Ok(()) };
        for group in batch.groups {
            if let Some(columns) = Columns::from_message(schema(), group) {
                let rows = columns.len();
                prop_assert!(columns.fields.iter().all(|column| (0..rows).all(|row| column.value(row, 0).is_some())));
            }
        }
    }
}

#[test]
fn a_column_has_only_what_belongs_to_its_kind() {
    let group = |number: v1::Column, text: v1::Column| v1::EventGroup {
        rows: 1,
        offsets_ns: vec![0; 4].into(),
        columns: vec![number, text],
        ..Default::default()
    };
    let fields =
        vec![field("n", FieldKind::Unsigned { bytes: 1 }, None), field("t", FieldKind::String, None)];
    let schema = Arc::new(Schema { fields, is_return: false });
    let number = || v1::Column { values: vec![5].into(), ..Default::default() };
    let text = || v1::Column {
        offsets: vec![0, 0, 0, 0, 1, 0, 0, 0].into(),
        data: vec![b'x'].into(),
        ..Default::default()
    };
    let columns = Columns::from_message(Arc::clone(&schema), group(number(), text())).unwrap();
    assert_eq!(columns.fields[1].value(0, 0), Some(Value::Bytes(b"x")));
    for (number, text) in [
        (v1::Column { data: vec![1].into(), ..number() }, text()),
        (v1::Column { offsets: vec![0; 4].into(), ..number() }, text()),
        (number(), v1::Column { values: vec![1].into(), ..text() }),
    ] {
        assert!(Columns::from_message(Arc::clone(&schema), group(number, text)).is_none());
    }
}

fn read_again(message: v1::EventSchema) -> Schema {
    let read = kprobed_event::Schema::try_from(message).unwrap();
    Schema { fields: read.fields().to_vec(), is_return: read.is_return() }
}

#[test]
fn schemas_are_read_again() {
    let name = ProbeName::new("g", "e").unwrap();
    let message = schema_message(3, &name, ProbeUid(5), &schema(), None);
    assert_eq!((message.schema_id, message.probe.as_str(), message.probe_uid), (3, "g/e", 5));
    assert_eq!(read_again(message), *schema());
}

/// In the history as on the wire.
#[test]
fn notations_are_read_again() {
    let mut schema = Schema::clone(&schema());
    schema.fields[0].notation = Notation::Errno;
    schema.fields[1].notation = Notation::NetworkOrder;
    let name = ProbeName::new("g", "e").unwrap();
    let message = schema_message(3, &name, ProbeUid(5), &schema, None);
    assert_eq!(message.fields[0].notation(), v1::FieldNotation::Errno);
    assert_eq!(read_again(message), schema);
}

#[test]
fn a_type_has_its_widths() {
    use v1::FieldType as T;
    let read = |kind: T, width| {
        let field = v1::EventField { name: "x".to_owned(), r#type: kind.into(), width, ..Default::default() };
        kprobed_event::Schema::try_from(v1::EventSchema { fields: vec![field], ..Default::default() })
    };
    for (kind, widths) in [
        (T::Unspecified, &[][..]),
        (T::Unsigned, &[1, 2, 4, 8]),
        (T::Signed, &[1, 2, 4, 8]),
        (T::Char, &[1]),
        (T::Symbol, &[8]),
        (T::String, &[0]),
    ] {
        for width in (0..10).chain([256 + 1, 256 + 8, u32::MAX]) {
            let schema = read(kind, width);
            assert_eq!(schema.is_ok(), widths.contains(&width), "{kind:?} of {width}: {schema:?}");
        }
    }
    let bad = read(T::Char, 2).unwrap_err().to_string();
    assert_eq!(bad, "field `x` of `` has type 3 with a width of 2 bytes");
}

#[test]
fn a_projection_leaves_out_what_is_not_named() {
    let projection = Projection::new(vec!["s".into(), "comm".into()]);
    let projected = projection.of(&schema().fields);
    assert_eq!(
        projected,
        Projected { fields: vec![2], tid: true, comm: true, context: false, location: false }
    );
    let name = ProbeName::new("g", "e").unwrap();
    let message = schema_message(3, &name, ProbeUid(5), &schema(), Some(&projected));
    assert_eq!(message.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(), ["s"]);
}

#[test]
fn a_field_named_like_the_task_hides_nothing() {
    let mut schema = Schema::clone(&schema());
    "comm".clone_into(&mut schema.fields[2].name);
    let both = Projected { fields: vec![2], tid: true, comm: true, context: false, location: false };
    assert_eq!(Projection::new(vec!["comm".into()]).of(&schema.fields), both);
}

#[test]
fn a_name_is_unknown_if_no_probe_has_it() {
    let (one, mut other) = (schema(), Schema::clone(&schema()));
    "dfd".clone_into(&mut other.fields[2].name);
    let unknown = |names: &[&str], schemas: &[&Schema]| {
        let projection = Projection::new(names.iter().map(|name| (*name).to_owned()).collect());
        projection.unknown(schemas).map(str::to_owned)
    };
    assert_eq!(unknown(&["s", "dfd", "comm", "tid", "context", "location"], &[&*one, &other]), None);
    assert_eq!(unknown(&["s", "dfd", "flags"], &[&one]), Some("dfd".to_owned()));
    assert_eq!(unknown(&[], &[&one]), None);
    assert_eq!(unknown(&["dfd"], &[]), None, "a probe of the future may have it");
}
