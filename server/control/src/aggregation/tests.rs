//! Tests of trigger plans: what specifications become, and which ones are refused.

use std::sync::LazyLock;

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_key::Key;
use kprobed_proto::v1::key_value::Value;
use kprobed_proto::v1::{
    AggregationKey, ContextKey, HistogramSpec, KeyScale as Scale, LatencySpec, sum_value,
};

use super::plan::{Counted, Role, TriggerPlan};
use super::result::rows;
use crate::error::Error;
use kprobed_host::tracefs::format::Format;
use kprobed_host::tracefs::hist::{HistRow, HistTable, HistValue};
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::{Base, FieldKind, FieldSchema, Notation, Schema};
use kprobed_trace::filter::Proofs;

fn schema() -> Schema {
    let field = |name: &str, kind, base| FieldSchema { base, ..FieldSchema::new(name, kind) };
    Schema {
        fields: vec![
            field("dfd", FieldKind::Signed { bytes: 4 }, Some(Base::Decimal)),
            field("n", FieldKind::Unsigned { bytes: 4 }, Some(Base::Decimal)),
            field("big", FieldKind::Unsigned { bytes: 8 }, Some(Base::Hex)),
            field("path", FieldKind::String, None),
            field("name", FieldKind::String, None),
            FieldSchema { array_len: Some(4), ..field("bytes", FieldKind::Unsigned { bytes: 1 }, None) },
            FieldSchema {
                notation: Notation::NetworkOrder,
                ..field("port", FieldKind::Unsigned { bytes: 2 }, Some(Base::Decimal))
            },
            FieldSchema {
                notation: Notation::Errno,
                ..field("ret", FieldKind::Signed { bytes: 4 }, Some(Base::Decimal))
            },
            FieldSchema {
                notation: Notation::OpenFlags,
                is_lower_half: true,
                ..field("flags", FieldKind::Signed { bytes: 4 }, Some(Base::Hex))
            },
        ],
        is_return: false,
    }
}

fn name() -> ProbeName {
    ProbeName::new("g", "open").unwrap()
}

/// Of a probe whose fields are not from memory.
fn counted<'a>(probe: &'a ProbeName, schema: &'a Schema) -> Counted<'a> {
    static NONE: LazyLock<Proofs> = LazyLock::new(Proofs::default);
    Counted { probe, schema, proofs: &NONE }
}

fn key(field: &str, scale: Scale) -> AggregationKey {
    buckets(field, scale, 0)
}

fn buckets(field: &str, scale: Scale, bucket_size: u64) -> AggregationKey {
    let key = v1::FieldKey { field: field.to_owned(), scale: scale.into(), bucket_size };
    AggregationKey { key: Some(Key::Field(key)) }
}

fn context(key: ContextKey) -> AggregationKey {
    AggregationKey { key: Some(Key::Context(key.into())) }
}

fn row(keys: Vec<Value>, count: u64, sums: &[i64]) -> v1::AggregationRow {
    let sum = |sum: &i64| v1::SumValue { value: Some(sum_value::Value::Signed(*sum)) };
    v1::AggregationRow {
        keys: keys
            .into_iter()
            .map(|value| v1::KeyValue { value: Some(value), ..Default::default() })
            .collect(),
        count,
        sums: sums.iter().map(sum).collect(),
    }
}

fn histogram(keys: Vec<AggregationKey>, sums: &[&str], filter: &str) -> HistogramSpec {
    HistogramSpec {
        probe: "g/open".to_owned(),
        keys,
        sums: sums.iter().map(|&sum| sum.to_owned()).collect(),
        filter: filter.to_owned(),
        size: 0,
        include_self: true,
    }
}

fn plan(keys: Vec<AggregationKey>, sums: &[&str], filter: &str) -> Result<TriggerPlan, Error> {
    TriggerPlan::histogram(&histogram(keys, sums, filter), 7, counted(&name(), &schema()))
}

fn triggers(plan: &TriggerPlan) -> Vec<String> {
    plan.tables.iter().map(|table| table.trigger.to_string()).collect()
}

