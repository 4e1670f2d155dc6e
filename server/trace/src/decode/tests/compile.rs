//! Tests of plans: the schemas that formats compile to, and formats that are refused.

use super::*;

fn refused(fields: &[(&str, usize, usize)]) -> String {
    error(&format(&[PROBE, fields].concat(), ""), &CompileOptions::default())
}

fn error(format: &Format, options: &CompileOptions) -> String {
    CompiledFormat::compile(format, options).unwrap_err().to_string()
}

#[test]
fn the_schema_says_what_the_user_asked_for() {
    let fields = [
        PROBE,
        &[
            ("u64 a", 16, 8),
            ("s32 b", 24, 4),
            ("u8 c", 28, 1),
            ("u64 f", 29, 8),
            ("__data_loc char[] s", 37, 4),
            ("__data_loc char[][2] t", 41, 8),
            ("u16 g[]", 49, 6),
            ("__data_loc char[] __kpd_g0", 55, 4),
            ("__data_loc char[] __kpd_end", 59, 4),
        ],
    ];
    let print = r#"(%lx) a=0x%Lx b=%d c='%c' f=%pS s=\"%s\" t={\"%s\",\"%s\"} g={%u,%u,%u}"#;
    let options = CompileOptions { infallible: ["f".to_owned()].into(), ..Default::default() };
    let plan = CompiledFormat::compile(&format(&fields.concat(), print), &options).unwrap();
    let field = |name: &str, kind, base, array_len, (fault_detected, may_fault)| FieldSchema {
        base,
        array_len,
        fault_detected,
        may_fault,
        ..FieldSchema::new(name, kind)
    };
    let expected = [
        field("a", FieldKind::Unsigned { bytes: 8 }, Some(Base::Hex), None, (true, true)),
        field("b", FieldKind::Signed { bytes: 4 }, Some(Base::Decimal), None, (false, false)),
        field("c", FieldKind::Char, None, None, (false, false)),
        field("f", FieldKind::Symbol, None, None, (true, false)),
        field("s", FieldKind::String, None, None, (true, true)),
        field("t", FieldKind::String, None, Some(2), (true, true)),
        field("g", FieldKind::Unsigned { bytes: 2 }, Some(Base::Decimal), Some(3), (false, false)),
    ];
    assert_eq!(**plan.schema(), Schema { fields: expected.into(), is_return: false });
    assert_eq!(plan.id(), 1392);
}

/// A register that may hold anything, a text behind it, and a number behind it that has a guard.
#[test]
fn what_nobody_vouches_for_is_unproven() {
    let fields = [
        PROBE,
        &[
            ("u64 a", 16, 8),
            ("u64 b", 24, 8),
            ("__data_loc char[] s", 32, 4),
            ("u64 c", 36, 8),
            ("__data_loc char[] __kpd_g1", 44, 4),
            ("__data_loc char[] __kpd_end", 48, 4),
        ],
    ];
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let options = CompileOptions {
        infallible: names(&["a", "c"]),
        unproven: names(&["a", "b", "s"]),
        ..Default::default()
    };
    let print = r#"(%lx) a=0x%Lx b=0x%Lx s=\"%s\" c=0x%Lx"#;
    let plan = CompiledFormat::compile(&format(&fields.concat(), print), &options).unwrap();
    let proven: Vec<_> =
        plan.schema().fields.iter().map(|field| (&*field.name, field.fault_detected)).collect();
    assert_eq!(proven, [("a", false), ("b", false), ("s", false), ("c", true)]);
}

#[test]
fn a_return_probe_has_two_addresses() {
    let format = format(
        &[("unsigned long __probe_func", 8, 8), ("unsigned long __probe_ret_ip", 16, 8), ("s64 r", 24, 8)],
        "(%lx <- %lx) r=%Ld",
    );
    let plan = plan(&format);
    assert!(plan.schema().is_return);
    let record = [HEAD, &[7; 8], &(-5_i64).to_le_bytes()].concat();
    let mut columns = plan.columns();
    plan.decode(&record, 42, &mut columns).unwrap();
    assert_eq!((columns.ip(0), columns.ip(1)), (Some(0xffff_ffff_86f4_a350), None));
    assert_eq!(columns.return_ip(0), Some(0x0707_0707_0707_0707));
    assert_eq!(columns.fields[0].value(0, 0), Some(Value::Signed(-5)));
    assert_eq!((columns.flags(0), columns.preempt_count(0), columns.tid(0)), (Some(1), Some(2), Some(0x5c)));
    assert_eq!(columns.timestamps_ns, [42]);
}

