//! Tests of the events that filters select.

use super::*;
use crate::decode::{CompileOptions, CompiledFormat};
use kprobed_host::tracefs::format::Format;

fn event() -> Event {
    Event {
        u8: Some(200),
        s16: Some(-2),
        s32: Some(-14),
        u64: Some(u64::MAX - 1),
        s64: Some(-5),
        text: Some("/etc/passwd".to_owned()),
        pair: Some([-1, 2]),
        comm: Some("workload".to_owned()),
        tgid: Some(41),
        tid: 42,
        cpu: 3,
    }
}

fn check(cases: &[(&str, bool)]) {
    for (text, expected) in cases {
        assert_eq!(selects(text, &event()), *expected, "{text}");
    }
}

#[test]
fn numbers_have_width_and_sign() {
    check(&[
        ("u8 == 200", true),
        ("u8 == 0xc8", true),
        ("u8 > 0310", false),
        ("u8 >= 0310", true),
        ("u8 & 0x80", true),
        ("u8&0x37", false),
        ("letter == 200", true),
        ("s16 < 0", true),
        ("s16 == 0xfffe", true),
        ("s16 == -2", true),
        ("s16 != -2", false),
        ("s16 & 0x8000", true),
        ("s32 <= -14", true),
        ("s32 < -14", false),
        ("s32 == 0xfffffff2", true),
        ("u64 > 0x7fffffffffffffff", true),
        ("u64 == 18446744073709551614", true),
        ("place > 5", true),
        ("s64 > -6", true),
        ("s64 & -0x8000000000000000", true),
    ]);
}

#[test]
fn arrays_are_their_bytes() {
    // The second value is the higher byte.
    check(&[("pair == 0x2ff", true), ("pair > 0", true), ("pair == -1", false)]);
    let negative = Event { pair: Some([3, -1]), ..event() };
    assert!(selects("pair == -253", &negative) && selects("pair < 0", &negative));
    check(&[("texts == '/etc/passwd'", true)]);
}

#[test]
fn texts_and_patterns() {
    check(&[
        ("text == \"/etc/passwd\"", true),
        ("text ~ \"/etc/*\"", true),
        ("text ~ \"!/etc/*\"", false),
        ("text != '/etc'", true),
        ("text ~ '*[w]d'", true),
        ("text.ustring == '/etc/passwd'", true),
        ("comm == \"workload\"", true),
        ("COMM ~ \"*load\"", true),
        ("comm.ustring ~ 'w*'", true),
    ]);
}

#[test]
fn fields_of_all_events() {
    check(&[
        ("pid == 42 && common_pid == 42 && tgid == 41", true),
        ("common_type == 1392 && common_flags & 0x40 && common_preempt_count == 255", true),
        ("CPU == 3 && cpu < 4 && common_cpu != -1", true),
        ("CPU & CPUS{0-7:1/3}", true),
        ("CPU & CPUS{0-2,4}", false),
        ("cpu == CPUS{3}", true),
        ("pid & CPUS{40-49}", true),
        ("__probe_ip.function == one", true),
        ("__probe_ip.function != two&&pid==42", true),
        ("(__probe_ip.function == one)", true),
        ("__probe_ip.function == 0xffffffff810000ff", true),
        ("place.function == one", false),
    ]);
}

#[test]
fn what_is_the_same_for_all_events_is_folded() {
    assert!(matches!(bind("probe == \"kprobes/open\"").unwrap(), BoundFilter::Always));
    assert!(matches!(bind("probe ~ \"other/*\"").unwrap(), BoundFilter::Never));
    assert!(matches!(bind("host != 'host1' && u8 == 1").unwrap(), BoundFilter::Never));
    assert!(matches!(bind("u8 == 1 || !(host ~ 'x*')").unwrap(), BoundFilter::Always));
    assert!(matches!(bind("probe ~ '*open' && u8 == 1").unwrap(), BoundFilter::Program(_)));
    // Fields of another probe do not matter if the probe's name decides.
    let text = "(probe == 'kprobes/open' && u8 == 200) || (probe == 'kprobes/close' && fd == 1)";
    assert!(selects(text, &event()));
    assert!(bind("u8 == 200 && fd == 1").unwrap_err().is_unknown_field());
}

/// A probe whose fields have the names of common ones: `pid`, `comm`, `probe`, `CPU` and `cpu`.
fn schema_of_namesakes() -> Schema {
    let mut schema = schema();
    for (field, name) in schema.fields.iter_mut().zip(["pid", "comm", "probe", "CPU", "cpu"]) {
        name.clone_into(&mut field.name);
    }
    schema
}