#[test]
fn histograms_become_triggers() {
    let plain = plan(Vec::new(), &["n", "dfd"], "").unwrap();
    assert_eq!(triggers(&plain), ["hist:keys=common_type:vals=n,dfd:kprobed_7=0:size=2048"]);
    assert_eq!(plain.signed_sums, [false, true]);
    let keys = vec![key("path", Scale::Unspecified), context(ContextKey::Stack), context(ContextKey::Comm)];
    let stack = plan(keys, &[], "dfd < 0").unwrap();
    assert_eq!(
        triggers(&stack),
        ["hist:keys=stacktrace,path,common_pid.execname:kprobed_7=0:size=2048 if dfd < 0"]
    );
    assert_eq!(stack.printed, [1, 0, 2]);
    assert_eq!(
        triggers(&plan(vec![key("n", Scale::Log2), buckets("dfd", Scale::Linear, 10)], &[], "").unwrap()),
        ["hist:keys=n.log2,dfd.buckets=10:kprobed_7=0:size=2048"]
    );
    let hexadecimal = plan(vec![key("big", Scale::Unspecified)], &[], "").unwrap();
    assert_eq!(
        hexadecimal.keys.iter().map(|key| key.column.clone()).collect::<Vec<_>>(),
        [v1::AggregationColumn { name: "big".to_owned(), hexadecimal: true, unproven: false }]
    );
}

#[test]
fn what_has_no_power_of_two_has_a_table_of_its_own() {
    let keys = vec![key("dfd", Scale::Log2), context(ContextKey::Cpu)];
    let plan = plan(keys, &[], "n == 1").unwrap();
    assert_eq!(
        triggers(&plan),
        [
            "hist:keys=dfd.log2,common_cpu:kprobed_7=0:size=2048 if (n == 1) && dfd >= 0",
            "hist:keys=common_cpu:kprobed_7b=0:size=2048 if (n == 1) && dfd < 0",
        ]
    );
    let table = |keys: Vec<HistValue>, hits| HistTable {
        rows: vec![HistRow { keys, hits, sums: Vec::new() }],
        hits,
        dropped: 0,
    };
    let tables =
        [table(vec![HistValue::Log2(2), HistValue::Number(1)], 5), table(vec![HistValue::Number(1)], 3)];
    let row = |first, last, count| {
        row(vec![Value::SignedBucket(v1::SignedBucket { first, last }), Value::Unsigned(1)], count, &[])
    };
    assert_eq!(rows(&plan, &tables), [row(i64::MIN, -1, 3), row(3, 4, 5)]);
}

#[test]
fn rows_of_one_meaning_are_one() {
    let plan = plan(vec![context(ContextKey::Comm)], &["dfd"], "").unwrap();
    let counted = |tid, hits, sum: i64| HistRow {
        keys: vec![HistValue::Thread { tid, comm: b"cat".to_vec() }],
        hits,
        sums: vec![sum.cast_unsigned()],
    };
    let table = HistTable { rows: vec![counted(1, 2, -200), counted(2, 1, 3)], hits: 3, dropped: 0 };
    assert_eq!(rows(&plan, &[table]), [row(vec![Value::Text("cat".to_owned())], 3, &[-197])]);
}

