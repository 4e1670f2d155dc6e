//! Tests of lines and objects: what people write for numbers, padding and colours.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use crate::schema::notation_message;
use crate::{Batch, Notation, api};
use kprobed_filter::Names;

fn field(name: &str, kind: api::FieldType, width: u32, notation: &Notation) -> api::EventField {
    let (kind_of_notation, names) = notation_message(notation);
    api::EventField {
        name: name.to_owned(),
        r#type: kind.into(),
        width,
        fault_detected: true,
        notation: kind_of_notation.into(),
        names,
        ..Default::default()
    }
}

fn column<const N: usize>(values: [[u8; N]; 2]) -> api::Column {
    api::Column { values: values.concat().into(), ..Default::default() }
}

fn events(schema: api::EventSchema, columns: Vec<api::Column>, return_ips: Bytes) -> Batch {
    let group = api::EventGroup {
        schema_id: 1,
        rows: 2,
        offsets_ns: vec![0; 8].into(),
        tids: [7_i32.to_le_bytes(), 12345_i32.to_le_bytes()].concat().into(),
        ips: [0x1000_u64.to_le_bytes(), 0x1010_u64.to_le_bytes()].concat().into(),
        return_ips,
        columns,
        ..Default::default()
    };
    let symbol = |address, text: &str| api::Symbol { address, text: text.to_owned() };
    let batch = api::EventBatch {
        groups: vec![group],
        tasks: vec![
            api::Task { tid: 7, comm: b"sh".to_vec(), tgid: 7 },
            api::Task { tid: 12345, comm: "Grüße".into(), tgid: 12345 },
        ],
        symbols: vec![symbol(0x1000, "vfs_read+0x0/0xe0"), symbol(0x1010, "vfs_read+0x10/0xe0")],
        ..Default::default()
    };
    Batch::from_parts(vec![schema], batch).unwrap()
}

/// Events with a number of each notation.
fn numbers() -> Batch {
    use api::FieldType as T;
    let names = Names::new([(0, "SHUT_RD"), (1, "SHUT_WR")]).unwrap();
    let mut pointer = field("file", T::Unsigned, 8, &Notation::Errno);
    pointer.set_base(api::FieldBase::Hex);
    let mut raw = field("raw", T::Unsigned, 2, &Notation::NetworkOrder);
    raw.set_base(api::FieldBase::Hex);
    let mut address = field("to6", T::Unsigned, 1, &Notation::Ipv6);
    address.array_length = 16;
    let fields = vec![
        field("ret", T::Signed, 4, &Notation::Errno),
        pointer,
        field("how", T::Signed, 4, &Notation::Names(names)),
        field("port", T::Unsigned, 2, &Notation::NetworkOrder),
        raw,
        field("to", T::Unsigned, 4, &Notation::Ipv4),
        address,
        field("dev", T::Unsigned, 4, &Notation::Device),
        field("mode", T::Unsigned, 2, &Notation::Octal),
        field("on", T::Unsigned, 1, &Notation::Bool),
        field("odd", T::String, 0, &Notation::Octal),
    ];
    let schema = api::EventSchema { schema_id: 1, probe: "g/e".to_owned(), fields, ..Default::default() };
    let mut faulty = column([[1], [1]]);
    faulty.faults = vec![0b10].into();
    let columns = vec![
        column([(-2_i32).to_le_bytes(), 3_i32.to_le_bytes()]),
        column([(-12_i64).to_le_bytes(), 0xffff_8880_0000_0000_u64.to_le_bytes()]),
        column([1_i32.to_le_bytes(), 9_i32.to_le_bytes()]),
        column([443_u16.to_be_bytes(), 9_u16.to_be_bytes()]),
        column([443_u16.to_be_bytes(), 9_u16.to_be_bytes()]),
        column([[127, 0, 0, 1], [10, 0, 0, 2]]),
        column([
            std::net::Ipv6Addr::LOCALHOST.octets(),
            [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5],
        ]),
        column([(254_u32 << 20).to_le_bytes(), ((8_u32 << 20) + 1).to_le_bytes()]),
        column([0o100_644_u16.to_le_bytes(), 0_u16.to_le_bytes()]),
        faulty,
        api::Column { offsets: vec![0; 12].into(), ..Default::default() },
    ];
    events(schema, columns, Bytes::new())
}