#[test]
fn tracepoints_copy_what_they_were_given() {
    let format = format(
        &[
            ("char comm[16]", 8, 16),
            ("__data_loc char[] name", 24, 4),
            ("__data_loc u8[] raw", 28, 4),
            ("__rel_loc char[] late", 32, 4),
            ("bool flag", 36, 1),
        ],
        "comm=%s",
    );
    let plan = plan(&format);
    let record = [
        &HEAD[..8],
        b"kthreadd\0stale..",
        &descriptor(40, 0),
        &descriptor(40, 3),
        &descriptor(7, 3),
        &[1, 0, 0, 0],
        b"a\0bhi\0",
    ]
    .concat();
    let mut columns = plan.columns();
    plan.decode(&record, 0, &mut columns).unwrap();
    let values: Vec<_> = columns.fields.iter().map(|column| column.value(0, 0).unwrap()).collect();
    let expected = [b"kthreadd".as_slice(), b"", b"a\0b", b"hi"]
        .map(Value::Bytes)
        .into_iter()
        .chain([Value::Unsigned(1)]);
    assert_eq!(values, expected.collect::<Vec<_>>());
    assert!(columns.ips.is_empty() && columns.return_ips.is_empty());
    assert!(plan.schema().fields.iter().all(|field| field.fault_detected && field.array_len.is_none()));
}

/// The caller of a system call leaves anything in the upper half of an `int`.
#[test]
fn fields_of_tracepoints_are_what_they_are_declared() {
    let fields = [
        ("int dfd", 8, 8),
        ("const char * filename", 16, 8),
        ("umode_t mode", 24, 8),
        ("dev_t dev", 32, 4),
        ("__be16 port", 36, 2),
        ("bool on", 38, 1),
        ("u8 bytes[4]", 40, 4),
        ("long ret", 48, 8),
        ("unsigned long count", 56, 8),
        ("int open_flags", 64, 8),
        ("unsigned int flags", 72, 4),
    ];
    let plan = plan(&format(&fields, ""));
    let kinds: Vec<_> = plan
        .schema()
        .fields
        .iter()
        .map(|field| (&*field.name, field.kind, field.base, field.notation.clone(), field.is_lower_half))
        .collect();
    let (decimal, unsigned) = (Some(Base::Decimal), |bytes| FieldKind::Unsigned { bytes });
    let expected = [
        ("dfd", FieldKind::Signed { bytes: 4 }, decimal, Notation::Number, true),
        ("filename", unsigned(8), Some(Base::Hex), Notation::Number, false),
        ("mode", unsigned(8), decimal, Notation::Octal, false),
        ("dev", unsigned(4), decimal, Notation::Device, false),
        ("port", unsigned(2), decimal, Notation::NetworkOrder, false),
        ("on", unsigned(1), decimal, Notation::Bool, false),
        ("bytes", unsigned(1), decimal, Notation::Number, false),
        ("ret", unsigned(8), decimal, Notation::Number, false),
        ("count", unsigned(8), decimal, Notation::Number, false),
        ("open_flags", FieldKind::Signed { bytes: 4 }, Some(Base::Hex), Notation::Number, true),
        ("flags", unsigned(4), decimal, Notation::Number, false),
    ];
    assert_eq!(kinds, expected);
    for upper in [0, u32::MAX, 7] {
        let mut record = HEAD[..8].to_vec();
        record.extend((-100_i32).to_le_bytes());
        record.extend(upper.to_le_bytes());
        record.resize(76, 0);
        let mut columns = plan.columns();
        plan.decode(&record, 0, &mut columns).unwrap();
        assert_eq!(columns.fields[0].value(0, 0), Some(Value::Signed(-100)));
    }
    let mut exit = format(&[("int __syscall_nr", 8, 4), ("long ret", 16, 8)], "");
    exit.name = "sys_exit_openat".to_owned();
    assert_eq!(self::plan(&exit).schema().fields[1].notation, Notation::Errno);
    let mut enter = format(&[("int __syscall_nr", 8, 4), ("int flags", 16, 8)], "");
    for (name, expected) in [("sys_enter_openat", Notation::OpenFlags), ("sys_enter_dup3", Notation::Number)]
    {
        enter.name = name.to_owned();
        assert_eq!(self::plan(&enter).schema().fields[1].notation, expected);
    }
}