/// Of the lower half of a word, the upper one says nothing: its rows are one.
#[test]
fn numbers_have_the_text_that_events_have() {
    let shown = |name: &str, numbers: &[u64]| {
        let plan = plan(vec![key(name, Scale::Unspecified)], &[], "").unwrap();
        let row =
            |number: &u64| HistRow { keys: vec![HistValue::Number(*number)], hits: 1, sums: Vec::new() };
        let table = HistTable { rows: numbers.iter().map(row).collect(), hits: 0, dropped: 0 };
        let rows = rows(&plan, &[table]);
        rows.iter().map(|row| (row.keys[0].shown.clone().unwrap_or_default(), row.count)).collect::<Vec<_>>()
    };
    let text = |text: &str, count| (text.to_owned(), count);
    let minus_two = (-2_i64).cast_unsigned();
    assert_eq!(shown("ret", &[minus_two, 3]), [text("-2 (ENOENT)", 1), text("", 1)]);
    assert_eq!(shown("port", &[0xbb01]), [text("443", 1)]);
    assert_eq!(shown("flags", &[0x80000, 7 << 32 | 0x80000]), [text("0x80000 (O_RDONLY|O_CLOEXEC)", 2)]);
    assert_eq!(shown("flags", &[1 << 31]), [text("0x80000000 (O_RDONLY|0x80000000)", 1)]);
    assert_eq!(shown("n", &[5]), [text("", 1)]);
    let refused = |keys, sums: &[&str]| plan(keys, sums, "").unwrap_err().message;
    for (name, why) in [("port", "it is recorded in network order"), ("flags", "it records all 64 bits")] {
        for ranges in [key(name, Scale::Log2), buckets(name, Scale::Linear, 10)] {
            let message = refused(vec![ranges], &[]);
            assert!(
                message.starts_with(&format!("the kernel cannot make ranges of `{name}`: {why}")),
                "{message}"
            );
        }
        let message = refused(Vec::new(), &[name]);
        assert!(message.starts_with(&format!("the kernel cannot add up `{name}`: {why}")), "{message}");
    }
}

/// Answers hide addresses in names of symbols, and in no other text.
#[test]
fn a_text_that_the_kernel_makes_of_an_address_is_the_name_of_a_symbol() {
    let (probe, mut schema) = (name(), schema());
    for field in schema.fields.iter_mut().filter(|field| field.name == "name") {
        field.notation = Notation::Symbol;
    }
    let shown = |field: &str| {
        let spec = histogram(vec![key(field, Scale::Unspecified)], &[], "");
        let plan = TriggerPlan::histogram(&spec, 7, counted(&probe, &schema)).unwrap();
        let text = HistValue::Text(b"0xffffffff81234567".to_vec());
        let found = HistRow { keys: vec![text], hits: 1, sums: Vec::new() };
        rows(&plan, &[HistTable { rows: vec![found], hits: 1, dropped: 0 }])
    };
    let address = "0xffffffff81234567".to_owned();
    assert_eq!(shown("name"), [row(vec![Value::Symbol(address.clone())], 1, &[])]);
    assert_eq!(shown("path"), [row(vec![Value::Text(address)], 1, &[])]);
}

#[test]
fn refusals_name_the_field() {
    let refused = |keys: Vec<AggregationKey>, sums: &[&str]| {
        let error = plan(keys, sums, "").unwrap_err();
        (error.field.unwrap().into_owned(), error.message)
    };
    let (field, message) = refused(vec![key("n", Scale::Unspecified), key("nope", Scale::Unspecified)], &[]);
    assert_eq!(field, "spec.histogram.keys[1].field.field");
    assert!(message.contains("`g/open` has no field `nope`: it has `dfd`, `n`"), "{message}");
    // What other tools call a key.
    for (typed, advice) in
        [("pid", "counts by `thread`"), ("tid", "counts by `thread`"), ("kstack", "the key `stack`")]
    {
        let (_, message) = refused(vec![key(typed, Scale::Unspecified)], &[]);
        assert!(message.contains(advice), "{message}");
    }
    assert!(!refused(Vec::new(), &["pid"]).1.contains("thread"));
    let message = |keys: Vec<AggregationKey>| refused(keys, &[]).1;
    let [thread, comm] = [ContextKey::Thread, ContextKey::Comm].map(context);
    assert_eq!(message(vec![thread.clone(), thread.clone()]), "this key occurs twice");
    for both in [[thread.clone(), comm.clone()], [comm, thread]] {
        assert_eq!(message(both.to_vec()), "`thread` shows the name of the thread too: leave `comm` out");
    }
    let field = |keys: Vec<AggregationKey>, sums: &[&str]| refused(keys, sums).0;
    assert_eq!(field(vec![key("path", Scale::Log2)], &[]), "spec.histogram.keys[0].field.scale");
    assert_eq!(field(vec![buckets("n", Scale::Linear, 0)], &[]), "spec.histogram.keys[0].field.bucket_size");
    assert_eq!(field(vec![key("n", Scale::Symbol)], &[]), "spec.histogram.keys[0].field.scale");
    assert_eq!(field(vec![key("bytes", Scale::Unspecified)], &[]), "spec.histogram.keys[0].field.field");
    assert_eq!(
        field(vec![key("n", Scale::Unspecified), key("n", Scale::Unspecified)], &[]),
        "spec.histogram.keys[1]"
    );
    assert_eq!(
        field(vec![key("path", Scale::Unspecified), key("name", Scale::Unspecified)], &[]),
        "spec.histogram.keys[1]"
    );
    assert_eq!(
        field(vec![key("dfd", Scale::Log2), key("big", Scale::Log2)], &[]),
        "spec.histogram.keys[1].field.scale"
    );
    assert_eq!(field(Vec::new(), &["n", "dfd", "big"]), "spec.histogram.sums");
    assert_eq!(field(Vec::new(), &["path"]), "spec.histogram.sums[0]");
    let four = ["n", "dfd", "big", "path"].map(|name| key(name, Scale::Unspecified)).to_vec();
    assert_eq!(field(four, &[]), "spec.histogram.keys");
    assert_eq!(field(vec![buckets("n", Scale::Log2, 8)], &[]), "spec.histogram.keys[0].field.bucket_size");
    assert_eq!(field(vec![context(ContextKey::Unspecified)], &[]), "spec.histogram.keys[0]");
    assert_eq!(field(vec![AggregationKey::default()], &[]), "spec.histogram.keys[0]");
    let tiny = HistogramSpec { size: 5, ..histogram(Vec::new(), &[], "") };
    assert!(TriggerPlan::histogram(&tiny, 7, counted(&name(), &schema())).is_err());
}

