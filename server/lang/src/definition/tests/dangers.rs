//! Tests of definitions that the kernel accepts and that harm it.

use super::{probe, v6_1, v6_12, v7_3};
use crate::definition::dangerous::{STRING_ARRAY_HARM, SYMBOL_STRING_HARM, VSYSCALL_HARM};
use crate::definition::guard::guarded;
use crate::definition::{Code, Diagnostic, Features, RefusedBy, Severity, parse};

/// What the daemon does with a dangerous definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It writes another line, which records the same.
    Rewritten,
    /// It refuses the definition with this code.
    Refused(Code),
}

/// One dangerous form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Danger {
    /// The form.
    pattern: &'static str,
    /// What the kernel does with it.
    harm: &'static str,
    /// The file and function in the kernel.
    function: &'static str,
    /// Which kernels.
    kernels: &'static str,
    /// What the daemon does with it.
    treatment: Treatment,
}

/// All dangerous forms.
pub(super) const TABLE: &[Danger] = &[
    Danger {
        pattern: "ARGUMENT:symstr",
        harm: SYMBOL_STRING_HARM,
        function: "kernel/trace/trace_probe_tmpl.h:fetch_store_symstring, kernel/kallsyms.c:kallsyms_lookup_buildid",
        kernels: "all that have the type (6.2, 6.1.43 and 5.15.124), before 7.0, 6.19.12 and 6.18.22",
        treatment: Treatment::Rewritten,
    },
    Danger {
        pattern: "ARGUMENT:string[N], ARGUMENT:ustring[N]",
        harm: STRING_ARRAY_HARM,
        function: "kernel/trace/trace_probe_tmpl.h:process_fetch_insn_bottom, update_data_loc",
        kernels: "before 6.5, 6.4.5, 6.1.40, 5.15.121 and 5.10.188; and those that do not show that they are newer",
        treatment: Treatment::Refused(Code::DangerousArray),
    },
    Danger {
        pattern: "a fixed address in the vsyscall page, such as @0xffffffffff600000",
        harm: VSYSCALL_HARM,
        function: "arch/x86/mm/fault.c:do_user_addr_fault, arch/x86/mm/maccess.c:copy_from_kernel_nofault_allowed",
        kernels: "from 5.12 on CPUs with SMAP, before 6.8, 6.7.11, 6.6.23, 6.1.83 and 5.15.153",
        treatment: Treatment::Refused(Code::DangerousMemory),
    },
    // 18b1e870a496 (Linux 6.5) added the expansion. `sprint_nth_btf_arg` checks the upper limit of
    // the index only, and the index is signed. No fix is known; sources of 6.5 and of 2025 were
    // read.
    Danger {
        pattern: "$argN without a name, with N above 2147483648",
        harm: "cuts N to 32 bits, and reads before its table of parameters if the result is negative or 0",
        function: "kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg",
        kernels: "6.5 and later, if BTF has the function",
        treatment: Treatment::Refused(Code::NoBtfarg),
    },
    Danger {
        pattern: "$arg0 without a name",
        harm: "reads before its table of parameters",
        function: "kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg",
        kernels: "6.5 and later, if BTF has the function",
        treatment: Treatment::Refused(Code::BadArgNum),
    },
    // 035ba76014c0 (Linux 6.9) sets the number of arguments before 128 of them are read.
    // 73f35080477e (Linux 6.12, and 6.11.6) refuses more. 6.6.59 has both changes. Kernels without
    // them drop the arguments after the 128th.
    Danger {
        pattern: "more than 128 arguments",
        harm: "counts arguments that it does not set up, and follows their empty pointers",
        function: "kernel/trace/trace_probe.c:trace_probe_init, __set_print_fmt",
        kernels: "6.9 to 6.11.5",
        treatment: Treatment::Refused(Code::TooManyArgs),
    },
    // Linux 6.6 (27152bceea1d) moved these directories to eventfs, which does not check whether a
    // name is taken. Its lookup finds directories before files: read in a source after 6.9, not
    // verified for 6.6 to 6.9. Before 6.6, tracefs refuses to make the directory. It is not
    // verified what remains after the event is removed.
    Danger {
        pattern: "an event or a group called like a control file, such as `enable`",
        harm: "makes a directory that hides the file, so that `enable` no longer switches the group; before 6.6, makes an event without files",
        function: "kernel/trace/trace_events.c:event_create_dir, event_subsystem_dir, fs/tracefs/event_inode.c:eventfs_root_lookup",
        kernels: "all, with another harm before 6.6",
        treatment: Treatment::Refused(Code::ReservedEventName),
    },
];

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
