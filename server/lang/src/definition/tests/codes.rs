//! Test of the page of codes: its examples are refused, or warned of, with the code above them.

use super::{v6_1, v6_12, v7_3};
use crate::definition::{Code, Definition, Diagnostic, Features, parse_any};

const PAGE: &str = include_str!("../../../../../deploy/docs/reference/codes.md");

/// The codes of the page with their entries.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.split("\n### ").skip(1).filter_map(|entry| entry.split_once('\n'))
}

/// The codes of what is wrong with a text, or doubtful.
fn codes(text: &str, features: &Features) -> Vec<&'static str> {
    let problems: Vec<Diagnostic> = match parse_any(text, features).result {
        Ok(Definition::Probe(probe)) => probe.warnings,
        Ok(Definition::Delete(_)) => Vec::new(),
        Err(problems) => problems,
    };
    problems.iter().map(|problem| problem.code.name()).collect()
}

#[test]
fn examples_of_the_page_have_their_codes() {
    let kernels = [Features::from_readme(""), v6_1(), v6_12(), v7_3()];
    let mut examples = 0;
    for (code, entry) in entries() {
        for line in entry.lines().filter_map(|line| line.strip_prefix("    ")) {
            examples += 1;
            let found: Vec<_> = kernels.iter().map(|kernel| codes(line, kernel)).collect();
            assert!(found.iter().any(|found| found.contains(&code)), "{code}: {line}: {found:?}");
        }
    }
    assert!(examples > 60, "{examples}");
}

#[test]
fn every_code_has_an_entry_with_a_fix() {
    for code in Code::ALL {
        let entry = entries().find(|(name, _)| *name == code.name());
        assert!(entry.is_some_and(|(_, text)| text.contains("\nFix: ")), "{}", code.name());
    }
}