fn lines(batch: &Batch, location: LocationForm, colours: TextColours) -> String {
    let parts = TextParts { context: false, task: true, location };
    let mut form = TextLines::new(TimeForm::Trace, parts, colours);
    let mut text = Vec::new();
    for row in batch.rows() {
        form.push(&mut text, &row);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn numbers_are_shown_as_people_write_them() {
    insta::assert_snapshot!(lines(&numbers(), LocationForm::Hidden, TextColours::default()), @r#"
    0.000000 [000] sh-7 g/e ret=-2 (ENOENT) file=-12 (ENOMEM) how=1 (SHUT_WR) port=443 raw=0x1bb to=127.0.0.1 to6=::1 dev=254:0 mode=0100644 on=true odd=""
    0.000000 [000] Grüße-12345 g/e ret=3 file=0xffff888000000000 how=9 port=9 raw=0x9 to=10.0.0.2 to6=2001:db8::5 dev=8:1 mode=0 on=(fault) odd=""
    "#);
    let (mut lines, mut json) = (JsonLines::new(), Vec::new());
    for row in numbers().rows() {
        lines.push(&mut json, &row);
    }
    let objects = String::from_utf8(json).unwrap();
    let of = |line: &str| {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        let names: BTreeMap<String, String> = serde_json::from_value(object["names"].clone()).unwrap();
        let names: Vec<_> = names.iter().map(|(field, text)| format!("{field}={text}")).collect();
        format!("{} {}\n", object["fields"]["port"], names.join(" "))
    };
    insta::assert_snapshot!(objects.lines().map(of).collect::<String>(), @r#"
    47873 dev=254:0 file=ENOMEM how=SHUT_WR mode=0100644 on=true port=443 raw=443 ret=ENOENT to=127.0.0.1 to6=::1
    2304 dev=8:1 mode=0 port=9 raw=9 to=10.0.0.2 to6=2001:db8::5
    "#);
}

#[test]
fn an_event_without_such_numbers_has_no_names() {
    let schema = api::EventSchema { schema_id: 1, probe: "g/e".to_owned(), ..Default::default() };
    let mut json = Vec::new();
    JsonLines::new().push(&mut json, &events(schema, Vec::new(), Bytes::new()).rows().next().unwrap());
    let object: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(object.get("names"), None);
}

/// The address of an entry is always the same, and the name of the probe mostly says it.
#[test]
fn a_place_is_shown_where_it_tells_something() {
    let schema = |is_return| api::EventSchema {
        schema_id: 1,
        probe: "g/e".to_owned(),
        is_return,
        fields: vec![field("n", api::FieldType::Signed, 4, &Notation::Number)],
        ..Default::default()
    };
    let columns = || vec![column([1_i32.to_le_bytes(), (-1_i32).to_le_bytes()])];
    let entry = events(schema(false), columns(), Bytes::new());
    let to = [0x1010_u64.to_le_bytes(), 0x1010_u64.to_le_bytes()].concat();
    let returned = events(schema(true), columns(), to.into());
    let colours = TextColours {
        task: ("<t>", "</t>"),
        probe: ("<p>", "</p>"),
        field: ("<f>", "</f>"),
        error: ("<e>", "</e>"),
    };
    let mut text = String::new();
    for location in [LocationForm::Hidden, LocationForm::Telling, LocationForm::All] {
        text.push_str(&lines(&entry, location, TextColours::default()));
        text.push_str(&lines(&returned, location, colours));
    }
    insta::assert_snapshot!(text, @"
    0.000000 [000] sh-7 g/e n=1
    0.000000 [000] Grüße-12345 g/e n=-1
    0.000000 [000] <t>sh-7</t> <p>g/e</p> <f>n=</f>1
    0.000000 [000] <t>Grüße-12345</t> <p>g/e</p> <f>n=</f><e>-1</e>
    0.000000 [000] sh-7 g/e n=1
    0.000000 [000] Grüße-12345 g/e (vfs_read+0x10/0xe0) n=-1
    0.000000 [000] <t>sh-7</t> <p>g/e</p> (vfs_read+0x10/0xe0 <- vfs_read+0x0/0xe0) <f>n=</f>1
    0.000000 [000] <t>Grüße-12345</t> <p>g/e</p> (vfs_read+0x10/0xe0 <- vfs_read+0x10/0xe0) <f>n=</f><e>-1</e>
    0.000000 [000] sh-7 g/e (vfs_read+0x0/0xe0) n=1
    0.000000 [000] Grüße-12345 g/e (vfs_read+0x10/0xe0) n=-1
    0.000000 [000] <t>sh-7</t> <p>g/e</p> (vfs_read+0x10/0xe0 <- vfs_read+0x0/0xe0) <f>n=</f>1
    0.000000 [000] <t>Grüße-12345</t> <p>g/e</p> (vfs_read+0x10/0xe0 <- vfs_read+0x10/0xe0) <f>n=</f><e>-1</e>
    ");
}

#[test]
fn tasks_are_aligned_once_a_longer_one_was_shown() {
    let schema = api::EventSchema { schema_id: 1, probe: "g/e".to_owned(), ..Default::default() };
    let batch = events(schema, Vec::new(), Bytes::new());
    let parts = TextParts { context: false, task: true, location: LocationForm::Hidden };
    let mut form = TextLines::new(TimeForm::Trace, parts, TextColours::default());
    let mut text = Vec::new();
    for row in batch.rows().chain(batch.rows()) {
        form.push(&mut text, &row);
    }
    insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r"
    0.000000 [000] sh-7 g/e
    0.000000 [000] Grüße-12345 g/e
    0.000000 [000] sh-7        g/e
    0.000000 [000] Grüße-12345 g/e
    ");
}

/// Of two events: one with a call stack, one whose stack is lost.
#[test]
fn a_call_stack_is_lines_and_a_list() {
    let schema = api::EventSchema {
        schema_id: 1,
        probe: "g/e".to_owned(),
        fields: vec![
            field("n", api::FieldType::Signed, 4, &Notation::Number),
            field("stack", api::FieldType::String, 0, &Notation::Stack),
        ],
        ..Default::default()
    };
    let frames = b"vfs_read+0x9/0x370\nksys_read+0x6f/0xf0\n0xffffffffc0000000";
    let end = u32::try_from(frames.len()).unwrap().to_le_bytes();
    let stacks = api::Column {
        offsets: [[0; 4], end, end].concat().into(),
        data: frames.to_vec().into(),
        faults: vec![0b10].into(),
        ..Default::default()
    };
    let batch =
        events(schema, vec![column([1_i32.to_le_bytes(), 2_i32.to_le_bytes()]), stacks], Bytes::new());
    insta::assert_snapshot!(lines(&batch, LocationForm::Hidden, TextColours::default()), @r"
    0.000000 [000] sh-7 g/e n=1
        vfs_read+0x9/0x370
        ksys_read+0x6f/0xf0
        0xffffffffc0000000
    0.000000 [000] Grüße-12345 g/e n=2
        (the stack is lost)
    ");
    let objects = batch.rows().map(|row| {
        let mut json = Vec::new();
        JsonLines::new().push(&mut json, &row);
        serde_json::from_slice::<serde_json::Value>(&json).unwrap()
    });
    let [first, second] = objects.collect::<Vec<_>>().try_into().unwrap();
    let frames = ["vfs_read+0x9/0x370", "ksys_read+0x6f/0xf0", "0xffffffffc0000000"];
    assert_eq!(first["fields"], serde_json::json!({ "n": 1, "stack": frames }));
    assert_eq!(first.get("names"), None);
    assert_eq!(
        (&second["fields"]["stack"], &second["faults"]),
        (&serde_json::Value::Null, &serde_json::json!(["stack"]))
    );
}
