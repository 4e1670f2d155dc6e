//! Tests of refused prototypes, and the position of each problem.

use super::{definition, v6_1, v6_12};

/// Asserts the first problem of a text in which `^` marks where it starts.
fn refuse(marked: &str, name: &str) {
    let caret = marked.find('^').unwrap();
    let text = marked.replacen('^', "", 1);
    for features in [v6_1(), v6_12()] {
        let problems = definition(&text, &features).expect_err(&text);
        let first = &problems[0];
        assert_eq!((first.code.name(), first.span.start), (name, caret), "{text}: {first}");
        assert!(first.hint.is_some(), "{text}: no hint");
    }
}

#[test]
fn what_the_parser_of_2018_refuses() {
    let rows = [
        ("ip_rcv(x64 skb, ^x86 dev)", "UNEXPECTED_TOKEN"),
        ("f^", "UNEXPECTED_END"),
        ("f(^", "UNEXPECTED_END"),
        ("f(int a^", "UNEXPECTED_END"),
        ("f(int a^ # c", "UNEXPECTED_END"),
        ("f(int^)", "UNEXPECTED_TOKEN"),
        ("f(int a,^)", "UNEXPECTED_TOKEN"),
        ("f(^,int a)", "UNEXPECTED_TOKEN"),
        ("f(^void)", "UNEXPECTED_TOKEN"),
        ("f(^struct file *f)", "UNEXPECTED_TOKEN"),
        ("f(^u128 a)", "UNEXPECTED_TOKEN"),
        ("f(unsigned ^a)", "UNEXPECTED_TOKEN"),
        ("f(unsigned ^unsigned int a)", "UNEXPECTED_TOKEN"),
        ("f(unsigned ^NULL)", "UNEXPECTED_TOKEN"),
        ("f(string^[4] a)", "UNEXPECTED_TOKEN"),
        ("f(int ^*p)", "UNEXPECTED_TOKEN"),
        ("f(int ^1a)", "UNEXPECTED_TOKEN"),
        ("f(x8[^0] a)", "UNEXPECTED_TOKEN"),
        ("f(x8[^] a)", "UNEXPECTED_TOKEN"),
        ("f(x8[^-1] a)", "UNEXPECTED_TOKEN"),
        ("f(x8[^08] a)", "UNEXPECTED_TOKEN"),
        ("f(x64[2]^[2] a)", "UNEXPECTED_TOKEN"),
        ("f(int a[^-1])", "UNEXPECTED_TOKEN"),
        ("f(int a[^])", "UNEXPECTED_TOKEN"),
        ("f(int a[1^)", "UNEXPECTED_TOKEN"),
        ("f(int a+^)", "UNEXPECTED_TOKEN"),
        ("f(int a^-8[0])", "UNEXPECTED_TOKEN"),
        ("f(int a^;)", "UNEXPECTED_TOKEN"),
        ("f(int a^.b)", "UNEXPECTED_TOKEN"),
        ("f(NULL ^| int a)", "UNEXPECTED_TOKEN"),
        ("f(NULL ^a)", "UNEXPECTED_TOKEN"),
        ("f(int a=^5)", "UNEXPECTED_TOKEN"),
        ("f(int a=^total_forks)", "UNEXPECTED_TOKEN"),
        ("f(int a=^0xzz)", "UNEXPECTED_TOKEN"),
        ("f(int a=0x10^+8)", "UNEXPECTED_TOKEN"),
        ("f(int a=0x10^[0])", "UNEXPECTED_TOKEN"),
        ("f(int a|^|int b)", "UNEXPECTED_TOKEN"),
        ("f^.part.0(string n)", "UNEXPECTED_TOKEN"),
        ("mod^:f(int a)", "UNEXPECTED_TOKEN"),
        ("f^*(int a)", "UNEXPECTED_TOKEN"),
        ("^1f(int a)", "UNEXPECTED_TOKEN"),
        ("f(int a) ^g(int b)", "UNEXPECTED_TOKEN"),
        ("f(int a, int b, int c, int d, int e, int g, ^int h)", "TOO_MANY_PARAMETERS"),
        ("f(NULL,NULL,NULL,NULL,NULL,NULL,^int a)", "TOO_MANY_PARAMETERS"),
        ("f(int a, int b, int c, int d, int e, int g, ^int m=0x10)", "TOO_MANY_PARAMETERS"),
        // In 2018 this was accepted: the address was used and the offset forgotten.
        ("f(int a+8^=0x10)", "UNEXPECTED_TOKEN"),
    ];
    for (marked, name) in rows {
        refuse(marked, name);
    }
}

#[test]
fn what_has_no_equivalent_or_breaks_a_limit_of_the_kernel() {
    refuse("f(^x64 a+8)", "NO_EQUIVALENT");
    refuse("f(x64 a^+2147483648[0])", "OFFSET_TRUNCATED");
    refuse("f(int a^[536870912])", "OFFSET_TRUNCATED");
    refuse("f(int a+^99999999999999999999[0])", "UNEXPECTED_TOKEN");
    refuse("f(^x8[10000] a)", "ARRAY_TOO_BIG");
    refuse("f(^int common_pid)", "USED_ARG_NAME");
    refuse("f(^int __kpd_a)", "RESERVED_ARG_NAME");
    refuse("f(^int a12345678901234567890123456789012)", "ARG_NAME_TOO_LONG");
    refuse(&format!("f(^x64 a{})", "[1000000]".repeat(6)), "ARG_TOO_LONG");
    refuse("^enable(int a)", "RESERVED_EVENT_NAME");
    refuse(&format!("^{}(int a)", "f".repeat(64)), "EVENT_TOO_LONG");
    refuse("f(^u64[400] a)", "EVENT_TOO_BIG");
}

#[test]
fn several_problems_at_once() {
    let text = "f(int *a, x64 b, u7 c, int d+)";
    let problems = definition(text, &v6_12()).unwrap_err();
    assert_eq!(problems.iter().map(|problem| problem.span.start).collect::<Vec<_>>(), [6, 17, 29]);
    assert_eq!(problems[1].message, "`u7` stands where a type should be");
    assert_eq!((problems[1].code.name(), &text[problems[1].span.range()]), ("UNEXPECTED_TOKEN", "u7"));
    assert!(problems[1].hint.as_ref().unwrap().starts_with("types are u8 to u64"));
}
