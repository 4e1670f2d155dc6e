//! Tests of refusals: code, position, errno and hint.

use super::{v6_1, v6_12, v7_3};
use crate::definition::{Code, Features, RefusedBy, Severity, Span, parse};

/// Asserts the first problem of a text in which `^` marks the caret, like the kernel's own selftest
/// does.
fn refuse(marked: &str, name: &str, errno: i32, features: &Features) {
    let caret = marked.find('^').unwrap();
    let text = marked.replacen('^', "", 1);
    let problems = parse(&text, features).expect_err(&text);
    let first = &problems[0];
    assert_eq!((first.code.name(), first.span.start), (name, caret), "{text}: {first}");
    assert_eq!(first.errno, errno, "{text}");
    assert_eq!(first.kernel_position(&text), caret, "{text}");
    assert!(first.hint.is_some(), "{text}: no hint");
}

const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const E2BIG: i32 = 7;

/// tools/testing/selftests/ftrace/test.d/kprobe/kprobe_syntax_errors.tc, as far as the text alone
/// shows the error.
#[test]
fn syntax_errors_of_the_kernel_selftest() {
    let long = "1".repeat(65);
    let rows = [
        ("r^1a111 vfs_read", "BAD_MAXACT"),
        ("r^0 vfs_read", "BAD_MAXACT"),
        ("r^100000 vfs_read", "MAXACT_TOO_BIG"),
        ("p ^hoge-fuga", "BAD_PROBE_ADDR"),
        ("p ^hoge+1000-1000", "BAD_PROBE_ADDR"),
        ("p:^/bar vfs_read", "NO_GROUP_NAME"),
        (&format!("p:^{long}/bar vfs_read"), "GROUP_TOO_LONG"),
        ("p:^foo.1/bar vfs_read", "BAD_GROUP_NAME"),
        ("p:^ vfs_read", "NO_EVENT_NAME"),
        (&format!("p:foo/^{long} vfs_read"), "EVENT_TOO_LONG"),
        ("p:foo/^bar.1 vfs_read", "BAD_EVENT_NAME"),
        ("p vfs_read ^$retval", "RETVAL_ON_PROBE"),
        ("p vfs_read ^$stack10000", "BAD_STACK_NUM"),
        ("p vfs_read ^$none_var", "BAD_VAR"),
        ("p vfs_read ^%none_reg", "BAD_REG_NAME"),
        ("p vfs_read ^@12345678abcde", "BAD_MEM_ADDR"),
        ("p vfs_read ^@+10", "FILE_ON_KPROBE"),
        ("p vfs_read arg1=\\^x", "BAD_IMM"),
        ("p vfs_read arg1=\\\"abcd^", "IMMSTR_NO_CLOSE"),
        ("p vfs_read ^+0@0)", "DEREF_NEED_BRACE"),
        ("p vfs_read ^+0ab1(@0)", "BAD_DEREF_OFFS"),
        ("p vfs_read ^+(%di)", "BAD_DEREF_OFFS"),
        ("p vfs_read +0(+0(@0^)", "DEREF_OPEN_BRACE"),
        ("p vfs_read +0(^$comm)", "COMM_CANT_DEREF"),
        ("p vfs_read ^&1", "BAD_FETCH_ARG"),
        ("p vfs_read +0(@11):u8[10^", "ARRAY_NO_CLOSE"),
        ("p vfs_read +0(@11):u8[10]^a", "BAD_ARRAY_SUFFIX"),
        ("p vfs_read +0(@11):u8[^10a]", "BAD_ARRAY_NUM"),
        ("p vfs_read +0(@11):u8[^256]", "ARRAY_TOO_BIG"),
        ("p vfs_read @11:^unknown_type", "BAD_TYPE"),
        ("p vfs_read $stack0:^string", "BAD_STRING"),
        ("p vfs_read @11:^b10@a/16", "BAD_BITFIELD"),
        ("p vfs_read ^arg123456789012345678901234567890=@11", "ARG_NAME_TOO_LONG"),
        ("p vfs_read ^=@11", "NO_ARG_NAME"),
        ("p vfs_read ^var.1=@11", "BAD_ARG_NAME"),
        ("p vfs_read var1=@11 ^var1=@12", "USED_ARG_NAME"),
        ("p vfs_read arg1=^", "NO_ARG_BODY"),
        ("p vfs_read^%hoge", "BAD_ADDR_SUFFIX"),
        ("p vfs_read args=^$arg*", "BAD_VAR"),
        ("p vfs_read +0(^$arg*)", "BAD_VAR"),
    ];
    let nested = format!("p vfs_read +0(^{}@0{}", "+0(".repeat(13), ")".repeat(14));
    for features in [v6_1(), v6_12()] {
        for (marked, name) in &rows {
            refuse(marked, name, EINVAL, &features);
        }
        refuse(&nested, "TOO_MANY_OPS", EINVAL, &features);
    }
}