#[test]
fn latencies_become_three_triggers() {
    let spec = LatencySpec {
        start_probe: "g/open".to_owned(),
        end_probe: "g/done".to_owned(),
        match_field: String::new(),
        start_filter: "dfd < 0".to_owned(),
        end_filter: String::new(),
        bucket_ns: 0,
        keys: vec![ContextKey::Comm.into()],
        size: 128,
        include_self: true,
    };
    let (start, end, fields) = (name(), ProbeName::new("g", "done").unwrap(), schema());
    let made = |spec: &LatencySpec| {
        TriggerPlan::latency(spec, 7, [counted(&start, &fields), counted(&end, &fields)], "boot")
    };
    let plan = made(&spec).unwrap();
    assert_eq!(
        triggers(&plan),
        [
            "hist:keys=common_pid:kprobed_7=common_timestamp:size=16384:clock=boot if dfd < 0",
            "hist:keys=latency_ns.log2,common_pid.execname:vals=latency_ns:kprobed_7r=0:size=128",
            "hist:keys=common_pid:kprobed_7e=common_timestamp-$kprobed_7:size=16384:clock=boot:onmatch(g.open).kprobed_latency_7($kprobed_7e)",
        ]
    );
    let roles: Vec<_> = plan.tables.iter().map(|table| table.role).collect();
    assert_eq!(roles, [Role::Starts, Role::Result { beyond: None }, Role::Ends]);
    assert_eq!(plan.synthetic.as_deref(), Some("kprobed_latency_7"));
    let by_field = LatencySpec { match_field: "n".to_owned(), bucket_ns: 1000, ..spec.clone() };
    let triggers = triggers(&made(&by_field).unwrap());
    assert!(
        triggers[0].starts_with("hist:keys=n:")
            && triggers[1].starts_with("hist:keys=latency_ns.buckets=1000,")
    );
    for wrong in [
        LatencySpec { match_field: "path".to_owned(), ..spec.clone() },
        LatencySpec { keys: vec![ContextKey::Stack.into()], ..spec.clone() },
        LatencySpec {
            keys: [ContextKey::Thread, ContextKey::Comm, ContextKey::Cpu].map(i32::from).to_vec(),
            ..spec.clone()
        },
    ] {
        assert!(made(&wrong).is_err(), "{wrong:?}");
    }
    assert!(TriggerPlan::latency(&spec, 7, [counted(&start, &fields); 2], "boot").is_err());
}

