//! Filters that every run tries, and known differences between the kernel and the daemon.

/// A difference with its reason.
pub(super) struct Known {
    pub(super) reason: &'static str,
    /// For a text, our code, and whether the kernel is older than 6.12.
    pub(super) applies: fn(text: &str, code: &str, is_old: bool) -> bool,
}

/// What we refuse and the kernel takes.
pub(super) const REFUSED: &[Known] = &[
    Known {
        reason: "a number that the kernel would cut to the size of the field",
        applies: |_, code, _| code == "ILLEGAL_INTVAL",
    },
    Known {
        reason: "a comparison that is never or always true",
        applies: |_, code, _| code == "CONSTANT_TERM",
    },
    Known {
        reason: "a pattern that the kernel takes by the letter: it begins with a digit, or is compared by `==`",
        applies: |_, code, _| code == "LITERAL_PATTERN",
    },
    Known {
        reason: "`CPU & NUMBER` and arrays that are no number are never true in the kernel",
        applies: |text, code, _| {
            code == "ILLEGAL_FIELD_OP"
                && (text.to_ascii_lowercase().contains("cpu &") || text.contains("three"))
        },
    },
    Known {
        reason: "the kernel ignores `.ustring` for a number",
        applies: |text, code, _| code == "EXPECT_DIGIT" && text.contains(".ustring"),
    },
    Known {
        reason: "the stack is a field that never matches",
        applies: |text, code, _| code == "FIELD_NOT_FOUND" && text.contains("stacktrace"),
    },
    Known {
        reason: "`&&` and `||` with nothing behind them, which kernels took before a fix of 2026",
        applies: |text, code, _| code == "INVALID_FILTER" && text.trim_end().ends_with(['&', '|']),
    },
    Known {
        reason: "lists of CPUs that are empty, or that only the kernel knows the end of",
        applies: |_, code, _| code == "INVALID_CPULIST",
    },
];

/// What we take and the kernel refuses.
pub(super) const TAKEN: &[Known] = &[
    Known {
        reason: "6.1 knows neither `.function` nor `CPUS{}`",
        applies: |text, _, is_old| is_old && (text.contains(".function") || text.contains("CPUS{")),
    },
    CPUS,
    Known {
        reason: "the kernel reads the name of a function up to the next blank",
        applies: |text, _, _| {
            let name = |rest: &str| {
                rest.split_whitespace().next().is_some_and(|name| name.contains([')', '&', '|']))
            };
            text.split(".function").skip(1).any(|rest| rest.trim_start().get(2..).is_some_and(name))
        },
    },
];

/// What both take, and of an event for which the kernel is known to decide in another way.
pub(super) const DECISIONS: &[Known] = &[END_OF_NAME, END_IN_CLASS, ALL_CPUS];

/// What both take, and select differently of two probes.
pub(super) const SELECTIONS: &[Known] = &[END_OF_NAME, END_IN_CLASS, ALL_CPUS, FLAGS];

/// Filters whose kernel text is refused, or selects less than the daemon does.
pub(super) const PUSHED_DOWN: &[Known] = &[FLAGS, CPUS];

const END_OF_NAME: Known = Known {
    reason: "the kernel looks for the end of a task's name at the end of its array",
    applies: |text, _, _| {
        let text = text.to_ascii_lowercase();
        ["comm ~ \"*", "comm ~ \"!*"].iter().any(|begin| text.contains(begin))
    },
};

const END_IN_CLASS: Known = Known {
    reason: "before 6.12, `[!...]` also matches the end of a text",
    applies: |text, _, is_old| is_old && text.contains("[!"),
};

const ALL_CPUS: Known = Known {
    reason: "`all` CPUs of the guest are fewer than ours",
    applies: |text, _, _| text.to_ascii_lowercase().contains("cpus{all}"),
};

const FLAGS: Known = Known {
    reason: "the timer can ask for another task between two probes at one place, which is in the flags",
    applies: |text, _, _| text.contains("common_flags"),
};

const CPUS: Known = Known {
    reason: "CPUs that the guest cannot have",
    applies: |text, _, _| ["60-64", "50-300", "CPUS{64", "CPUS{8000"].iter().any(|list| text.contains(list)),
};