#[test]
fn syntax_errors_that_differ_between_kernels() {
    let long = format!("p vfs_read ^{}@1234{}", "+1234567(".repeat(6), ")".repeat(6));
    let (old, new) = (v6_1(), v6_12());
    refuse("p^100 vfs_read", "MAXACT_NO_KPROBE", EINVAL, &old);
    refuse("p^100 vfs_read", "BAD_MAXACT_TYPE", EINVAL, &new);
    refuse("p vfs_read ^$arg10000", "BAD_ARG_NUM", EINVAL, &old);
    refuse("p vfs_read ^$arg10000", "NO_BTFARG", ENOENT, &new);
    refuse("p vfs_read x=^$arg10000", "BAD_ARG_NUM", EINVAL, &new);
    refuse(&long, "ARG_TOO_LONG", EINVAL, &old);
    refuse(&long, "ARG_TOO_LONG", E2BIG, &new);
    refuse("p vfs_read ^$arg*", "BAD_VAR", EINVAL, &old);
    refuse("p vfs_read $arg* ^$arg*", "DOUBLE_ARGS", EINVAL, &new);
    refuse("p vfs_read ^hoge", "BAD_FETCH_ARG", EINVAL, &old);
    refuse("p vfs_read ^$argx %bad", "BAD_VAR", EINVAL, &new);
    refuse("p vfs_read %bad ^$argx", "BAD_VAR", EINVAL, &new);
    refuse("r vfs_read ^$arg1", "BAD_VAR", EINVAL, &old);
    refuse("p vfs_read %di:^char", "BAD_TYPE", EINVAL, &old);
    refuse("p vfs_read %di:^%pd", "BAD_TYPE", EINVAL, &old);
    refuse("p 0xffffffff81000000 ^$arg1", "BAD_VAR", EINVAL, &old);
    refuse("p 0xffffffff81000000 ^$arg1", "NOFENTRY_ARGS", EINVAL, &new);
    refuse("p 0xffffffff81000000 ^file", "NOSUP_BTFARG", EINVAL, &new);
    refuse("r:x 0xffffffff81000000 ^$retval", "RETVAL_ON_PROBE", EINVAL, &new);
    refuse("p f file^-x", "BAD_HYPHEN", EINVAL, &new);
    refuse("p f file.^x", "NOSUP_DAT_ARG", 95, &new);
    refuse("p f file->^", "NO_BTF_FIELD", ENOENT, &new);
    let nine = format!("p vfs_read {}^+0(@0){}", "+0(".repeat(8), ")".repeat(8));
    refuse(&nine, "TOO_MANY_NESTED", E2BIG, &v7_3());
    for newer in ["x=^(task_struct)file->comm", "x=^this_cpu_ptr(@a)", "x=^$current"] {
        refuse(&format!("p f {newer}"), "UNSUPPORTED_FEATURE", EINVAL, &v7_3());
    }
}

