//! `hist` files of real kernels, forged ones, and arbitrary bytes.

use proptest::prelude::*;

use super::*;
use kprobed_lang::model::ProbeName;

fn key(field: &str, form: KeyForm) -> HistKey {
    HistKey { field: field.to_owned(), form }
}

fn trigger(keys: Vec<HistKey>, sums: &[&str]) -> HistTrigger {
    HistTrigger {
        keys,
        sums: sums.iter().map(|&sum| sum.to_owned()).collect(),
        variable: HistVariable::Mark("kprobed_7".to_owned()),
        rows: 2048,
        clock: None,
        action: None,
        filter: String::new(),
    }
}

/// A file with one table, as the kernel prints it.
fn file(mark: &str, rows: &str, hits: u64, entries: usize, dropped: u64) -> String {
    format!(
        "# event histogram\n#\n# trigger info: hist:keys=a:vals=hitcount:{mark}=0:sort=hitcount:size=2048 [active]\n#\n\n{rows}\
         \nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}\n"
    )
}

fn text(bytes: &str) -> HistValue {
    HistValue::Text(bytes.into())
}

fn thread(comm: &str, tid: u32) -> HistValue {
    HistValue::Thread { tid, comm: comm.into() }
}

#[test]
fn triggers_are_written_as_the_kernel_wants_them() {
    let mut start = trigger(vec![key("common_pid", KeyForm::Number)], &[]);
    start.variable = HistVariable::Time("kprobed_7".to_owned());
    start.clock = Some("boot");
    assert_eq!(start.to_string(), "hist:keys=common_pid:kprobed_7=common_timestamp:size=2048:clock=boot");
    let mut end = start.clone();
    end.variable = HistVariable::Since { name: "kprobed_7e".to_owned(), start: "kprobed_7".to_owned() };
    end.action =
        Some(HistAction { after: ProbeName::new("g", "nap").unwrap(), synthetic: "latency_7".to_owned() });
    end.filter = "ret == 0".to_owned();
    assert_eq!(
        end.to_string(),
        "hist:keys=common_pid:kprobed_7e=common_timestamp-$kprobed_7:size=2048:clock=boot:onmatch(g.nap).latency_7($kprobed_7e) \
         if ret == 0"
    );
    let forms = [
        KeyForm::Log2,
        KeyForm::Buckets(10),
        KeyForm::Symbol,
        KeyForm::SymbolOffset,
        KeyForm::Execname,
        KeyForm::Text,
    ];
    let written: Vec<_> = forms.iter().map(|form| key("f", *form).to_string()).collect();
    assert_eq!(written, ["f.log2", "f.buckets=10", "f.sym", "f.sym-offset", "f.execname", "f"]);
    assert_eq!(
        trigger(vec![key("a", KeyForm::Number), key("b", KeyForm::Text)], &["n", "m"]).to_string(),
        "hist:keys=a,b:vals=n,m:kprobed_7=0:size=2048"
    );
}

#[test]
fn rows_of_a_real_kernel() {
    let keys =
        vec![key("path", KeyForm::Text), key("common_pid", KeyForm::Execname), key("dfd", KeyForm::Number)];
    let rows = "\
{ path: /etc/passwd                                        , common_pid: cat             [       272], dfd: 18446744073709551516 } hitcount:          2  n:         20  m: 18446744073709551601
{ path: /sys/kernel/tracing/instances/agg/events/g/op/trigger/x, common_pid: a, b } [9]      [       273], dfd:          3 } hitcount: 12345678901  n:          0  m:          7
";
    let table = HistTable::parse(
        file("kprobed_7", rows, 12_345_678_903, 2, 5).as_bytes(),
        &trigger(keys, &["n", "m"]),
        1,
    )
    .unwrap();
    assert_eq!((table.hits, table.dropped), (12_345_678_903, 5));
    assert_eq!(
        table.rows[0],
        HistRow {
            keys: vec![
                text("/etc/passwd"),
                thread("cat", 272),
                HistValue::Number((-100_i64).cast_unsigned())
            ],
            hits: 2,
            sums: vec![20, (-15_i64).cast_unsigned()],
        }
    );
    assert_eq!(table.rows[1].keys[1], thread("a, b } [9]", 273));
    assert_eq!(table.rows[1].hits, 12_345_678_901);
}

#[test]
fn buckets_and_symbols_of_a_real_kernel() {
    let keys =
        vec![key("n", KeyForm::Log2), key("m", KeyForm::Buckets(10)), key("fn", KeyForm::SymbolOffset)];
    let rows = "{ n: ~ 2^0 , m: ~ 18446744073709551610-3, fn: [ffffffff85231511] do_sys_openat2+0x1/0xe0                                 } hitcount:         36\n";
    let table =
        HistTable::parse(file("kprobed_7", rows, 36, 1, 0).as_bytes(), &trigger(keys, &[]), 1).unwrap();
    assert_eq!(
        table.rows[0].keys,
        [
            HistValue::Log2(0),
            HistValue::Bucket((-6_i64).cast_unsigned(), 3),
            HistValue::Symbol("do_sys_openat2+0x1/0xe0".to_owned())
        ]
    );
}

