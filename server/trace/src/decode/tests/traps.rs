//! Tests of decoding with hand-written records, as kernels leave them after a failed read.

use super::*;

const FAULT: &str = "(fault)";

/// Three strings, or one and an array, of a probe; the descriptors begin at 16.
fn strings(names: &[&str]) -> CompiledFormat {
    let mut at = 16;
    let mut fields = PROBE.to_vec();
    let declarations: Vec<String> = names.iter().map(|name| format!("__data_loc char[]{name}")).collect();
    for declaration in &declarations {
        let size = if declaration.contains("[3]") { 12 } else { 4 };
        fields.push((declaration, at, size));
        at += size;
    }
    plan(&format(&fields, ""))
}

/// The strings of one event; a fault is a text that no string here has.
fn read(plan: &CompiledFormat, descriptors: &[(usize, usize)], data: &[u8]) -> Vec<String> {
    let mut record = HEAD.to_vec();
    record.extend(descriptors.iter().flat_map(|(offset, length)| descriptor(*offset, *length)));
    record.extend(data);
    let mut columns = plan.columns();
    plan.decode(&record, 0, &mut columns).unwrap();
    let cells = plan.schema().fields.iter().zip(&columns.fields).flat_map(|(field, column)| {
        let count = field.array_len.map_or(1, |count| count as usize);
        (0..count).map(|element| column.value(0, element).unwrap())
    });
    cells
        .map(|value| match value {
            Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            Value::Fault => FAULT.to_owned(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn length_zero_is_a_fault() {
    let plan = strings(&[" s", " t"]);
    assert_eq!(read(&plan, &[(24, 0), (24, 3)], b"hi\0\0"), [FAULT, "hi"]);
    assert_eq!(read(&plan, &[(24, 3), (27, 0)], b"hi\0\0"), ["hi", FAULT]);
    assert_eq!(read(&plan, &[(24, 0), (27, 1)], b"hi\0\0"), [FAULT, ""], "whatever its successor says");
}

#[test]
fn an_empty_string_is_not_a_fault() {
    let plan = strings(&[" s", " t"]);
    assert_eq!(read(&plan, &[(24, 1), (25, 1)], b"\0\0\0\0"), ["", ""]);
}

#[test]
fn a_string_that_was_never_reached_does_not_become_its_successor() {
    let plan = strings(&[" s", " t", " __kpd_end"]);
    assert_eq!(read(&plan, &[(28, 8), (28, 6), (34, 2)], b"hello\0k\0"), [FAULT, "hello"]);
    // As the last of the user's arguments it would alias the hidden one.
    assert_eq!(read(&plan, &[(28, 6), (34, 2), (34, 2)], b"hello\0k\0"), ["hello", FAULT]);
}

#[test]
fn a_symstr_ends_where_its_successor_begins() {
    let plan = strings(&[" s", " t", " __kpd_end"]);
    let data = b"vfs_read+0x0hello\0k\0";
    assert_eq!(read(&plan, &[(28, 21), (40, 6), (46, 2)], data), ["vfs_read+0x0", "hello"]);
    // Last, it has its NUL.
    let plan = strings(&[" t", " s"]);
    assert_eq!(read(&plan, &[(24, 6), (30, 13)], b"hello\0vfs_read+0x0\0\0"), ["hello", "vfs_read+0x0"]);
}

#[test]
fn an_element_that_could_not_be_read_is_one_fault() {
    let plan = strings(&["[3] a", " __kpd_end"]);
    let descriptors = [(32, 2), (34, 0), (34, 3), (37, 2)];
    assert_eq!(read(&plan, &descriptors, b"a\0bc\0k\0\0"), ["a", FAULT, "bc"]);
}

#[test]
fn an_array_that_was_cut_short_is_all_faults() {
    let plan = strings(&["[3] a", " t", " __kpd_end"]);
    // "one" was stored, then overwritten by the next argument; the last descriptor was never
    // written.
    let descriptors = [(36, 4), (40, 4), (0x4141, 0x4141), (36, 6), (42, 2)];
    assert_eq!(read(&plan, &descriptors, b"hello\0k\0"), [FAULT, FAULT, FAULT, "hello"]);
}

#[test]
fn without_a_successor_unwritten_elements_show_by_their_place() {
    let plan = strings(&["[3] a"]);
    let descriptors = [(28, 0), (28, 0), (0x4141, 0x4141)];
    assert_eq!(read(&plan, &descriptors, b""), [FAULT, FAULT, FAULT]);
    let descriptors = [(28, 2), (30, 2), (32, 2)];
    assert_eq!(read(&plan, &descriptors, b"a\0b\0c\0"), ["a", "b", "c"]);
}

/// From a 6.1 guest. a and e could be read, b, c, d and f could not: their bytes are stale.
const GUARDED: [u8; 80] = [
    0x70, 0x05, 0x00, 0x00, 0x5c, 0x00, 0x00, 0x00, 0x50, 0xa3, 0xf4, 0x86, 0xff, 0xff, 0xff, 0xff, 0x00,
    0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x28, 0x00, 0x10, 0x00, 0x38, 0x00, 0x00, 0x00, 0x38, 0x00,
    0x10, 0x00, 0x46, 0x00, 0x00, 0x00, 0x2f, 0x6e, 0x6f, 0x6e, 0x65, 0x78, 0x69, 0x73, 0x2f, 0x6e, 0x4e,
    0x00, 0x00, 0x00, 0x4e, 0x00, 0x02, 0x00, 0x4e, 0x00, 0x02, 0x00, 0x4e, 0x00, 0x02, 0x00, 0x4e, 0x00,
    0x00, 0x00, 0x4e, 0x00, 0x02, 0x00, 0x4e, 0x00, 0x02, 0x00, 0x6b, 0x00,
];

fn guarded() -> CompiledFormat {
    let mut fields = PROBE.to_vec();
    fields.extend([
        ("u64 a", 16, 8),
        ("u32 b", 24, 4),
        ("u64 c", 28, 8),
        ("u32 d", 36, 4),
        ("u64 e", 40, 8),
        ("u16 f", 48, 2),
        ("__data_loc char[] __kpd_g0", 50, 4),
        ("__data_loc char[] __kpd_g1", 54, 4),
        ("__data_loc char[] __kpd_g2", 58, 4),
        ("__data_loc char[] __kpd_g3", 62, 4),
        ("__data_loc char[] __kpd_g4", 66, 4),
        ("__data_loc char[] __kpd_g5", 70, 4),
        ("__data_loc char[] __kpd_end", 74, 4),
    ]);
    plan(&format(&fields, "(%lx) a=0x%Lx b=0x%x c=0x%Lx d=0x%x e=0x%Lx f=0x%x"))
}

#[test]
fn guards_tell_stale_bytes_from_values() {
    let plan = guarded();
    let mut columns = plan.columns();
    plan.decode(&GUARDED, 5, &mut columns).unwrap();
    let values: Vec<_> = columns.fields.iter().map(|column| column.value(0, 0).unwrap()).collect();
    assert_eq!(
        values,
        [
            Value::Unsigned(0x8000),
            Value::Fault,
            Value::Fault,
            Value::Fault,
            Value::Unsigned(0x7369_7865_6e6f_6e2f),
            Value::Fault,
        ]
    );
    assert_eq!(columns.fields[1].values.held(), [0; 4], "stale bytes are not handed out");
    assert_eq!(columns.fields[1].faults, [1]);
    assert!(columns.fields[0].faults.is_empty());
    assert!(plan.schema().fields.iter().all(|field| field.fault_detected));
}

#[test]
fn the_fault_bitmap_grows_with_the_rows() {
    let plan = guarded();
    let mut good = GUARDED;
    for at in [54, 58, 62, 70] {
        good[at + 2] = 0;
    }
    let mut columns = plan.columns();
    for row in 0..20 {
        plan.decode(if row == 9 { &GUARDED } else { &good }, row, &mut columns).unwrap();
        let bytes = if row < 9 { 0 } else { columns.len().div_ceil(8) };
        assert_eq!(columns.fields[1].faults.len(), bytes, "after row {row}");
    }
    assert_eq!(columns.fields[1].faults, [0, 2, 0]);
    assert_eq!(columns.fields[1].value(8, 0), Some(Value::Unsigned(0x0010_0028)));
    assert_eq!(columns.fields[1].value(9, 0), Some(Value::Fault));
    assert_eq!(columns.fields[1].value(20, 0), None);
    assert_eq!(columns.fields[1].value(0, 1), None);

    let taken = std::mem::replace(&mut columns, plan.columns());
    assert_eq!((taken.len(), columns.len()), (20, 0));
    plan.decode(&good, 0, &mut columns).unwrap();
    assert!(columns.fields[1].faults.is_empty());
    columns.clear();
    assert!(columns.is_empty() && columns.fields.iter().all(|column| column.values.is_empty()));
}

#[test]
fn either_guard_of_an_array_tells() {
    let mut fields = PROBE.to_vec();
    fields.extend([
        ("u16 g[]", 16, 6),
        ("__data_loc char[] __kpd_g0", 22, 4),
        ("__data_loc char[] __kpd_g0_e", 26, 4),
        ("__data_loc char[] __kpd_end", 30, 4),
    ]);
    let plan = plan(&format(&fields, ""));
    let decoded = |first: usize, last: usize| {
        let descriptors = [descriptor(34, first), descriptor(34, last), descriptor(34, 2)].concat();
        let record = [HEAD, &[1, 0, 2, 0, 3, 0], &descriptors, b"k\0"].concat();
        let mut columns = plan.columns();
        plan.decode(&record, 0, &mut columns).unwrap();
        let column = &columns.fields[0];
        (column.values.held().to_vec(), column.faults.clone())
    };
    assert_eq!(decoded(0, 0), (vec![1, 0, 2, 0, 3, 0], vec![]));
    assert_eq!(decoded(2, 0), (vec![0; 6], vec![7]));
    assert_eq!(decoded(0, 2), (vec![0; 6], vec![7]));
}

#[test]
fn a_bad_record_leaves_nothing_behind() {
    let mut fields = PROBE.to_vec();
    fields.extend([
        ("u32 a", 16, 4),
        ("__data_loc char[] s", 20, 4),
        ("__data_loc char[] t", 24, 4),
        ("u8 z", 28, 1),
    ]);
    let plan = plan(&format(&fields, ""));
    let record = |s: [u8; 4], t: [u8; 4]| [HEAD, &[1, 2, 3, 4], &s, &t, &[9, 0, 0, 0], b"ab\0c"].concat();
    let mut columns = plan.columns();
    let good = record(descriptor(32, 3), descriptor(35, 1));
    let faulted = record(descriptor(32, 0), descriptor(32, 3));
    plan.decode(&faulted, 1, &mut columns).unwrap();
    plan.decode(&good, 2, &mut columns).unwrap();
    let before = format!("{columns:?}");

    // The first string is appended before the second turns out bad, once as text and once as a
    // fault.
    let expected = DecodeError::DescriptorOutOfBounds { at: 24, offset: 35, length: 2, record_bytes: 36 };
    for first in [descriptor(32, 3), descriptor(32, 0)] {
        let bad = record(first, descriptor(35, 2));
        assert_eq!(plan.decode(&bad, 3, &mut columns), Err(expected));
        let mut without_faults = plan.columns();
        plan.decode(&good, 2, &mut without_faults).unwrap();
        let before = format!("{without_faults:?}");
        assert_eq!(plan.decode(&bad, 3, &mut without_faults), Err(expected));
        assert_eq!(format!("{without_faults:?}"), before);
    }
    let error = plan.decode(&record(descriptor(33, 3), descriptor(32, 2)), 3, &mut columns);
    assert_eq!(error, Err(DecodeError::DescriptorOrder { at: 20, offset: 33, next: 32 }));
    assert_eq!(
        plan.decode(&good[..28], 3, &mut columns),
        Err(DecodeError::TooShort { needed: 29, found: 28 })
    );
    let other = [&[0x71], &good[1..]].concat();
    assert_eq!(
        plan.decode(&other, 3, &mut columns),
        Err(DecodeError::OtherEvent { expected: 0x570, found: 0x571 })
    );
    assert_eq!(format!("{columns:?}"), before);

    let mut foreign = guarded().columns();
    assert_eq!(plan.decode(&good, 3, &mut foreign), Err(DecodeError::ForeignColumns));
}

/// A guarded number that is shown as a symbol name.
#[test]
fn addresses_become_names() {
    let fields = [
        PROBE,
        &[
            ("u64 who", 16, 8),
            ("u32 n", 24, 4),
            ("__data_loc char[] __kpd_g0", 28, 4),
            ("__data_loc char[] __kpd_end", 32, 4),
        ],
    ];
    let options = CompileOptions { named: ["who".to_owned()].into(), ..Default::default() };
    let format = format(&fields.concat(), "(%lx) who=%pS n=%u");
    let plan = CompiledFormat::compile(&format, &options).unwrap();
    let who = &plan.schema().fields[0];
    assert_eq!((who.kind, who.base, who.fault_detected), (FieldKind::SymbolName, None, true));
    assert!(!plan.is_fixed());
    let record = |address: u64, guard: [u8; 4]| {
        let end = descriptor(36, 2);
        [HEAD, &address.to_le_bytes(), &7_u32.to_le_bytes(), &guard, &end, b"k\0"].concat()
    };
    let (good, faulty) = (descriptor(36, 0), descriptor(36, 2));
    let mut columns = plan.columns();
    plan.decode(&record(0xffff_ffff_8100_0010, good), 1, &mut columns).unwrap();
    plan.decode(&record(0xdead, faulty), 2, &mut columns).unwrap();
    let name = |address: u64, text: &mut Vec<u8>| text.extend_from_slice(format!("<{address:x}>").as_bytes());
    columns.name_addresses(name);
    // Later addresses are named later; a name that was set stays.
    plan.decode(&record(0x5, good), 3, &mut columns).unwrap();
    let mut cut = record(0x6, good);
    cut[0] = 0;
    plan.decode(&cut, 4, &mut columns).unwrap_err();
    columns.drop_unfinished_row();
    columns.name_addresses(name);
    columns.name_addresses(|_, _| panic!("all have names"));
    let values: Vec<_> = (0..3).map(|row| columns.fields[0].value(row, 0).unwrap()).collect();
    assert_eq!(values, [Value::Bytes(b"<ffffffff81000010>"), Value::Fault, Value::Bytes(b"<5>")]);
    assert_eq!(columns.len(), 3);
    columns.clear();
    plan.decode(&record(0x9, good), 5, &mut columns).unwrap();
    columns.name_addresses(name);
    assert_eq!(columns.fields[0].value(0, 0), Some(Value::Bytes(b"<9>")));
    assert_eq!(columns.fields[1].value(0, 0), Some(Value::Unsigned(7)));
}

#[test]
fn parameters_that_only_the_kernel_names_cannot_fault() {
    let fields = [PROBE, &[("u64 file", 16, 8), ("u64 a", 24, 8)]].concat();
    let options = CompileOptions { besides_parameters: Some(["a".to_owned()].into()), ..Default::default() };
    let plan = CompiledFormat::compile(&format(&fields, "(%lx) file=%Lx a=%Lx"), &options).unwrap();
    let detected: Vec<_> = plan.schema().fields.iter().map(|field| field.fault_detected).collect();
    assert_eq!(detected, [true, false]);
}
