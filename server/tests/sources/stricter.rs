//! Test of the rules by which kprobed is stricter than the kernel: the list is complete, and the pages have it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use self::list::Example::{Line, Words};
use self::list::{STRICTER, Stricter, examples};
use kprobed_lang::definition::{Code, Features, RefusedBy, parse};

#[path = "../../fixtures/stricter.rs"]
mod list;

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
    let rules = Code::ALL.iter().filter(|code| {
        let is_own = code.refused_by() == RefusedBy::Kprobed && !OF_OTHER_LANGUAGES.contains(code);
        is_own || SOMETIMES.contains(code)
    });
    assert_eq!(listed, rules.map(|code| code.name()).collect::<BTreeSet<_>>());
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
    let help = include_str!("../../../client/kprobectl/src/command/help/check.txt");
    assert!(STRICTER.iter().all(|rule| help.contains(rule.code)), "`kprobectl help check` names all of them");
}
