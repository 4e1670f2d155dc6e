//! Tests of definitions that the kernel accepts and that harm it.

use super::{probe, v6_1, v6_12, v7_3};
use crate::definition::dangerous::{TABLE, Treatment};
use crate::definition::guard::guarded;
use crate::definition::{Code, Diagnostic, Features, RefusedBy, Severity, parse};

fn refusal(text: &str, features: &Features) -> Option<Diagnostic> {
    parse(text, features).err().and_then(|problems| problems.into_iter().next())
}

#[test]
fn symbol_strings_are_never_written() {
    for features in [v6_1(), v6_12(), v7_3()] {
        for argument in ["%si:symstr", "$stack3:symstr", "+0(%di):symstr", "+8(+0(%di)):symstr"] {
            let definition = probe(&format!("p:m/e fput c={argument} x=$comm"), &features);
            assert!(definition.render("m", "e").contains(":symstr"), "what the user wrote stays");
            let line = guarded(&definition, &features).definition.render("m", "e");
            assert!(
                line.starts_with(&format!("p:m/e fput c={}", argument.replace("symstr", "symbol"))),
                "{line}"
            );
            assert!(!line.contains("symstr"), "{line}");
        }
    }
}

#[test]
fn numbers_of_arguments_that_the_kernel_would_cut_are_refused() {
    for number in [
        "0",
        "2049",
        "100000",
        "2147483647",
        "2147483649",
        "4294967296",
        "4294967297",
        "99999999999999999999",
    ] {
        for text in
            [format!("p f $arg{number}"), format!("p f $arg{number}:u8"), format!("p f %di $arg{number}:%pd")]
        {
            for features in [v6_1(), v6_12(), v7_3()] {
                let problem = refusal(&text, &features).unwrap_or_else(|| panic!("{text} is taken"));
                assert_eq!(problem.severity, Severity::Error);
            }
        }
    }
}

#[test]
fn arrays_of_strings_need_a_kernel_with_the_fix() {
    let fixed = [
        ("5.10.0-32-amd64", "#1 SMP Debian 5.10.223-1 (2024-08-10)"),
        ("5.10.188", "#1 SMP"),
        ("5.15.121-generic", "#1"),
        ("6.1.0-25-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.106-3 (2024-08-26)"),
        ("6.4.5-arch1-1", "#1"),
        ("6.5.0", "#1"),
        ("7.2", "#1"),
    ];
    let not_proven = [
        ("5.10.0-20-amd64", "#1 SMP Debian 5.10.158-2 (2022-12-13)"),
        ("5.15.0-91-generic", "#101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023"),
        ("6.1.39", "#1"),
        ("6.2.16", "#1"),
        ("6.4.4", "#1"),
        ("4.19.300", "#1"),
        ("unheard-of", ""),
    ];
    let definition = "p f a=+0(+8(%si)):string[4]";
    for (release, version) in fixed {
        let features = Features::from_readme("ustring").with_version(release, version);
        assert_eq!(refusal(definition, &features), None, "{release}");
    }
    // These had `symstr`, which otherwise shows the fixes, before they had the fixes.
    for release in ["6.2.0-39-generic", "6.3.13", "6.4.4", "6.4.0-4-amd64"] {
        let features = Features::from_readme("ustring symstr").with_version(release, "#1 SMP");
        assert!(refusal(definition, &features).is_some() && !features.fault_marks, "{release}");
    }
    for release in ["6.1.43", "5.15.124", "6.4.5"] {
        let features = Features::from_readme("ustring symstr").with_version(release, "#1 SMP");
        assert!(refusal(definition, &features).is_none() && features.fault_marks, "{release}");
    }
    for (release, version) in not_proven {
        let features = Features::from_readme("ustring").with_version(release, version);
        let problem = refusal(definition, &features).unwrap();
        assert_eq!(problem.code, Code::DangerousArray, "{release}");
        assert_eq!(&definition[problem.span.range()], "string[4]");
        assert_eq!(refusal("p f a=+0(+8(%si)):string b=+0(%si):u8[4]", &features), None);
    }
    assert_eq!(refusal(definition, &v6_1()), None);
    assert_eq!(refusal(definition, &v6_12()), None);
}

#[test]
fn the_vsyscall_page_is_not_read() {
    let refused = [
        "@0xffffffffff600000",
        "@0xffffffffff600fff:u8",
        "@0xffffffffff5fffff:u16",
        "@0xffffffffff5ffe00:u64[64]",
        "+0(@0xffffffffff600008)",
        "+0(\\0xffffffffff600000)",
        "+16(+8(\\0xffffffffff600000)):string",
        "-8(\\-10485752)",
    ];
    for argument in refused {
        let text = format!("p f {argument}");
        let problem = refusal(&text, &v6_12()).unwrap_or_else(|| panic!("{text} is taken"));
        assert_eq!(problem.code, Code::DangerousMemory, "{text}");
        assert!(text[problem.span.range()].len() > 8);
    }
    for argument in
        ["@0xffffffffff601000", "@0xffffffffff5ff000", "+u0(\\0xffffffffff600000)", "\\0xffffffffff600000"]
    {
        assert_eq!(refusal(&format!("p f {argument}"), &v6_12()), None, "{argument}");
    }
}

#[test]
fn every_danger_is_told_and_treated() {
    for danger in TABLE {
        assert!(![danger.pattern, danger.harm, danger.function, danger.kernels].contains(&""));
        assert!(danger.function.contains(".c:") || danger.function.contains(".h:"), "{danger:?}");
        if let Treatment::Refused(code) = danger.treatment {
            assert!(!code.hint().is_empty(), "{danger:?}");
        }
    }
    assert!(refusal("p:g/enable f", &v6_12()).is_some_and(|problem| problem.code == Code::ReservedEventName));
    let many = format!("p f{}", " %di".repeat(129));
    assert!(refusal(&many, &v6_12()).is_some_and(|problem| problem.code == Code::TooManyArgs));
}

#[test]
fn the_kernel_is_said_to_refuse_many_arguments_only_where_it_does() {
    let many = format!("p f{}", " %di".repeat(129));
    let by = |features: Features, release: &str, version: &str| {
        refusal(&many, &features.with_version(release, version)).unwrap().by
    };
    for release in ["6.6.59", "6.11.6", "6.12.0-rc1", "7.2.0"] {
        assert_eq!(by(v6_12(), release, "#1 SMP"), RefusedBy::Kernel, "{release}");
    }
    assert_eq!(by(v6_12(), "6.11.10-amd64", "#1 SMP Debian 6.11.10-1"), RefusedBy::Kernel);
    for release in ["6.5.13", "6.6.58", "6.10.14", "6.11.5", "unheard-of"] {
        assert_eq!(by(v6_12(), release, "#1 SMP"), RefusedBy::Kprobed, "{release}");
    }
    assert_eq!(by(v6_1(), "6.1.170", "#1 SMP"), RefusedBy::Kprobed);
}
