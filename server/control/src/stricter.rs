//! Rules by which kprobed is stricter than the kernel, each with an example.
//!
//! Owns the list that the documentation shows. Never applies a rule: definitions are checked where
//! they are parsed, judged and named.

/// A rule of kprobed's own.
#[derive(Clone, Copy, Debug)]
pub struct Stricter {
    /// Its name, in `rule` of an answer and in `reason` of an error.
    pub code: &'static str,
    /// What is refused.
    pub example: Example,
    /// What the kernel does with it.
    pub kernel: &'static str,
}

/// What a rule refuses.
#[derive(Clone, Copy, Debug)]
pub enum Example {
    /// A line that every kernel takes.
    Line(&'static str),
    /// In words: it depends on the host, or is not a single line.
    Words(&'static str),
}

use Example::{Line, Words};

/// All rules.
pub(crate) const STRICTER: &[Stricter] = &[
    rule("IGNORED_TEXT", Line("pjunk:g/e vfs_read"), "ignores the text that it does not expect"),
    rule("OFFSET_TRUNCATED", Line("p:g/e vfs_read +0x100000000(%di):u8"), "cuts the offset to 32 bits"),
    rule(
        "RESERVED_EVENT_NAME",
        Line("p:g/enable vfs_read"),
        "makes an event that collides with a control file",
    ),
    rule(
        "RESERVED_GROUP_NAME",
        Words("a group with the name of a control file, such as `header_page`"),
        "makes a group that collides with a control file",
    ),
    rule(
        "RESERVED_ARG_NAME",
        Line("p:g/e vfs_read __kpd_x=%di"),
        "takes the name, which is one of kprobed's hidden arguments",
    ),
    rule("NO_MODULE_NAME", Line("p:g/e :vfs_read"), "waits forever for a module without a name"),
    rule(
        "DANGEROUS_ARRAY",
        Words("an array of strings, such as `+0(%si):string[4]`, unless the kernel is known to have the fix"),
        "writes over other events",
    ),
    rule(
        "DANGEROUS_MEMORY",
        Words("a fixed address in the vsyscall page or up to 512 bytes before it, on every kernel"),
        "stops with an oops without the fix of Linux 6.8; with it, reads nothing there",
    ),
    rule("NEVER_ARMED", Line("p:g/e 0x1"), "takes a place or a symbol to read from that it never finds"),
    rule(
        "OUTSIDE_FUNCTION",
        Words("an offset behind the end of the function"),
        "probes the function that follows",
    ),
    rule(
        "JUMP_OVER_LANDING",
        Words(
            "a place whose breakpoint the kernel may replace by a jump over code that another function enters",
        ),
        "stops with an oops as soon as that code runs, which may be months later",
    ),
    rule(
        "EXPECTED_FAULT",
        Words(
            "an instruction with an entry in the exception table, such as one that reads memory of programs",
        ),
        "stops with an oops if it faults, and not by a page fault: any program can do that to some of them",
    ),
    rule(
        "MISJUDGED_JUMP",
        Words("a `jle` or `jg`, from Linux 5.13 on, before 6.0, 5.19.4 and 5.15.64"),
        "takes the other way than the code says",
    ),
    rule(
        "END_OF_MODULE",
        Words("a place inside of the last function of a module, if the code of that ends at an odd address"),
        "reads behind the module's last page, and stops with an oops from Linux 6.4 on",
    ),
    rule(
        "NO_INTERRUPT_TABLE",
        Words("`load_current_idt`, `idt_invalidate` and `machine_kexec`"),
        "resets the host when a CPU comes up, or another kernel is started",
    ),
    rule(
        "TOO_MANY_ARGS",
        Words("more than 128 arguments, before Linux 6.6.59, 6.11.6 and 6.12"),
        "drops the arguments behind the 128th, or writes behind its table",
    ),
    rule(
        "UNSUPPORTED_FEATURE",
        Words("typecasts, `$current` and per-CPU access of Linux 7.3"),
        "reads them; kprobed cannot check them yet",
    ),
    rule("BAD_CHARACTER", Words("a NUL byte in a line"), "ends the line there"),
    rule(
        "SEVERAL_LINES",
        Words("two definitions in one request, or a short form of several, such as `vfs_*`"),
        "defines both, and has no short forms",
    ),
    rule("NO_DEFINITION", Words("an empty line, or a comment alone"), "does nothing"),
    rule(
        "WOULD_APPEND",
        Words("the name of an event with the same arguments at another place"),
        "adds the place to that event",
    ),
    rule("PROBE_EXISTS", Words("the name of a probe of kprobed that is not in the kernel now"), "defines it"),
    rule("FOREIGN_PROBE", Words("`-:GRP/EVENT` for a probe that kprobed did not define"), "deletes it"),
    rule("DELETES_LOCATION", Words("`-:GRP/EVENT PLACE`"), "deletes one place of an event"),
];

const fn rule(code: &'static str, example: Example, kernel: &'static str) -> Stricter {
    Stricter { code, example, kernel }
}

/// The rules that a line shows: code and line.
pub fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    STRICTER.iter().filter_map(|rule| match rule.example {
        Line(line) => Some((rule.code, line)),
        Words(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;
    use kprobed_lang::definition::{Code, Features, RefusedBy, parse};
    use kprobed_verdict::validate::Rule;

    /// Problems of languages that the kernel does not know.
    const OF_OTHER_LANGUAGES: [Code; 6] = [
        Code::NoEquivalent,
        Code::UnexpectedToken,
        Code::UnexpectedEnd,
        Code::TooManyParameters,
        Code::NoSuchEvent,
        Code::EventHasNoSwitch,
    ];
    /// Codes that are kprobed's own rule only on some kernels, or for some texts.
    const SOMETIMES: [Code; 3] = [Code::TooManyArgs, Code::UnsupportedFeature, Code::BadCharacter];

    #[test]
    fn the_list_has_every_rule_and_no_other() {
        let listed: BTreeSet<_> = STRICTER.iter().map(|rule| rule.code).collect();
        assert_eq!(listed.len(), STRICTER.len());
        let of_text = Code::ALL.iter().filter(|code| {
            let is_own = code.refused_by() == RefusedBy::Kprobed && !OF_OTHER_LANGUAGES.contains(code);
            is_own || SOMETIMES.contains(code)
        });
        let of_places = Rule::ALL.iter().filter(|rule| rule.refused_by() == RefusedBy::Kprobed);
        let rules: BTreeSet<_> =
            of_text.map(|code| code.name()).chain(of_places.map(|rule| rule.name())).collect();
        assert_eq!(listed, rules);
    }

    #[test]
    fn the_examples_are_refused_by_kprobed() {
        let features = Features::from_readme("char, string, ustring");
        for (code, line) in examples() {
            // The place is not read here.
            let Err(problems) = parse(line, &features) else {
                assert_eq!(code, "NEVER_ARMED", "{line}");
                continue;
            };
            assert_eq!((problems[0].code.name(), problems[0].by), (code, RefusedBy::Kprobed), "{line}");
        }
    }

    #[test]
    fn the_documentation_has_the_list() {
        let mut table = String::from("| rule | refused | the kernel |\n|---|---|---|\n");
        for Stricter { code, example, kernel } in STRICTER {
            let example = match example {
                Line(line) => format!("`{line}`"),
                Words(words) => (*words).to_owned(),
            };
            writeln!(table, "| `{code}` | {example} | {kernel} |").unwrap();
        }
        let readme = include_str!("../../README.md");
        assert!(readme.contains(&table), "server/README.md should have:\n{table}");
        let help = include_str!("../../../client/kprobectl/src/command/check.rs");
        assert!(
            STRICTER.iter().all(|rule| help.contains(rule.code)),
            "`kprobectl help check` names all of them"
        );
    }
}