#[test]
fn types_that_do_not_suit() {
    for features in [v6_1(), v6_12()] {
        refuse("p f $comm:^u8", "NEED_STRING_TYPE", EINVAL, &features);
        refuse("p f \\\"a\":^string[2]", "NEED_STRING_TYPE", EINVAL, &features);
        refuse("p f %di:^u8[4]", "BAD_STRING", EINVAL, &features);
        refuse("p f +u0(%di):^u8[4]", "BAD_STRING", EINVAL, &features);
        refuse("p f $stack:^symstr", "BAD_SYMSTRING", EINVAL, &features);
        refuse("p f %di:^b9@0/8", "BAD_BITFIELD", EINVAL, &features);
        refuse("p f %di:^b0@0/8", "BAD_BITFIELD", EINVAL, &features);
        refuse("p f %di:^b1@0/9", "BAD_TYPE", EINVAL, &features);
        // 2^64 + 9 and 2^64: the kernel keeps the lowest 64 bits.
        refuse("p f %di:^b18446744073709551625@0/8", "BAD_BITFIELD", EINVAL, &features);
        refuse("p f %di:^b18446744073709551616@0/8", "BAD_BITFIELD", EINVAL, &features);
        refuse("p f %di:^b2@18446744073709551615/8", "BAD_BITFIELD", EINVAL, &features);
        let by = |text: &str| parse(text, &features).unwrap_err().remove(0).by;
        assert_eq!(by("p f %di:b2@18446744073709551615/8"), RefusedBy::Kprobed);
        assert_eq!(by("p f %di:b9@0/8"), RefusedBy::Kernel);
        refuse("p f %di:^", "BAD_TYPE", EINVAL, &features);
    }
    refuse("r f $arg1:^symstr", "BAD_SYMSTRING", EINVAL, &v6_12());
}

#[test]
fn what_the_kernel_lets_through_and_we_do_not() {
    for features in [v6_1(), v6_12()] {
        refuse("p^garbage:x vfs_read", "IGNORED_TEXT", EINVAL, &features);
        refuse("p f +0(%di)^junk", "IGNORED_TEXT", EINVAL, &features);
        refuse("p f ^+0x100000000(%di)", "OFFSET_TRUNCATED", EINVAL, &features);
        refuse("p:g/^enable f", "RESERVED_EVENT_NAME", EINVAL, &features);
        refuse("p:^filter f", "RESERVED_EVENT_NAME", EINVAL, &features);
        refuse("p:^header_page/x f", "RESERVED_GROUP_NAME", EINVAL, &features);
        refuse("p f ^__kpd_end=%di", "RESERVED_ARG_NAME", EINVAL, &features);
        refuse("p ^:f", "NO_MODULE_NAME", EINVAL, &features);
        refuse("p ^/bin/sh:0x10", "UNSUPPORTED_FEATURE", EINVAL, &features);
        refuse("^x f", "UNKNOWN_COMMAND", EINVAL, &features);
    }
    // With a suffix it is a name, and no function has it.
    refuse("p ^0xffffffff81000000%return", "BAD_PROBE_ADDR", ENOENT, &v6_1());
    refuse("p ^0xffffffff81000000%return", "BAD_PROBE_ADDR", EINVAL, &v6_12());
}

#[test]
fn lines_and_words() {
    let code = |text: &str| parse(text, &v6_12()).expect_err(text)[0].code;
    assert_eq!(code(""), Code::NoDefinition);
    assert_eq!(code("# nothing\n\n"), Code::NoDefinition);
    assert_eq!(code("p f\np g"), Code::SeveralLines);
    assert_eq!(code("p"), Code::NoPlace);
    assert_eq!(code("p f \\\"a b\""), Code::ImmstrNoClose);
    assert_eq!(code("p f \\\"a#b\""), Code::ImmstrNoClose);
    assert_eq!(code("p f\0"), Code::BadCharacter);
    assert_eq!(code("p f \\\"à\""), Code::BadCharacter);
    assert_eq!(code(&format!("p f {}", "%di ".repeat(1100))), Code::LineTooLong);
    assert!(parse("\n# first\n  p f # second\n\n", &v6_12()).is_ok());
    let at_most = (0..128).map(|n| format!("a{n}=%di")).collect::<Vec<_>>().join(" ");
    assert!(parse(&format!("p f {at_most}"), &v6_12()).is_ok());
    assert_eq!(code(&format!("p f {at_most} b=%di")), Code::TooManyArgs);
    let large = (0..7).map(|n| format!("a{n}=+0(%di):u64[64]")).collect::<Vec<_>>().join(" ");
    assert_eq!(code(&format!("p f {large}")), Code::EventTooBig);
}