/// Filters with something to them, good and bad ones.
pub(super) const WRITTEN: &[&str] = &[
    "u8 == 65",
    "u8 == 256",
    "u8 < 256",
    "u8 == -1",
    "s8 == 255",
    "s8 == -1",
    "s8 < 255",
    "s16 & 0x8000",
    "s64 == 0xffffffffffffffff",
    "u64 > 0x7fffffffffffffff",
    "s64 > -0x7fffffffffffffff",
    "four == 0x41414141",
    "pair < 0",
    "one > 0x8000000000000000",
    "three == 1",
    "three != 1",
    "bits == 4",
    "text ~ \"/tmp/A*\"",
    "text ~ \"!/tmp/A*\"",
    "text ~ \"*A\"",
    "text ~ \"*AA*\"",
    "text ~ \"**\"",
    "text ~ \"*\"",
    "text == \"*\"",
    "text ~ \"\"",
    "text != \"\"",
    "text ~ \"!\"",
    "text ~ \"/tmp/[!A]*\"",
    "text ~ \"/tmp/[A-z]*\"",
    "text ~ \"/tmp/\\A*\"",
    "text ~ \"/???/*[0-9]*\"",
    "text ~ \"1*\"",
    "text ~ \"[/\"",
    "text.ustring ~ \"/tmp/*\"",
    "u8.ustring == 65",
    "u64.ustring == \"a\"",
    "task == \"cat\"",
    "task ~ \"*at\"",
    "COMM == \"cat\"",
    "comm ~ \"*at\"",
    "comm ~ \"*a[t]\"",
    "comm ~ \"c*\"",
    "comm != \"sh\"",
    "comm == 1",
    "common_pid > 1",
    "common_pid == -1",
    "common_type == 1",
    "common_flags & 0x40",
    "common_preempt_count == 255",
    "CPU == 0",
    "CPU != 0",
    "CPU > -1",
    "CPU & 1",
    "CPU & CPUS{0-3}",
    "CPU == CPUS{0}",
    "CPU == CPUS{0,1}",
    "CPU != CPUS{0,1}",
    "CPU & CPUS{all}",
    "u8 & CPUS{all}",
    "u64 & CPUS{All}",
    "CPU & CPUS{0-N}",
    "CPU & CPUS{,}",
    "CPU & CPUS{64}",
    "CPU & CPUS{8000}",
    "CPU < CPUS{1}",
    "CPU & CPUS{0-3:1/2 5,7}",
    "u8 & CPUS{2,15}",
    "u8 & CPUS{50-300}",
    "bits & CPUS{1-5}",
    "s8 & CPUS{1-15}",
    "u64 & CPUS{1-2}",
    "text & CPUS{1-2}",
    "u8 & CPUS",
    "u8 & CPUS{1",
    "__probe_ip.function == do_sys_openat2",
    "(__probe_ip.function == do_sys_openat2)",
    "__probe_ip.function != do_sys_openat2 || u8 == 65",
    "ret.function == do_sys_open",
    "u32.function == do_sys_open",
    "u64.function == \"do_sys_open\"",
    "u64.function > do_sys_open",
    "u64.function == 0x1",
    "stacktrace == 1",
    "nosuch == 1",
    "u8 == 65 || u8 == 66 && s8 == -1",
    "(u8 == 65 || u8 == 66) && s8 == -1",
    "!u8 == 65",
    "!!u8 == 65",
    "!(u8 == 65 || !(s8 < 0 && x8 > 100))",
    "! ( ! ( u8 > 60 ) || s8 >= 0 ) && text ~ '*A*'",
    "((u8 == 65))",
    "()",
    "u8 == 65 &&",
    "u8 == 65 ||",
    "&& u8 == 65",
    "u8 == 65)",
    "(u8 == 65",
    "u8 == 65 u8 == 66",
    "u8 == 65 & u8 == 66",
    "u8 = 65",
    "u8 == 65 and s8 == 1",
    "u8 === 65",
    "u8 !~ 65",
    "text !~ 'a'",
    "text == A",
    "text == \"A",
    "text < \"A\"",
    "text == 65",
    "u8 == \"A\"",
    "u8 ~ 65",
    "u8",
    "u8 ==",
    "u8 == 08",
    "u8 == 0x",
    "u8 == 0x41",
    "u8 == 0X41",
    "u8 == 0101",
    "u8 == +65",
    "u8 == 65a",
    "u8 == 000000000000000000000065",
    "u8 == 00000000000000000000065",
    "u64 == 18446744073709551616",
    "\tu8\t==\t65\t",
    "u8==65&&s8!=1||text=='a'",
    "u8==65&&!s8==-1",
    "u8.nosuch == 1",
    "u8 .ustring == 1",
];
