//! Tests of dialects: which one a text is in, and what it becomes.

use super::{v6_1, v6_12};
use crate::definition::{Code, Definition, Dialect, Features, ProbeDefinition, parse_any, parse_as};

/// The only dialect and the canonical line of a text.
fn read(text: &str, features: &Features) -> (Dialect, String) {
    let reading = parse_any(text, features);
    match reading.result {
        Ok(Definition::Probe(probe)) => (reading.dialect, probe.render("g", "e")),
        Ok(Definition::Delete(_)) => (reading.dialect, "-".to_owned()),
        Err(problems) => (reading.dialect, problems[0].to_string()),
    }
}

fn old(text: &str, features: &Features) -> ProbeDefinition {
    match parse_as(Dialect::Legacy, text, features).result {
        Ok(Definition::Probe(probe)) => probe,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_dialect_is_recognised() {
    let cases = [
        ("p vfs_read", Dialect::Kernel),
        ("r100:x vfs_read $retval", Dialect::Kernel),
        ("-:x", Dialect::Kernel),
        ("p:x f a=+0(%di)", Dialect::Kernel),
        ("# (\n p f +0(%di)", Dialect::Kernel),
        ("pjunk f +0(%di)", Dialect::Kernel),
        ("vfs_read", Dialect::Kernel),
        ("f()", Dialect::Prototype),
        ("\n  ip_rcv (x64 skb) # (", Dialect::Prototype),
        ("p(int a)", Dialect::Prototype),
        ("path_openat.part.0(int a)", Dialect::Prototype),
        ("void f(int a)", Dialect::Prototype),
        ("mod:f(int a)", Dialect::Prototype),
    ];
    for (text, dialect) in cases {
        for features in [v6_1(), v6_12()] {
            assert_eq!(parse_any(text, &features).dialect, dialect, "{text}");
        }
    }
}

#[test]
fn words_of_2009_where_the_kernel_makes_nothing_of_them() {
    let cases = [
        ("p:myprobe do_sys_open a0 a1 a2 a3", "p:g/e do_sys_open a0=$arg1 a1=$arg2 a2=$arg3 a3=$arg4"),
        (
            "p:myprobe do_sys_open dfd=a0 filename=a1 flags=a2 mode=a3",
            "p:g/e do_sys_open dfd=$arg1 filename=$arg2 flags=$arg3 mode=$arg4",
        ),
        ("r:myretprobe do_sys_open rv ra", "r:g/e do_sys_open rv=$retval"),
        (
            "p f sa s2 x=-8(+8(a5)) +0(a1):string",
            "p:g/e f sa=$stack s2=$stack2 x=-8(+8($arg6)) +0($arg2):string",
        ),
        ("p f a0:u32 %ax @jiffies", "p:g/e f a0=$arg1:u32 %ax @jiffies"),
        // In the middle of a function the registers may have other values than the arguments.
        ("p f+4 a0 a6", "p:g/e f+4 a0=%di a6=$stack1"),
        ("p 0xffffffff81000000 a3", "p:g/e 0xffffffff81000000 a3=%cx"),
    ];
    for (text, line) in cases {
        assert_eq!(read(text, &v6_1()), (Dialect::Legacy, line.to_owned()), "{text}");
        let asked = old(text, &v6_12());
        assert_eq!(asked.render("g", "e"), line, "{text}");
    }
    // At an address even BTF has no names.
    assert_eq!(read("p 0xffffffff81000000 a3", &v6_12()).0, Dialect::Legacy);
}

#[test]
fn a_kernel_with_names_for_parameters_keeps_its_meaning() {
    let reading = parse_any("p:myprobe do_sys_open dfd=a0 filename=a1", &v6_12());
    assert_eq!(reading.dialect, Dialect::Kernel);
    let Ok(Definition::Probe(probe)) = reading.result else { panic!() };
    assert_eq!(probe.render("g", "e"), "p:g/e do_sys_open dfd=a0 filename=a1");
    assert!(probe.warnings.iter().all(|warning| warning.code == Code::OldDialect));
    assert_eq!(probe.warnings.len(), 2);
    // Without a word of 2009 both are the same.
    for text in ["p vfs_read file count", "r vfs_read $retval", "p f +8(%di):u8[4]"] {
        let (asked, plain) = (old(text, &v6_12()), parse_any(text, &v6_12()));
        assert_eq!(plain.result, Ok(Definition::Probe(asked)));
        assert_eq!(plain.dialect, Dialect::Kernel);
    }
}

#[test]
fn what_is_not_as_it_was_is_said() {
    let warnings = |text: &str, features: &Features| {
        let probe = old(text, features);
        probe
            .warnings
            .iter()
            .map(|warning| format!("{} {}", warning.span.start, warning.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        warnings("r f rv ra", &v6_1()),
        ["7 the return address is the field `__probe_ret_ip` of every event: no argument is added"]
    );
    assert_eq!(
        warnings("r f x=+4(a1) ra", &v6_12()),
        [
            "9 `a1` is the value that the argument had when the function was entered",
            "13 the return address is the field `__probe_ret_ip` of every event: no argument is added"
        ]
    );
    assert_eq!(
        warnings("p f+7 x=a0", &v6_12()),
        ["8 `a0` is read as `%di`, which holds the argument only where the function starts"]
    );
    assert!(warnings("p f a0 s1 sa", &v6_12()).is_empty());
}

#[test]
fn words_of_2009_that_can_not_be_there() {
    let refuse = |marked: &str, name: &str, features: &Features| {
        let caret = marked.find('^').unwrap();
        let text = marked.replacen('^', "", 1);
        let problems = parse_as(Dialect::Legacy, &text, features).result.unwrap_err();
        assert_eq!((problems[0].code.name(), problems[0].span.start), (name, caret), "{text}");
        assert!(problems[0].hint.is_some(), "{text}");
    };
    for features in [v6_1(), v6_12()] {
        refuse("p f ^rv", "RETVAL_ON_PROBE", &features);
        refuse("p f ^ra", "NO_EQUIVALENT", &features);
        refuse("r f x=^ra", "NO_EQUIVALENT", &features);
        refuse("r f +8(^ra)", "NO_EQUIVALENT", &features);
        refuse("p f a0 ^a0", "USED_ARG_NAME", &features);
        refuse("p f ^s5000", "BAD_STACK_NUM", &features);
        refuse("p f ^a5000", "BAD_ARG_NUM", &features);
        refuse("p f+4 ^a5000", "BAD_ARG_NUM", &features);
        // Fits as it is written, and not as the kernel gets it.
        let long = format!("p f ^x={}a1234567{}", "+1234567(".repeat(5), ")".repeat(5));
        refuse(&long.replace("a1234567", "+123456(a0)"), "ARG_TOO_LONG", &features);
    }
    refuse("r f ^a0", "BAD_VAR", &v6_1());
    // Other names are still names.
    assert!(parse_as(Dialect::Legacy, "p f file", &v6_12()).result.is_ok());
    assert!(parse_as(Dialect::Legacy, "p f file", &v6_1()).result.is_err());
}

#[test]
fn a_comment_asks_for_a_dialect() {
    let dialect = |text: &str| parse_any(text, &v6_12()).dialect;
    assert_eq!(dialect("p f a0 # dialect: 2009"), Dialect::Legacy);
    assert_eq!(dialect("# why # dialect: 2009\np f a0"), Dialect::Legacy);
    assert_eq!(dialect("p f a0 # the dialect: 2009"), Dialect::Kernel);
    assert_eq!(dialect("p f # dialect: prototype"), Dialect::Prototype);
    let text = "p f é=a0 #  dialect: 1970 ";
    let problems = parse_any(text, &v6_12()).result.unwrap_err();
    assert_eq!(&text[problems[0].span.range()], "  dialect: 1970");
    // On kernels without names for parameters, a text in the kernel's language is refused.
    assert!(parse_any("p f a0 # dialect: kernel", &v6_1()).result.is_err());
}

#[test]
fn what_is_kept_means_the_same_on_another_kernel() {
    for (text, kept) in [
        ("p f a0\n", "p f a0 # dialect: 2009"),
        ("r f rv ra # x", "r f rv ra # x # dialect: 2009"),
        ("p f %di # x\n", "p f %di # x\n"),
        ("f(int a)", "f(int a)"),
    ] {
        let reading = parse_any(text, &v6_1());
        assert_eq!(reading.pinned(text), kept);
        let again = parse_any(kept, &v6_12());
        assert_eq!(again.dialect, reading.dialect);
        assert_eq!(again.pinned(kept), kept);
    }
    let text = "p f sa";
    let kept = parse_any(text, &v6_12()).pinned(text);
    assert_eq!(kept, "p f sa # dialect: kernel");
    assert!(parse_any(&kept, &v6_1()).result.is_err());
}