#[test]
fn what_can_not_be_decoded_is_refused() {
    assert_eq!(refused(&[("struct y x", 16, 16)]), "field `x` has values of 16 bytes");
    assert_eq!(refused(&[("char x[]", 16, 0)]), "array `x` has no length");
    assert_eq!(refused(&[("u64 x", 65530, 8)]), "field `x` lies outside of any record");
    assert_eq!(refused(&[("u64 x", usize::MAX, 8)]), "field `x` lies outside of any record");
    let address = format(&[("u32 __probe_ip", 8, 4)], "");
    let options = CompileOptions::default();
    assert_eq!(error(&address, &options), "address `__probe_ip` does not have 8 bytes");
    let mut format = format(PROBE, "");
    format.common.remove(3);
    assert_eq!(error(&format, &options), "`common_pid` is not where and what it should be");
}

#[test]
fn hidden_arguments_must_make_sense() {
    let guard = |name: &str| format!("__data_loc char[] {name}");
    let (g0, g1, end, other) = (guard("__kpd_g0"), guard("__kpd_g1"), guard("__kpd_end"), guard("__kpd_x"));
    assert_eq!(refused(&[("u64 x", 16, 8), (&g0, 24, 4)]), "nothing comes after the guard `__kpd_g0`");
    assert_eq!(
        refused(&[("u64 x", 16, 8), (&g1, 24, 4), (&end, 28, 4)]),
        "there is no number for `__kpd_g1` to guard"
    );
    assert_eq!(
        refused(&[("__data_loc char[] x", 16, 4), (&g0, 24, 4), (&end, 28, 4)]),
        "there is no number for `__kpd_g0` to guard"
    );
    let no_string = |name: &str| format!("hidden argument `{name}` is not a string of a probe");
    assert_eq!(refused(&[("u64 __kpd_g0", 16, 8)]), no_string("__kpd_g0"));
    assert_eq!(refused(&[(&other, 16, 4)]), "hidden argument `__kpd_x` is not known");
    let tracepoint = format(&[(&end, 8, 4)], "");
    assert_eq!(error(&tracepoint, &CompileOptions::default()), no_string("__kpd_end"));
}

/// Of a register and of memory, which has a guard, with another field between them.
#[test]
fn a_computed_field_is_in_place_of_its_parts() {
    let fields = [
        PROBE,
        &[
            ("u64 sum__1", 16, 8),
            ("u8 other", 24, 1),
            ("s32 sum__2", 25, 4),
            ("__data_loc char[] __kpd_g2", 29, 4),
            ("__data_loc char[] __kpd_end", 33, 4),
        ],
    ];
    let definition =
        "p:g/e f sum__1=%bx:u64 other=%cx:u8 sum__2=+8(%di):s32 # computed: sum:s16=sum__1,sum__2,/s";
    let features = kprobed_lang::definition::Features::from_readme("ustring");
    let Ok(kprobed_lang::definition::Definition::Probe(definition)) =
        kprobed_lang::definition::parse(definition, &features)
    else {
        panic!("refused");
    };
    let infallible = ["sum__1".to_owned(), "other".to_owned()].into();
    let options = CompileOptions { infallible, computed: definition.computed, ..Default::default() };
    let print = "(%lx) sum__1=%Lu other=%u sum__2=%d";
    let plan = CompiledFormat::compile(&format(&fields.concat(), print), &options).unwrap();
    let [sum, other] = plan.schema().fields.as_slice() else { panic!("{:?}", plan.schema()) };
    assert_eq!((&*sum.name, &*other.name, sum.kind), ("sum", "other", FieldKind::Signed { bytes: 2 }));
    assert!(sum.fault_detected && sum.may_fault && sum.notation == Notation::Computed && !plan.is_fixed());
    let mut columns = plan.columns();
    // The text of the guard has the length 0 if the number was read, and the preset one if it was not.
    for (part, length) in [(-3_i32, 0), (0, 0), (-3, 2)] {
        let record = [
            HEAD,
            &12_u64.to_le_bytes(),
            &[7],
            &part.to_le_bytes(),
            &descriptor(37, length),
            &descriptor(37, 2),
            &[1, 0],
        ];
        plan.decode(&record.concat(), 5, &mut columns).unwrap();
    }
    let values: Vec<_> = (0..3).map(|row| columns.fields[0].value(row, 0).unwrap()).collect();
    assert_eq!(values, [Value::Signed(-4), Value::Fault, Value::Fault]);
    assert_eq!(columns.fields[1].value(2, 0), Some(Value::Unsigned(7)));
    // A format without one of the parts is another one.
    let without = [PROBE, &[("u64 sum__1", 16, 8)]].concat();
    let error = error(&format(&without, "(%lx) sum__1=%Lu"), &options);
    assert_eq!(error, "there is no `sum__2` of which a field could be made");
}