#[test]
fn several_problems_at_once_in_the_order_of_the_kernel() {
    let text = "r0:g/e.e f%x %rdi +0(%ax ok=%di";
    let problems = parse(text, &v6_12()).unwrap_err();
    let names: Vec<_> = problems.iter().map(|problem| problem.code.name()).collect();
    assert_eq!(
        names,
        ["BAD_MAXACT", "BAD_ADDR_SUFFIX", "BAD_EVENT_NAME", "BAD_REG_NAME", "DEREF_OPEN_BRACE"]
    );
    assert_eq!(problems[3].hint.as_deref(), Some("write `%di`"));
}

#[test]
fn the_span_is_in_the_text_and_the_kernels_caret_in_its_line() {
    let text = "# c\np f \té=%di";
    let problem = &parse(text, &v6_12()).unwrap_err()[0];
    assert_eq!(problem.span, Span::new(9, 11));
    assert_eq!((problem.code.name(), problem.to_string().as_str()), ("BAD_ARG_NAME", "`é` is not a name"));
    assert!(problem.hint.is_some());
    assert_eq!(problem.severity, Severity::Error);
    assert_eq!(problem.kernel_position(text), "p f ".len());
}

#[test]
fn kernel_texts_and_back() {
    for code in Code::ALL {
        if !code.kernel_text().is_empty() {
            assert_eq!(Code::from_kernel_text(code.kernel_text()), Some(*code));
            assert!(!code.hint().is_empty(), "{}", code.name());
        }
    }
    assert_eq!(Code::from_kernel_text("The symbol is not unique"), Some(Code::NonUniqSymbol));
    assert_eq!(Code::from_kernel_text("Failed to register probe event"), Some(Code::FailRegProbe));
    assert_eq!(Code::from_kernel_text(""), None);
    assert_eq!(Code::from_kernel_text("something of tomorrow"), None);
}

/// Hints list what this kernel has, and know what a shell does.
#[test]
fn hints_are_those_of_this_kernel() {
    let hint = |text: &str, features: &Features| parse(text, features).unwrap_err()[0].hint.clone().unwrap();
    let newest = hint("p f x=%di:nonsense", &v6_12());
    assert_eq!(
        newest,
        "there are u8 to u64, s8 to s64, x8 to x64, char, symbol, symstr, string, ustring, %pd, %pD, bWIDTH@OFFSET/SIZE, and arrays of them"
    );
    let oldest = hint("p f x=%di:nonsense", &Features::from_readme(""));
    assert!(!["char", "symstr", "ustring", "%pd"].iter().any(|ty| oldest.contains(ty)), "{oldest}");
    assert!(hint("p f x=%di:path", &v6_12()).contains("`%pd`"));
    // An old kernel whose types are known has paths, in place of the types of newer kernels.
    let old = Features::from_readme("ustring");
    assert!(hint("p f x=%di:%pD", &old).contains("through its offsets"));
    assert!(hint("p f x=%di:%pD", &old.with_types(true)).contains("write `path` for the whole path"));
    assert!(hint("p:a~b/e f", &v6_12()).contains("`_` and `-`"));
    assert!(!hint("p:a~b/e f", &Features::from_readme("")).contains('-'));
    // What is left of `f=+0($arg2):ustring`, `f=$arg1:u8` and `f=$arg1` in double quotes.
    for text in ["p f f=+0():ustring", "p f f=:u8", "p f f="] {
        assert!(hint(text, &v6_12()).contains("single quotes"), "{text}");
    }
    for (text, line) in [
        ("vfs_read+0x10", "write `p vfs_read+0x10`"),
        ("sys_read %di", "write `p sys_read %di`"),
        ("vfs_read%return $retval", "write `p vfs_read%return $retval`"),
        ("pipe_read %di", "write `p pipe_read %di`"),
        ("remove_one", "write `p remove_one`"),
        ("mod:f", "a definition starts with `p` (probe), `r` (return probe) or `-:` (delete)"),
        ("pjunk:x f", "remove it"),
    ] {
        assert_eq!(hint(text, &v6_12()), line, "{text}");
    }
}
