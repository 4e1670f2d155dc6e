//! Everything that is said of a definition, as text.

use std::collections::HashSet;
use std::fmt::Write as _;

use kprobed_host::kernel::RecentFacts;
use kprobed_lang::definition::{Definition, Diagnostic};
use kprobed_verdict::checker::{Against, CheckError, CheckOutcome, Checker, DefinitionText};
use kprobed_verdict::validate::kernel_code;

/// The answer to a check, and to the other questions that parse the text.
pub(crate) fn answer(checker: &Checker, line: &str, facts: &mut RecentFacts<'_>) -> String {
    let mut out = String::new();
    match checker.check_with(line, facts) {
        Ok(outcome) => verdict(&mut out, checker, &outcome),
        Err(CheckError::Definition { diagnostics, .. }) => {
            if let Ok(Definition::Delete(delete)) = checker.definition(&DefinitionText::new(line)) {
                let named = checker.deleted_by(line, &delete).map_err(|error| error.to_string());
                writeln!(out, "  deletes {named:?}").ok();
            } else {
                writeln!(out, "  unreadable").ok();
                problems(&mut out, &diagnostics);
            }
        }
        Err(error) => {
            writeln!(out, "  no verdict: {error}").ok();
        }
    }
    match checker.explain(&DefinitionText::new(line)) {
        Ok(explanation) => {
            writeln!(out, "  explained as {explanation:?}").ok();
        }
        Err(CheckError::Definition { diagnostics, .. }) => {
            writeln!(out, "  explained as unreadable").ok();
            problems(&mut out, &diagnostics);
        }
        Err(error) => {
            writeln!(out, "  not explained: {error}").ok();
        }
    }
    match checker.parse_probe(line) {
        Ok(definition) => writeln!(out, "  read as {}", definition.render("g", "e")).ok(),
        Err(error) => writeln!(out, "  not read: {error}").ok(),
    };
    out
}

fn verdict(out: &mut String, checker: &Checker, outcome: &CheckOutcome) {
    let taken = checker.taken(outcome);
    match outcome.against(taken.as_ref()) {
        None => writeln!(out, "  accepted").ok(),
        Some(Against::Place(refusal)) => {
            let nearest = outcome.nearest().hint();
            writeln!(out, "  refused for its place ({})", kernel_code(refusal)).ok();
            problems(out, &[refusal.clone().or_hint(|| nearest)]);
            Some(())
        }
        Some(Against::Text(found)) => {
            writeln!(out, "  refused for its text").ok();
            problems(out, std::slice::from_ref(found));
            Some(())
        }
        Some(Against::Name(taken)) => {
            writeln!(out, "  refused for its name").ok();
            problems(out, std::slice::from_ref(&taken.problem));
            Some(())
        }
    };
    let is_taken = outcome.is_taken();
    let meaning = is_taken.then(|| outcome.meaning());
    let report = &outcome.report;
    writeln!(out, "  at {:?}, entry {}, arming {:?}", report.location, report.is_entry, report.arming).ok();
    writeln!(out, "  waits for {:?}, range {:?}", report.absent_module, report.code_range.is_some()).ok();
    if outcome.unread.is_empty() {
        let line = checker.new_line(&outcome.definition, &HashSet::new());
        writeln!(out, "  {} keeps {:?}", outcome.dialect.name(), outcome.text).ok();
        writeln!(out, "  kernel gets {}", line.text).ok();
        problems(out, &outcome.definition.warnings);
    } else {
        problems(out, &outcome.unread);
    }
    if let Some(meaning) = meaning {
        writeln!(out, "  means {:?}", meaning.parts).ok();
    }
}

fn problems(out: &mut String, problems: &[Diagnostic]) {
    for Diagnostic { severity, code, errno, by, span, message, hint, .. } in problems {
        let name = code.name();
        let (start, end) = (span.start, span.end);
        writeln!(out, "    {severity:?} {name} ({errno}, {by:?}) at {start}..{end}: {message} {hint:?}").ok();
    }
}