#[test]
fn stacks_of_both_kernels() {
    let frames = "         do_sys_openat2+0x5/0xe0\n         __x64_sys_openat+0x55/0xa0\n";
    let alone = vec![key("stacktrace", KeyForm::Stack)];
    let stack =
        HistValue::Stack(vec!["do_sys_openat2+0x5/0xe0".to_owned(), "__x64_sys_openat+0x55/0xa0".to_owned()]);
    for name in ["stacktrace", "common_stacktrace"] {
        let rows = format!("{{ {name}:\n{frames}}} hitcount:         36\n");
        let table =
            HistTable::parse(file("kprobed_7", &rows, 36, 1, 0).as_bytes(), &trigger(alone.clone(), &[]), 1);
        assert_eq!(table.unwrap().rows[0].keys, std::slice::from_ref(&stack));
    }
    let both = vec![key("stacktrace", KeyForm::Stack), key("common_pid", KeyForm::Execname)];
    let rows = format!(
        "{{ common_stacktrace:\n{frames}, common_pid: cat             [       330]}} hitcount:          1\n"
    );
    let table =
        HistTable::parse(file("kprobed_7", &rows, 1, 1, 0).as_bytes(), &trigger(both, &[]), 1).unwrap();
    assert_eq!(table.rows[0].keys, [stack, thread("cat", 330)]);
}

#[test]
fn the_table_of_the_trigger_is_found_among_others() {
    let number = || trigger(vec![key("a", KeyForm::Number)], &[]);
    let both = format!(
        "{}\n\n{}",
        file("kprobed_7", "{ a:          4 } hitcount:          4\n", 4, 1, 0),
        file("kprobed_70", "", 0, 0, 0)
    );
    assert_eq!(HistTable::parse(both.as_bytes(), &number(), 2).unwrap().hits, 4);
    let none = HistTrigger { variable: HistVariable::Mark("kprobed_8".to_owned()), ..number() };
    let refused = |file: &str, trigger: &HistTrigger, triggers: usize| {
        HistTable::parse(file.as_bytes(), trigger, triggers).unwrap_err().to_string()
    };
    assert_eq!(refused(&both, &none, 2), "there are 0 tables of the trigger instead of one");
    let twice = format!("{both}{both}");
    assert_eq!(refused(&twice, &number(), 4), "there are 2 tables of the trigger instead of one");
}

#[test]
fn totals_are_numbers_as_the_kernel_prints_them() {
    let trigger = trigger(vec![key("a", KeyForm::Number)], &[]);
    let good = file("kprobed_7", "", 0, 0, 0);
    HistTable::parse(good.as_bytes(), &trigger, 1).unwrap();
    for bad in ["00", "+0", " 0"] {
        let bad = good.replace("Entries: 0", &format!("Entries: {bad}"));
        let refused = HistTable::parse(bad.as_bytes(), &trigger, 1).unwrap_err();
        assert_eq!(refused.to_string(), "the table has no totals");
    }
}

#[test]
fn what_a_name_smuggles_in_is_not_believed() {
    let keys = || vec![key("path", KeyForm::Text), key("dfd", KeyForm::Number)];
    // A file name with a line break is a file name.
    let rows = "{ path: a\nb, dfd: 5                                           , dfd:          3 } hitcount:          1\n";
    let table =
        HistTable::parse(file("kprobed_7", rows, 1, 1, 0).as_bytes(), &trigger(keys(), &[]), 1).unwrap();
    assert_eq!(table.rows[0].keys, [text("a\nb, dfd: 5"), HistValue::Number(3)]);
    // One that looks like two rows is refused, and so is one that looks like the end or like
    // another table.
    for name in [
        "a, dfd: 1 } hitcount: 99\n{ path: b",
        "a, dfd: 1 } hitcount: 1\n\nTotals:\n    Hits: 1\n    Entries: 1\n    Dropped: 0\n\n# event histogram\n#\n# trigger info: x",
        "x\n# event histogram\n#\n# trigger info: hist:keys=a:kprobed_7=0\n#\n\n",
    ] {
        let rows = format!("{{ path: {name:<50}, dfd:          3 }} hitcount:          1\n");
        let table = HistTable::parse(file("kprobed_7", &rows, 1, 1, 0).as_bytes(), &trigger(keys(), &[]), 1);
        assert!(table.is_err(), "{table:?}");
    }
    // Two ways to read a row are none.
    let two = vec![key("path", KeyForm::Text), key("common_pid", KeyForm::Execname)];
    let rows = "{ path: a, common_pid: b, common_pid: c               [         1] } hitcount:          1\n";
    let table = HistTable::parse(file("kprobed_7", rows, 1, 1, 0).as_bytes(), &trigger(two, &[]), 1);
    assert!(table.unwrap_err().to_string().starts_with("a row cannot be understood: `{ path: a, "));
}