#[test]
fn own_threads_are_left_out_and_counted_apart() {
    let spec =
        HistogramSpec { include_self: false, ..histogram(vec![key("dfd", Scale::Log2)], &[], "n == 1") };
    let made = TriggerPlan::histogram(&spec, 7, counted(&name(), &schema())).unwrap();
    assert_eq!(
        triggers(&made),
        [
            "hist:keys=dfd.log2:kprobed_7=0:size=2048 if ((n == 1) && !(COMM ~ \"kprobed*\")) && dfd >= 0",
            "hist:keys=common_type:kprobed_7b=0:size=2048 if ((n == 1) && !(COMM ~ \"kprobed*\")) && dfd < 0",
            "hist:keys=common_type:kprobed_7o=0:size=128 if (n == 1) && COMM ~ \"kprobed*\"",
        ]
    );
    assert_eq!(made.tables[2].role, Role::Own);
    // What they did is in no row.
    let table = |keys: Vec<HistValue>, hits| HistTable {
        rows: vec![HistRow { keys, hits, sums: Vec::new() }],
        hits,
        dropped: 0,
    };
    let type_id = || vec![HistValue::Number(1)];
    let tables = [table(vec![HistValue::Log2(2)], 5), table(type_id(), 3), table(type_id(), 90)];
    let counted: u64 = rows(&made, &tables).iter().map(|row| row.count).sum();
    assert_eq!(counted, 8);
}

#[test]
fn latencies_leave_out_own_threads_at_both_ends() {
    let (start, end, fields) = (name(), ProbeName::new("g", "done").unwrap(), schema());
    let spec = LatencySpec {
        start_probe: "g/open".to_owned(),
        end_probe: "g/done".to_owned(),
        match_field: String::new(),
        start_filter: String::new(),
        end_filter: "n == 1".to_owned(),
        bucket_ns: 0,
        keys: Vec::new(),
        size: 128,
        include_self: false,
    };
    let plan =
        TriggerPlan::latency(&spec, 7, [counted(&start, &fields), counted(&end, &fields)], "boot").unwrap();
    let filters: Vec<_> =
        plan.tables.iter().map(|table| (table.role, table.trigger.filter.as_str())).collect();
    assert_eq!(
        filters,
        [
            (Role::Starts, "!(COMM ~ \"kprobed*\")"),
            (Role::Result { beyond: None }, ""),
            (Role::Ends, "(n == 1) && !(COMM ~ \"kprobed*\")"),
            (Role::Own, "(n == 1) && COMM ~ \"kprobed*\""),
        ]
    );
    assert_eq!(plan.tables[3].event, end);
}

#[test]
fn a_field_that_hides_the_name_of_the_thread_is_not_taken_for_it() {
    let with = |names: &[&str]| {
        let mut schema = schema();
        let field = schema.fields[3].clone();
        schema
            .fields
            .extend(names.iter().map(|&name| FieldSchema { name: name.to_owned(), ..field.clone() }));
        let spec = HistogramSpec { include_self: false, ..histogram(Vec::new(), &[], "") };
        TriggerPlan::histogram(&spec, 7, counted(&name(), &schema))
    };
    assert_eq!(with(&["COMM"]).unwrap().tables[0].trigger.filter, "!(comm ~ \"kprobed*\")");
    let refused = with(&["COMM", "comm"]).unwrap_err();
    assert_eq!(refused.field.as_deref(), Some("spec.histogram.include_self"));
    assert!(refused.message.contains("set `include_self`"), "{refused}");
}

/// The schema again, with `dfd` and `path` from memory: the kernel has companions for them.
fn from_memory() -> Proofs {
    let field = |(index, (name, size)): (usize, (&str, usize))| {
        format!("\tfield:{name};\toffset:{};\tsize:{size};\tsigned:0;\n", 8 + 8 * index)
    };
    let fields = [
        ("unsigned long __probe_ip", 8),
        ("s32 dfd", 4),
        ("u32 n", 4),
        ("u64 big", 8),
        ("__data_loc char[] path", 4),
        ("__data_loc char[] __kpd_g0", 4),
        ("__data_loc char[] __kpd_end", 4),
    ];
    let fields = fields.into_iter().enumerate().map(field).collect::<Vec<_>>().concat();
    let text = format!(
        "name: e\nID: 1\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n{fields}\nprint fmt: \"\"\n"
    );
    Proofs::of(&Format::parse(&text).unwrap())
}

