//! Tests of batches, well-formed and malformed.

use std::fmt::Write as _;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::api;
use crate::api::stream_events_response::Message;

fn field(
    name: &str,
    kind: api::FieldType,
    width: u32,
    base: api::FieldBase,
    array_length: u32,
) -> api::EventField {
    api::EventField {
        name: name.to_owned(),
        r#type: kind.into(),
        width,
        base: base.into(),
        array_length,
        fault_detected: true,
        ..Default::default()
    }
}

/// One field of every kind.
fn schema(is_return: bool) -> api::EventSchema {
    use api::{FieldBase as B, FieldType as T};
    api::EventSchema {
        schema_id: 7,
        probe: "kprobes/open".to_owned(),
        probe_uid: 1,
        is_return,
        fields: vec![
            field("dfd", T::Signed, 4, B::Decimal, 0),
            field("flags", T::Unsigned, 8, B::Hex, 0),
            field("mode", T::Unsigned, 2, B::Decimal, 0),
            field("letter", T::Char, 1, B::Unspecified, 0),
            field("caller", T::Symbol, 8, B::Unspecified, 0),
            field("filename", T::String, 0, B::Unspecified, 0),
            field("bytes", T::Unsigned, 1, B::Hex, 3),
            field("args", T::String, 0, B::Unspecified, 2),
        ],
    }
}