/// A value as the kernel prints it.
fn printed(value: &HistValue) -> Vec<u8> {
    match value {
        HistValue::Number(number) => format!("{number:>10}").into(),
        HistValue::Log2(exponent) => format!("~ 2^{exponent:<2}").into(),
        HistValue::Bucket(first, last) => format!("~ {first}-{last}").into(),
        HistValue::Symbol(symbol) => format!("[ffffffff81000000] {symbol:<55}").into(),
        HistValue::Thread { tid, comm } => {
            let mut text = comm.clone();
            text.resize(text.len().max(16), b' ');
            text.extend(format!("[{tid:>10}]").bytes());
            text
        }
        HistValue::Text(bytes) => {
            let mut text = bytes.clone();
            text.resize(text.len().max(50), b' ');
            text
        }
        HistValue::Stack(frames) => {
            frames.iter().flat_map(|f| format!("         {f}\n").into_bytes()).collect()
        }
    }
}

fn any_key() -> impl Strategy<Value = (KeyForm, BoxedStrategy<HistValue>)> {
    let name = || prop::collection::vec(33_u8..=255, 1..20);
    prop_oneof![
        Just((KeyForm::Number, any::<u64>().prop_map(HistValue::Number).boxed())),
        Just((KeyForm::Log2, (0_u8..=64).prop_map(HistValue::Log2).boxed())),
        Just((
            KeyForm::Buckets(3),
            any::<(u64, u64)>().prop_map(|(first, last)| HistValue::Bucket(first, last)).boxed()
        )),
        Just((KeyForm::Symbol, "[a-z_.0-9]{1,70}( \\[[a-z]{1,9}\\])?".prop_map(HistValue::Symbol).boxed())),
        Just((
            KeyForm::Execname,
            (0..=4_194_304_u32, prop::collection::vec(33_u8..=255, 1..16))
                .prop_map(|(tid, comm)| HistValue::Thread { tid, comm })
                .boxed()
        )),
        Just((KeyForm::Text, name().prop_map(HistValue::Text).boxed())),
    ]
}

proptest! {
    #[test]
    fn what_the_kernel_prints_is_read_back(
        (forms, rows, sums) in prop::collection::vec(any_key(), 1..=3).prop_flat_map(|keys| {
            let forms: Vec<_> = keys.iter().map(|(form, _)| *form).collect();
            let values: Vec<_> = keys.into_iter().map(|(_, value)| value).collect();
            let row = (values, any::<u64>(), any::<[u64; 2]>());
            (Just(forms), prop::collection::vec(row, 0..5), 0_usize..=2)
        }),
        dropped in any::<u64>(),
    ) {
        let names = ["n", "m_2"];
        let keys: Vec<_> = forms.iter().enumerate().map(|(i, form)| key(&format!("k{i}"), *form)).collect();
        let trigger = trigger(keys, &names[..sums]);
        let mut text = Vec::new();
        for (values, hits, numbers) in &rows {
            text.extend(b"{ ");
            for (i, value) in values.iter().enumerate() {
                text.extend(format!("{}k{i}: ", if i == 0 { "" } else { ", " }).bytes());
                text.extend(printed(value));
            }
            text.extend(format!(" }} hitcount: {hits:>10}").bytes());
            for (name, number) in names.iter().zip(numbers).take(sums) {
                text.extend(format!("  {name}: {number:>10}").bytes());
            }
            text.push(b'\n');
        }
        let head = file("kprobed_7", "\u{1}", 1, rows.len(), dropped);
        let (before, after) = head.split_once('\u{1}').unwrap();
        let bytes = [before.as_bytes(), &text, after.as_bytes()].concat();
        let table = HistTable::parse(&bytes, &trigger, 1).unwrap();
        prop_assert_eq!(table.dropped, dropped);
        prop_assert_eq!(table.rows.len(), rows.len());
        for (row, (values, hits, numbers)) in table.rows.iter().zip(&rows) {
            prop_assert_eq!(&row.keys, values);
            prop_assert_eq!(row.hits, *hits);
            prop_assert_eq!(row.sums.as_slice(), &numbers[..sums]);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let trigger = trigger(vec![key("k", KeyForm::Text), key("p", KeyForm::Execname)], &["n"]);
        let row = [b"{ k: ".as_slice(), &bytes, b", p: x[1] } hitcount: 1  n: 2\n"].concat();
        let whole = file("kprobed_7", &String::from_utf8_lossy(&row), 1, 1, 0);
        for input in [bytes.as_slice(), whole.as_bytes()] {
            if let Ok(table) = HistTable::parse(input, &trigger, 1) {
                prop_assert!(table.rows.iter().all(|row| row.keys.len() == 2 && row.sums.len() == 1));
            }
        }
    }
}