#[test]
fn what_was_not_read_is_in_no_row_and_counted_apart() {
    let (probe, schema, proofs) = (name(), schema(), from_memory());
    let counted = Counted { probe: &probe, schema: &schema, proofs: &proofs };
    let filters = |keys: Vec<AggregationKey>, sums: &[&str], filter: &str| {
        let made = TriggerPlan::histogram(&histogram(keys, sums, filter), 7, counted).unwrap();
        made.tables.into_iter().map(|table| (table.role, table.trigger.filter)).collect::<Vec<_>>()
    };
    let result = Role::Result { beyond: None };
    let [read, unread] = ["!", ""].map(|not| format!("{not}__kpd_g0 ~ \"*\u{1}\""));
    let by_number = vec![key("n", Scale::Unspecified)];
    assert_eq!(filters(by_number.clone(), &[], "n == 1"), [(result, "n == 1".to_owned())]);
    let expected = [(result, read.clone()), (Role::Unread, format!("!({read})"))];
    assert_eq!(filters(vec![key("dfd", Scale::Unspecified)], &[], ""), expected);
    assert_eq!(filters(by_number.clone(), &["dfd"], ""), expected);
    let text = "path ~ \"*\" && !path ~ \"*\u{1}\"";
    assert_eq!(filters(vec![key("path", Scale::Unspecified)], &[], "")[0], (result, text.to_owned()));
    // A filter does not pass for what was not read, and neither does its opposite.
    assert_eq!(
        filters(by_number, &[], "!(dfd == 1)"),
        [
            (result, format!("!(dfd == 1 || {unread})")),
            (Role::Unread, format!("(!(dfd == 1 && {read})) && !(!(dfd == 1 || {unread}))")),
        ]
    );
    let spec = LatencySpec {
        start_probe: "g/open".to_owned(),
        end_probe: "g/done".to_owned(),
        match_field: "dfd".to_owned(),
        include_self: true,
        ..Default::default()
    };
    let done = ProbeName::new("g", "done").unwrap();
    let end = Counted { probe: &done, ..counted };
    let plan = TriggerPlan::latency(&spec, 7, [counted, end], "boot").unwrap();
    let of = |role: Role| {
        let tables = plan.tables.iter().filter(move |table| table.role == role);
        tables.map(|table| table.trigger.filter.clone()).collect::<Vec<_>>()
    };
    assert_eq!((of(Role::Starts), of(Role::Ends)), (vec![read.clone()], vec![read.clone()]));
    assert_eq!(of(Role::Unread), [format!("!({read})"), format!("!({read})")]);
}

#[test]
fn what_nothing_proves_is_marked() {
    let mut schema = schema();
    schema.fields[0].fault_detected = false;
    let probe = name();
    let made = |keys: Vec<AggregationKey>, sums: &[&str], filter: &str| {
        TriggerPlan::histogram(&histogram(keys, sums, filter), 7, counted(&probe, &schema)).unwrap()
    };
    let by = made(vec![key("dfd", Scale::Log2), key("n", Scale::Unspecified)], &["dfd"], "");
    assert_eq!(
        by.keys
            .iter()
            .map(|key| &key.column)
            .chain(&by.sums)
            .map(|column| column.unproven)
            .collect::<Vec<_>>(),
        [true, false, true]
    );
    assert_eq!(by.warnings.len(), 1);
    assert!(by.warnings[0].message.contains("whether `dfd` of `g/open` could be read"), "{by:?}");
    assert_eq!(made(Vec::new(), &[], "dfd > 3").warnings.len(), 1);
    assert!(made(vec![key("n", Scale::Unspecified)], &[], "n > 3").warnings.is_empty());
}