fn le32(values: &[u32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn le64(values: &[u64]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn scalar(values: Bytes, faults: &[u8]) -> api::Column {
    api::Column { values, faults: Bytes::copy_from_slice(faults), ..Default::default() }
}

fn strings(values: &[&[u8]], faults: &[u8]) -> api::Column {
    let mut offsets = vec![0];
    let mut data = Vec::new();
    for value in values {
        data.extend_from_slice(value);
        offsets.push(u32::try_from(data.len()).unwrap());
    }
    api::Column {
        offsets: le32(&offsets),
        data: data.into(),
        faults: Bytes::copy_from_slice(faults),
        ..Default::default()
    }
}

/// Two events.
fn group(is_return: bool) -> api::EventGroup {
    api::EventGroup {
        schema_id: 7,
        rows: 2,
        base_ns: 1_000,
        offsets_ns: le32(&[0, 1_000]),
        tids: le32(&[131, 132]),
        flags: Bytes::from_static(&[0x01, 0x48]),
        preempt_counts: Bytes::from_static(&[1, 0xff]),
        ips: le64(&[0xffff_ffff_8100_0000]),
        return_ips: if is_return { le64(&[0xffff_ffff_8200_0010, 5]) } else { Bytes::new() },
        columns: vec![
            scalar(le32(&[(-100_i32).cast_unsigned(), 3]), &[]),
            scalar(le64(&[0x8000, u64::MAX]), &[]),
            scalar(Bytes::from_static(&[0xa4, 1, 0, 0]), &[0b10]),
            scalar(Bytes::from_static(b"a\n"), &[]),
            scalar(le64(&[0xffff_ffff_8200_0010, 0x1234]), &[]),
            strings(&[b"/etc/passwd", b""], &[0b10]),
            scalar(Bytes::from_static(&[1, 2, 3, 4, 5, 6]), &[0b1_0000]),
            strings(&[b"-l", b"\xff", b"", b"x"], &[]),
        ],
    }
}

fn batch(groups: Vec<api::EventGroup>) -> api::EventBatch {
    api::EventBatch {
        cpu: 3,
        sequence: 40,
        log_events: 5,
        groups,
        tasks: vec![
            api::Task { tid: 200, comm: b"other".to_vec(), tgid: 0 },
            api::Task { tid: 131, comm: b"cat".to_vec(), tgid: 130 },
        ],
        symbols: vec![
            api::Symbol { address: 0xffff_ffff_8200_0010, text: "do_sys_open+0x10/0x20".to_owned() },
            api::Symbol { address: 0xffff_ffff_8100_0000, text: "do_sys_openat2+0x0/0x170".to_owned() },
        ],
        clock: Some(api::ClockMapping { wall_offset_ns: 5_000, error_bound_ns: 10, sampled_at_ns: 1 }),
    }
}

fn response(message: Message) -> api::StreamEventsResponse {
    api::StreamEventsResponse { message: Some(message) }
}

fn decode(schema: api::EventSchema, batch: api::EventBatch) -> Result<Batch, MalformedError> {
    let mut decoder = Decoder::default();
    decoder.item(response(Message::Schema(schema)))?;
    match decoder.item(response(Message::Batch(batch)))? {
        Some(StreamItem::Batch(batch)) => Ok(batch),
        other => panic!("a batch became {other:?}"),
    }
}

/// A row, with `?` for unknown values.
fn text(batch: &Batch) -> String {
    let or = |text: Option<String>| text.unwrap_or_else(|| "?".to_owned());
    let mut text = String::new();
    for row in batch.rows() {
        write!(text, "{} {} [{}]", row.timestamp_ns(), row.wall_ns(), row.cpu()).unwrap();
        let (tid, tgid) = (row.tid().map(|tid| tid.to_string()), row.tgid().map(|tgid| tgid.to_string()));
        write!(text, " {} of {}", or(tid), or(tgid)).unwrap();
        write!(text, " {}", or(row.comm().map(|comm| Escaped(comm).to_string()))).unwrap();
        write!(text, " {}", or(row.context().map(|context| context.to_string()))).unwrap();
        write!(text, " {} {}", row.probe(), or(row.location().map(|location| location.to_string()))).unwrap();
        if let Some(to) = row.return_location() {
            write!(text, " -> {to}").unwrap();
        }
        text.push('\n');
        for (name, value) in row.fields() {
            writeln!(text, "  {name}={value}").unwrap();
        }
    }
    text
}

#[test]
fn every_kind_of_value_is_shown() {
    insta::assert_snapshot!(text(&decode(schema(false), batch(vec![group(false)])).unwrap()), @r#"
    1000 6000 [3] 131 of 130 cat d..1. kprobes/open do_sys_openat2+0x0/0x170
      dfd=-100
      flags=0x8000
      mode=420
      letter='a'
      caller=do_sys_open+0x10/0x20
      filename="/etc/passwd"
      bytes={0x1,0x2,0x3}
      args={"-l","\xff"}
    2000 7000 [3] 132 of ? ? ? kprobes/open do_sys_openat2+0x0/0x170
      dfd=3
      flags=0xffffffffffffffff
      mode=(fault)
      letter='\n'
      caller=0x1234
      filename=(fault)
      bytes={0x4,(fault),0x6}
      args={"","x"}
    "#);
}

#[test]
fn return_probes_have_a_return_location() {
    let batch = decode(schema(true), batch(vec![group(true)])).unwrap();
    let locations: Vec<_> = batch.rows().map(|row| row.return_location().unwrap().to_string()).collect();
    assert_eq!(locations, ["do_sys_open+0x10/0x20", "0x5"]);
}

#[test]
fn what_a_projection_leaves_out_is_not_there() {
    let mut bare = group(true);
    for column in
        [&mut bare.tids, &mut bare.flags, &mut bare.preempt_counts, &mut bare.ips, &mut bare.return_ips]
    {
        *column = Bytes::new();
    }
    bare.columns.truncate(1);
    let mut schema = schema(true);
    schema.fields.truncate(1);
    let batch = decode(schema, batch(vec![bare])).unwrap();
    insta::assert_snapshot!(text(&batch), @"
    1000 6000 [3] ? of ? ? ? kprobes/open ?
      dfd=-100
    2000 7000 [3] ? of ? ? ? kprobes/open ?
      dfd=3
    ");
    assert!(batch.groups()[0].tids().is_none());
}

fn lines(batch: &Batch) -> Vec<String> {
    let mut json = format::JsonLines::new();
    let line = |row: Row<'_>| {
        let mut line = Vec::new();
        json.push(&mut line, &row);
        String::from_utf8(line).unwrap()
    };
    batch.rows().map(line).collect()
}

#[test]
fn a_projection_that_is_made_here_is_that_of_a_daemon() {
    let whole = decode(schema(false), batch(vec![group(false)])).unwrap();
    let names = |names: &[&str]| Projection::new(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(lines(&whole.project(&names(&[]))), lines(&whole));
    let mut left = schema(false);
    left.fields.retain(|field| ["filename", "dfd"].contains(&field.name.as_str()));
    let full = group(false);
    let columns = vec![full.columns[0].clone(), full.columns[5].clone()];
    let none = Bytes::new;
    let with_comm = api::EventGroup {
        columns: columns.clone(),
        flags: none(),
        preempt_counts: none(),
        ips: none(),
        ..full.clone()
    };
    let expected = decode(left.clone(), batch(vec![with_comm])).unwrap();
    assert_eq!(lines(&whole.project(&names(&["filename", "dfd", "comm"]))), lines(&expected));
    let bare = api::EventGroup { columns, tids: none(), flags: none(), preempt_counts: none(), ..full };
    let expected = decode(left, api::EventBatch { tasks: Vec::new(), ..batch(vec![bare]) }).unwrap();
    assert_eq!(lines(&whole.project(&names(&["dfd", "filename", "location"]))), lines(&expected));
}

#[test]
fn a_stream_knows_where_it_is() {
    let cursor = |sequence| api::Cursor { boot_id: "b".to_owned(), epoch: 3, sequence };
    let mut decoder = Decoder::default();
    decoder.item(response(Message::Schema(schema(false)))).unwrap();
    let epoch = api::EpochStarted { cursor: Some(cursor(12)), may_miss: true };
    let item = decoder.item(response(Message::Epoch(epoch))).unwrap();
    assert!(matches!(item, Some(StreamItem::Epoch(epoch)) if epoch.may_miss && epoch.cursor.sequence == 12));
    assert_eq!(
        decoder.item(response(Message::Batch(batch(vec![group(false)])))).unwrap_err(),
        MalformedError("batch refers to schema 7, which was not sent before".to_owned()),
        "another epoch has other schemas"
    );
    assert_eq!(decoder.cursor().unwrap().sequence, 12);
    decoder.item(response(Message::Schema(schema(false)))).unwrap();
    decoder.item(response(Message::Batch(batch(vec![group(false)])))).unwrap();
    assert_eq!(decoder.cursor().unwrap().to_string(), "b:3:45");
    decoder.item(response(Message::CaughtUp(cursor(60)))).unwrap();
    assert_eq!(decoder.cursor().unwrap().sequence, 60);
    // A message that only reports the position of the stream is not an item.
    assert!(decoder.item(response(Message::Progress(cursor(70)))).unwrap().is_none());
    assert_eq!(decoder.cursor().map(|cursor| cursor.sequence), Some(70));
    let nowhere = decoder.item(response(Message::Epoch(api::EpochStarted::default())));
    assert_eq!(nowhere.unwrap_err().to_string(), "`epoch` without a cursor");
}

#[test]
fn columns_can_be_read_as_such() {
    let batch = decode(schema(false), batch(vec![group(false)])).unwrap();
    let group = &batch.groups()[0];
    let dfd = group.field("dfd").unwrap();
    assert_eq!((dfd.signed(0), dfd.unsigned(0), dfd.rows()), (-100, 0xffff_ff9c, 2));
    let bytes = group.field("bytes").unwrap();
    assert_eq!(
        (bytes.values(), bytes.unsigned(5), bytes.is_fault(4), bytes.is_fault(5)),
        (6, 6, true, false)
    );
    let filename = group.field("filename").unwrap();
    assert_eq!((filename.bytes(0), filename.is_fault(1)), (&b"/etc/passwd"[..], true));
    assert_eq!(
        (filename.bytes(99), dfd.signed(99), filename.unsigned(0)),
        (&b""[..], 0, 0),
        "behind the end"
    );
    assert!(group.field("nothing").is_none());
    assert_eq!(dfd.numbers::<i32>().unwrap().collect::<Vec<_>>(), [-100, 3]);
    assert_eq!(bytes.numbers::<u8>().unwrap().map(u32::from).sum::<u32>(), 21);
    assert!(dfd.numbers::<u64>().is_none() && filename.numbers::<u8>().is_none(), "another width, and none");
    assert!(bytes.has_faults() && !dfd.has_faults());
    assert_eq!(group.timestamps_ns().collect::<Vec<_>>(), [1_000, 2_000]);
    assert_eq!(group.tids().unwrap().collect::<Vec<_>>(), [131, 132]);
    assert_eq!(group.ips().unwrap().collect::<Vec<_>>(), [0xffff_ffff_8100_0000; 2], "one for all");
    let row = batch.rows().next().unwrap();
    assert!(matches!(row.field("dfd"), Some(Value::Signed { value: -100, .. })));
    assert!(row.field("nothing").is_none());
}

#[test]
fn one_row_of_a_column_stands_for_all() {
    let mut group = group(false);
    group.columns[0] = scalar(le32(&[(-7_i32).cast_unsigned()]), &[0b10]);
    group.columns[6] = scalar(Bytes::from_static(&[1, 2, 3]), &[]);
    let batch = decode(schema(false), batch(vec![group])).unwrap();
    let [group] = batch.groups() else { panic!() };
    let (dfd, bytes) = (group.field("dfd").unwrap(), group.field("bytes").unwrap());
    assert_eq!((dfd.signed(0), dfd.signed(1), dfd.is_fault(0), dfd.is_fault(1)), (-7, -7, false, true));
    assert_eq!(dfd.numbers::<i32>().unwrap().collect::<Vec<_>>(), [-7, -7]);
    assert_eq!((0..6).map(|index| bytes.unsigned(index)).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3]);
    assert_eq!(bytes.numbers::<u8>().unwrap().collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3]);
    let second = batch.select(|row| row.timestamp_ns() == 2_000);
    let bytes = second.groups()[0].field("bytes").unwrap();
    assert_eq!((bytes.rows(), bytes.unsigned(1)), (1, 2));
    assert!(matches!(second.rows().next().unwrap().field("dfd"), Some(Value::Fault)));
}

#[test]
fn losses_get_a_wall_clock_time() {
    let mut decoder = Decoder::default();
    decoder.item(response(Message::Batch(batch(Vec::new())))).unwrap();
    let mut read = |loss| match decoder.item(response(Message::Loss(loss))).unwrap() {
        Some(StreamItem::Loss(loss)) => loss,
        other => panic!("a loss became {other:?}"),
    };
    let loss =
        api::Loss { cause: LossCause::Overrun.into(), cpu: Some(1), before_ns: 1_000, ..Default::default() };
    let loss = read(loss);
    assert_eq!((loss.cause, loss.count, loss.before_wall_ns), (LossCause::Overrun, None, Some(6_000)));
    let loss = read(api::Loss { cause: 99, count: Some(3), gaps: 2, ..Default::default() });
    assert_eq!(
        (loss.cause, loss.count, loss.before_ns, loss.gaps),
        (LossCause::Unspecified, Some(3), None, 2)
    );
}

/// Breaks one thing in a good group.
type Damage = fn(&mut api::EventGroup);

const DAMAGES: &[(&str, Damage)] = &[
    ("schema", |group| group.schema_id = 8),
    ("rows", |group| group.rows = u32::MAX),
    ("offsets_ns", |group| group.offsets_ns = Bytes::new()),
    ("time order", |group| group.offsets_ns = le32(&[1, 0])),
    ("end of time", |group| group.base_ns = u64::MAX),
    ("tids", |group| group.tids = le32(&[1, 2, 3])),
    ("flags", |group| group.flags = le32(&[1])),
    ("preempt_counts", |group| group.preempt_counts = Bytes::from_static(&[1, 2, 3])),
    ("ips", |group| group.ips = le32(&[1])),
    ("return_ips", |group| group.return_ips = le64(&[1, 2])),
    ("columns", |group| group.columns.truncate(1)),
    ("values", |group| group.columns[0].values = le32(&[1, 2, 3])),
    ("half a row", |group| group.columns[6].values = Bytes::from_static(&[1, 2])),
    ("offsets", |group| group.columns[5].offsets = le32(&[0, 1])),
    ("offset order", |group| group.columns[5].offsets = le32(&[0, 11, 3])),
    ("offset end", |group| group.columns[5].offsets = le32(&[0, 11, 12])),
    ("faults", |group| group.columns[0].faults = le32(&[0])),
    ("texts", |group| group.columns[0].data = Bytes::from_static(b"x")),
    ("numbers", |group| group.columns[5].values = le32(&[0])),
];

#[test]
fn a_malformed_group_says_what_is_wrong() {
    let mut errors = String::new();
    for (name, damage) in DAMAGES {
        let mut group = group(false);
        damage(&mut group);
        let error = decode(schema(false), batch(vec![group])).unwrap_err();
        writeln!(errors, "{name}: {error}").unwrap();
    }
    insta::assert_snapshot!(errors, @"
    schema: batch refers to schema 8, which was not sent before
    rows: `offsets_ns` of `kprobes/open` has 8 bytes for 4294967295 rows
    offsets_ns: `offsets_ns` of `kprobes/open` has 0 bytes for 2 rows
    time order: the time stamps of `kprobes/open` are not in order
    end of time: the time stamps of `kprobes/open` are not in order
    tids: `tids` of `kprobes/open` has 12 bytes for 2 rows
    flags: `flags` of `kprobes/open` has 4 bytes for 2 rows
    preempt_counts: `preempt_counts` of `kprobes/open` has 3 bytes for 2 rows
    ips: `ips` of `kprobes/open` has 4 bytes for 2 rows
    return_ips: `kprobes/open` is not a return probe, and its batch has return addresses
    columns: `kprobes/open` has 8 fields, and its batch has 1 columns
    values: field `dfd` of `kprobes/open` with 2 rows: 12 bytes of values
    half a row: field `bytes` of `kprobes/open` with 2 rows: 2 bytes of values
    offsets: field `filename` of `kprobes/open` with 2 rows: 8 bytes of offsets
    offset order: field `filename` of `kprobes/open` with 2 rows: offsets that do not lie in order within 11 bytes of data
    offset end: field `filename` of `kprobes/open` with 2 rows: offsets that do not lie in order within 11 bytes of data
    faults: field `dfd` of `kprobes/open` with 2 rows: 4 bytes of fault bits
    texts: field `dfd` of `kprobes/open` with 2 rows: 1 bytes of texts and their offsets, and the field has numbers
    numbers: field `filename` of `kprobes/open` with 2 rows: 4 bytes of values
    ");
}

#[test]
fn a_schema_that_makes_no_sense_is_refused() {
    for (kind, width) in [(0, 4), (99, 4), (1, 3), (3, 2), (4, 4), (5, 8)] {
        let mut schema = schema(false);
        schema.fields[0].r#type = kind;
        schema.fields[0].width = width;
        let error = decode(schema, batch(Vec::new())).unwrap_err().to_string();
        let bad = format!("field `dfd` of `kprobes/open` has type {kind} with a width of {width} bytes");
        assert_eq!(error, bad);
    }
    let empty = api::StreamEventsResponse { message: None };
    assert_eq!(Decoder::default().item(empty).unwrap_err().to_string(), "stream message without content");
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

prop_compose! {
    fn any_column()(values in any_bytes(), offsets in any_bytes(), data in any_bytes(), faults in any_bytes()) -> api::Column {
        api::Column { values, offsets, data, faults }
    }
}

prop_compose! {
    fn any_schema()(
        fields in proptest::collection::vec((0..7_i32, prop_oneof![0..9_u32, any::<u32>()], 0..4_i32, prop_oneof![0..4_u32, any::<u32>()]), 0..4),
        is_return: bool,
    ) -> api::EventSchema {
        let fields = fields.into_iter().map(|(kind, width, base, array_length)| api::EventField {
            name: "x".to_owned(), r#type: kind, width, base, array_length, notation: kind.wrapping_add(base), ..Default::default()
        });
        api::EventSchema { schema_id: 7, is_return, fields: fields.collect(), ..Default::default() }
    }
}

proptest! {
    /// Good lengths are rare among random ones, so one half of the batches is a good one with one
    /// part replaced.
    #[test]
    fn no_batch_can_panic(
        schema in any_schema(),
        rows in prop_oneof![0..6_u32, any::<u32>()],
        base_ns in prop_oneof![0..6_u64, any::<u64>()],
        common in proptest::array::uniform6(any_bytes()),
        columns in proptest::collection::vec(any_column(), 0..4),
    ) {
        let [offsets_ns, tids, flags, preempt_counts, ips, return_ips] = common;
        let group = api::EventGroup { schema_id: 7, rows, base_ns, offsets_ns, tids, flags, preempt_counts, ips, return_ips, columns };
        if let Ok(batch) = decode(schema, batch(vec![group])) {
            text(&batch);
            lines(&batch);
        }
    }

    #[test]
    fn no_damage_to_a_good_batch_can_panic(column in 0..8_usize, part in 0..10_usize, bytes in any_bytes(), rows in 0..4_u32) {
        let mut group = group(true);
        match part {
            0 => group.offsets_ns = bytes,
            1 => group.tids = bytes,
            2 => group.flags = bytes,
            3 => group.ips = bytes,
            4 => group.return_ips = bytes,
            5 => group.rows = rows,
            6 => group.columns[column].values = bytes,
            7 => group.columns[column].offsets = bytes,
            8 => group.columns[column].data = bytes,
            _ => group.columns[column].faults = bytes,
        }
        if let Ok(batch) = decode(schema(true), batch(vec![group])) {
            text(&batch);
        }
    }

    #[test]
    fn events_that_are_selected_are_as_they_were(groups in 1..5_usize, kept: u16) {
        let whole = decode(schema(true), batch(vec![group(true); groups])).unwrap();
        let mut asked = 0;
        let selected = whole.select(|_| {
            asked += 1;
            kept >> (asked - 1) & 1 == 1
        });
        prop_assert_eq!(asked, groups * 2);
        // Their groups have the same two times.
        let places = [0, 1].into_iter().flat_map(|row| (0..groups).map(move |group| group * 2 + row));
        let expected = lines(&whole).into_iter().zip(places).filter(|(_, place)| kept >> place & 1 == 1);
        let expected: Vec<String> = expected.map(|(line, _)| line).collect();
        prop_assert_eq!(selected.len(), expected.len());
        prop_assert_eq!((selected.sequence(), selected.end_sequence()), (whole.sequence(), whole.end_sequence()));
        prop_assert_eq!(lines(&selected), expected);
    }

    #[test]
    fn rows_are_merged_in_the_order_of_time(groups in proptest::collection::vec(proptest::collection::vec(0..50_u32, 0..12), 0..6)) {
        let mut expected: Vec<u64> = groups.iter().flatten().map(|offset| 100 + u64::from(*offset)).collect();
        expected.sort_unstable();
        let groups = groups.into_iter().map(|mut times| {
            times.sort_unstable();
            let rows = times.len();
            api::EventGroup {
                schema_id: 7,
                rows: u32::try_from(rows).unwrap(),
                base_ns: 100,
                offsets_ns: le32(&times),
                ..Default::default()
            }
        });
        let schema = api::EventSchema { schema_id: 7, ..Default::default() };
        let batch = decode(schema, batch(groups.collect())).unwrap();
        let rows = batch.rows();
        prop_assert_eq!(rows.len(), expected.len());
        prop_assert_eq!(rows.map(|row| row.timestamp_ns()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn any_time_has_a_wall_clock_time(timestamp_ns: u64, offset_ns: i64) {
        let mut batch = batch(vec![group(false)]);
        batch.groups[0].base_ns = timestamp_ns;
        batch.groups[0].offsets_ns = le32(&[0, 0]);
        batch.clock = Some(api::ClockMapping { wall_offset_ns: offset_ns, ..Default::default() });
        let batch = decode(schema(false), batch).unwrap();
        for row in batch.rows() {
            prop_assert!(row.time() >= std::time::UNIX_EPOCH);
        }
    }
}

/// A row that is kept says the same as in its batch, and keeps nothing else of that.
#[test]
fn a_row_can_be_kept_without_its_batch() {
    let batch = Batch::from_parts(vec![schema(true)], batch(vec![group(true), group(true)])).unwrap();
    let lines = |row: &Row<'_>| {
        let location = format::LocationForm::All;
        let parts = format::TextParts { context: true, task: true, location };
        let colours = format::TextColours::default();
        let mut line = Vec::new();
        format::TextLines::new(format::TimeForm::Trace, parts, colours).push(&mut line, row);
        format::JsonLines::new().push(&mut line, row);
        String::from_utf8(line).unwrap()
    };
    let mut numbers = Vec::new();
    for row in batch.rows() {
        let kept = row.to_owned();
        assert_eq!(lines(&kept.row()), lines(&row));
        assert_eq!(
            (kept.row().number(), kept.row().tgid(), kept.row().wall_ns()),
            (row.number(), row.tgid(), row.wall_ns())
        );
        assert!(kept.bytes() < batch.bytes(), "{} of {}", kept.bytes(), batch.bytes());
        numbers.push(row.number());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [40, 41, 42, 43]);
}

#[test]
fn calls_are_lines_and_objects() {
    let entries = Batch::from_parts(vec![schema(false)], batch(vec![group(false)])).unwrap();
    let mut returned = schema(true);
    for field in &mut returned.fields {
        field.name.insert_str(0, "r_");
    }
    // What people write for numbers of events they write for those of calls too.
    returned.fields[1].notation = schema::notation_message(&Notation::Errno).0.into();
    let exits = Batch::from_parts(vec![returned], batch(vec![group(true)])).unwrap();
    let (entry, exit) = (entries.rows().next().unwrap(), exits.rows().nth(1).unwrap());
    let parts = format::TextParts { context: false, task: true, location: format::LocationForm::All };
    let colours = format::TextColours { probe: ("<", ">"), ..Default::default() };
    let mut text = format::TextLines::new(format::TimeForm::Trace, parts, colours);
    let mut lines = text.call_header().into_bytes();
    lines.push(b'\n');
    let origin = format::Origin { host: "web1", corrected_ns: 7, late: true };
    for (call, origin) in [
        (format::Call::Whole { entry, exit }, None),
        (format::Call::Entry(entry, Incomplete::NoReturn), Some((origin, 6))),
        (format::Call::Exit(exit, Incomplete::Gap), None),
    ] {
        text.push_call(&mut lines, "do_sys_openat2", &call, origin);
        format::JsonLines::new().push_call(
            &mut lines,
            "do_sys_openat2",
            &call,
            origin.map(|origin| origin.0),
        );
    }
    let lines = String::from_utf8(lines).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[0], "TIME [CPU] COMM-TID FUNCTION FIELDS -> VALUE DURATION");
    let in_order = |line: &str, parts: &[&str]| {
        let mut rest = line;
        for part in parts {
            rest = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` in `{rest}` of `{line}`")).1;
        }
        assert!(rest.is_empty(), "`{rest}` is behind the last part of `{line}`");
    };
    let exit = ["r_dfd=3", "r_flags=-1 (EPERM)", "r_mode=(fault)", "r_args={\"\",\"x\"}"];
    let head = [
        "0.000002 [003] <...>-132 <do_sys_openat2> dfd=-100 flags=0x8000 mode=420",
        " args={\"-l\",\"\\xff\"} -> ",
    ];
    in_order(lines[1], &[&head[..], &exit[..], &[" 1.0us"][..]].concat());
    in_order(
        lines[3],
        &["web1   0.000001 late [003] cat-131 ", "<do_sys_openat2> dfd=-100", " -> (no return)"],
    );
    in_order(lines[5], &[&["0.000002 [003] <...>-132 <do_sys_openat2> (gap) -> "][..], &exit[..]].concat());
    let object = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let [whole, entry, exit] = [2, 4, 6].map(|at| object(lines[at]));
    assert_eq!((&whole["duration_ns"], &whole["incomplete"]), (&1000.into(), &serde_json::Value::Null));
    assert_eq!((&whole["fields"]["dfd"], &whole["fields"]["r_dfd"]), (&(-100).into(), &3.into()));
    assert_eq!((&whole["names"]["r_flags"], &whole["faults"][0]), (&"EPERM".into(), &"r_mode".into()));
    assert_eq!((&entry["host"], &entry["incomplete"]), (&"web1".into(), &"no_return".into()));
    assert_eq!((&entry["timestamp_ns"], &exit["timestamp_ns"]), (&1000.into(), &2000.into()));
    assert_eq!((&exit["incomplete"], &exit["duration_ns"]), (&"gap".into(), &serde_json::Value::Null));
    assert!(exit["fields"]["dfd"].is_null() && entry["fields"]["r_dfd"].is_null());
}