#[test]
fn what_all_events_have_is_meant_whatever_a_probe_records() {
    let schema = schema_of_namesakes();
    let filter = |text: &str| Filter::parse(text).unwrap().bind(&schema, &BINDING);
    for (text, holds) in [
        (
            "comm == 'workload' && pid == 42 && cpu == 3 && CPU == 3 && tgid == 41 && probe == 'kprobes/open'",
            true,
        ),
        ("comm != \"workload\"", false),
        ("pid == 200", false),
        ("fields.pid == 200 && fields.comm == -2 && fields.probe == -14 && fields.CPU > 5", true),
        ("fields.comm == -2 && comm ~ \"work*\"", true),
        ("fields.s64 == 1 || fields.comm < 0", false),
    ] {
        match filter(text) {
            Ok(bound) => assert_eq!(bound.matches(&event()), holds, "{text}"),
            Err(error) => assert!(!holds && error.is_unknown_field(), "{text}: {error}"),
        }
    }
    let error = filter("comm == -2").unwrap_err();
    assert_eq!(error.hint, "write `fields.comm` for the field of the probe");
    let error = filter("fields.nosuch == 1").unwrap_err();
    assert!(error.hint.contains("fields.text") && !error.hint.contains("common_pid"), "{}", error.hint);
}

#[test]
fn the_kernel_gets_its_own_names_for_namesakes() {
    let schema = schema_of_namesakes();
    let kernel = |text: &str| {
        let bound = Filter::parse(text).unwrap().bind(&schema, &BINDING).unwrap();
        let features = KernelFilterFeatures { functions: true, cpu_lists: true };
        bound.kernel_text(features).text.unwrap()
    };
    assert_eq!(kernel("fields.comm == -2 && fields.pid == 200"), "comm == -2 && pid == 200");
    assert_eq!(kernel("comm == \"cat\" && pid == 42"), "COMM == \"cat\" && common_pid == 42");
    assert_eq!(kernel("cpu == 3"), "common_cpu == 3");
    // As a kernel filter the text has the kernel's meaning.
    let check = |text: &str| Filter::parse(text).unwrap().check_for_kernel(&schema, None);
    assert!(check("comm == -2 && pid == 200").is_ok());
    assert_eq!(check("fields.comm == -2").unwrap_err().code, FilterCode::UnknownSuffix);
}

#[test]
fn precedence_is_that_of_c() {
    check(&[
        ("u8 == 200 || u8 == 1 && s16 == 5", true),
        ("(u8 == 200 || u8 == 1) && s16 == 5", false),
        ("!u8 == 1 && s16 == -2", true),
        ("!(u8 == 1 && s16 == -2)", true),
        ("!!u8 == 200", true),
        ("! ( !(u8 == 200) || s16 == 1 )", true),
    ]);
}

#[test]
fn what_could_not_be_read_decides_nothing() {
    let unreadable = Event { u8: None, text: None, comm: None, tgid: None, pair: None, ..event() };
    for text in ["u8 == 1", "u8 != 1", "pair < 0", "text ~ '*'", "comm == 'x'", "tgid > 0", "u8 & CPUS{1-3}"]
    {
        assert!(!selects(text, &unreadable), "{text}");
        assert!(!selects(&format!("!({text})"), &unreadable), "not {text}");
        assert!(selects(&format!("{text} || s16 == -2"), &unreadable), "{text} or");
        assert!(selects(&format!("!({text} && s16 != -2)"), &unreadable), "{text} and");
    }
}

#[test]
fn rows_of_columns_are_events() {
    let common = "name: e\nID: 7\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
         \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:s32 n;\toffset:16;\tsize:4;\tsigned:1;\n\
         \tfield:__data_loc char[] s;\toffset:20;\tsize:4;\tsigned:1;\n\
         \nprint fmt: \"n=%d s=\\\"%s\\\"\", REC->n, __get_str(s)\n";
    let plan = CompiledFormat::compile(&Format::parse(common).unwrap(), &CompileOptions::default()).unwrap();
    let mut columns = plan.columns();
    for (number, text) in [(-3_i32, "ab\0"), (9, "")] {
        let mut record = vec![7, 0, 0x40, 1, 42, 0, 0, 0];
        record.extend(0xffff_ffff_8100_0010_u64.to_le_bytes());
        record.extend(number.to_le_bytes());
        let length = u32::try_from(text.len()).unwrap();
        record.extend((length << 16 | 0x18).to_le_bytes());
        record.extend(text.as_bytes());
        plan.decode(&record, 1, &mut columns).unwrap();
    }
    let filter = |text: &str| Filter::parse(text).unwrap().bind(plan.schema(), &BINDING).unwrap();
    let row = |row| RowOf { columns: &columns, row, cpu: 1, type_id: 7, tgid: Some(40), comm: Some(b"bash") };
    for (text, expected) in [
        ("n == -3", [true, false]),
        ("n > 0 || s == 'ab'", [true, true]),
        ("s ~ '*'", [true, false]),
        ("!(s ~ 'x*')", [true, false]),
        ("pid == 42 && tgid == 40 && comm ~ '*sh' && CPU == 1", [true, true]),
        ("common_type == 7 && common_flags == 64 && common_preempt_count & 1", [true, true]),
        ("__probe_ip.function == one", [true, true]),
    ] {
        assert_eq!([0, 1].map(|at| filter(text).matches(&row(at))), expected, "{text}");
    }
}
