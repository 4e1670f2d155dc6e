//! Tests of hints: what a hint proposes is not refused for the same reason again.
//!
//! The lines are those that the tests of the parser and of the verdict expect to be refused, so that
//! each new test of a refusal is a test of its hint too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::tests::checker_of;
use super::{Against, CheckError, Checker};
use crate::validate::tests::typed::{NATIVE, OTHER};
use kprobed_lang::definition::Span;

/// The files of tests that have such lines.
const SOURCES: [&str; 6] = [
    "../lang/src/definition/tests/refused.rs",
    "../lang/src/definition/tests/mod.rs",
    "../lang/src/definition/tests/dialects.rs",
    "src/checker/tests.rs",
    "src/validate/tests/typed.rs",
    "src/validate/tests/rules.rs",
];

/// Lines of users, each with a mistake.
const OF_USERS: [&str; 24] = [
    "vfs_open+0x10",
    "vfs_open filename",
    "pipe_read %di",
    "r:o vfs_open fd=$retval:s32 how:ustring",
    "r:o vfs_open $arg2:ustring",
    "r:o vfs_open f=+0($arg3):ustring",
    "p:c __x64_sys_close fd",
    "p:c sys_close fd=%di",
    "p:c close",
    "p:u by_value uid.val",
    "p:u by_value two.b",
    "p:u by_value large.c",
    "p:u vfs_open path.dentry",
    "p:x vfs_opne",
    "p:x lost",
    "p:x kept",
    "p:x vfs_open path->dentyr",
    "p:x vfs_open path->dentry->d_name->len",
    "p:x vfs_open comm",
    "p:x vfs_open arg1",
    "p:x vfs_open f=%rdi",
    "p:x vfs_open f=path->dentry:path",
    "p:x vfs_open x=$arg2:int",
    "p:x vfs_open x=$arg2:size_t",
];

/// Words in capitals are to be replaced by whoever follows a hint.
fn has_placeholder(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .into_iter()
        .any(|word| word == "N" || word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase()))
}

/// The string literals of a source that are lines of the kernel's language.
fn lines_of(source: &str) -> BTreeSet<String> {
    let literals = source.split('"').skip(1).step_by(2);
    let is_line = |text: &&str| {
        let head = text.split(' ').next().unwrap_or_default();
        let is_probe = head.starts_with(['p', 'r']) && (head.len() < 4 || head.contains(':'));
        is_probe && text.contains(' ') && !text.contains(['\n', '{', '\\', '`'])
    };
    literals.filter(is_line).map(|text| text.replacen('^', "", 1)).collect()
}

/// The first problem of a line: code, place and hint. None if it is accepted.
fn problem(checker: &Checker, text: &str) -> Option<(String, Span, String)> {
    match checker.check(text) {
        Ok(outcome) => match outcome.against(None)? {
            Against::Place(refusal) => {
                let refusal = refusal.clone().or_hint(|| outcome.nearest().hint());
                Some((refusal.code.name().to_owned(), refusal.span, refusal.hint.unwrap_or_default()))
            }
            Against::Text(found) => {
                Some((found.code.name().to_owned(), found.span, found.hint.clone().unwrap_or_default()))
            }
            Against::Name(taken) => panic!("{text}: {taken:?}"),
        },
        Err(CheckError::Definition { diagnostics, .. }) => {
            let first = diagnostics.into_iter().next()?;
            Some((first.code.name().to_owned(), first.span, first.hint.unwrap_or_default()))
        }
        Err(error) => panic!("{text}: {error}"),
    }
}

/// What a hint proposes to write.
fn proposals(hint: &str) -> Vec<&str> {
    const BEFORE: [&str; 7] = [
        "write ",
        "did you mean ",
        "its current name is ",
        "has made ",
        "a part of it as ",
        "probe: ",
        " or ",
    ];
    let mut found = Vec::new();
    let mut rest = hint;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, after)) = after.split_once('`') else { break };
        let follows = BEFORE.iter().any(|words| before.ends_with(words));
        if (follows || code.starts_with("p ")) && !has_placeholder(code) {
            found.push(code);
        }
        rest = after;
    }
    found
}

/// The line with a proposal at one of the places where it can be meant, and where it is then.
fn followed(text: &str, span: Span, proposal: &str) -> Vec<(String, Span)> {
    if proposal.starts_with("p ") {
        return vec![(proposal.to_owned(), Span::new(0, proposal.len()))];
    }
    let word_start = text[..span.start].rfind(' ').map_or(0, |at| at + 1);
    let word_end = text[span.start..].find(' ').map_or(text.len(), |at| span.start + at);
    let word = &text[word_start..word_end];
    let body = word_start + word.find('=').map_or(0, |at| at + 1);
    let ty = word.find(':').map_or(word_end, |at| word_start + at);
    let before = span.start - text[..span.start].bytes().rev().take_while(|b| b"->.".contains(b)).count();
    let place = text.find(' ').map_or(0, |at| at + 1);
    let place_end = text[place..].find(' ').map_or(text.len(), |at| place + at);
    let places = [
        (span.start, span.end),
        (before, span.end),
        (word_start, word_end),
        (body, word_end),
        (body, ty),
        (place, place_end),
    ];
    let places = places.into_iter().filter(|(start, end)| start <= end);
    let line = |(start, end): (usize, usize)| {
        let line = format!("{}{proposal}{}", &text[..start], &text[end.min(text.len())..]);
        (line, Span::new(start, start + proposal.len()))
    };
    places.map(line).collect()
}

#[test]
fn no_hint_proposes_what_is_refused_for_the_same_reason() {
    let mut lines: BTreeSet<String> = OF_USERS.iter().map(|line| (*line).to_owned()).collect();
    for source in SOURCES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let found = lines_of(&fs::read_to_string(&path).unwrap());
        assert!(!found.is_empty(), "{source}");
        // Most of them are about a function that this kernel does not have.
        let moved = found.iter().filter_map(|line| {
            let (head, rest) = line.split_once(' ')?;
            let arguments = rest.split_once(' ').map(|(_, arguments)| format!(" {arguments}"));
            Some(format!("{head} vfs_open{}", arguments.unwrap_or_default()))
        });
        let moved: Vec<_> = moved.collect();
        lines.extend(found.into_iter().chain(moved));
    }
    let (mut refused, mut proposed, mut circles) = (0, BTreeSet::new(), Vec::new());
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        for line in &lines {
            let Some((code, span, hint)) = problem(&checker, line) else { continue };
            refused += 1;
            for proposal in proposals(&hint) {
                proposed.insert(proposal.to_owned());
                let ways = followed(line, span, proposal);
                // Accepted, or refused for something else than what was proposed.
                let is_good = |(way, at): &(String, Span)| {
                    let place_alone = way.split(' ').take(2).collect::<Vec<_>>().join(" ");
                    let found = problem(&checker, way);
                    let is_elsewhere = |found: Span| found.start < at.start || found.start >= at.end;
                    if proposal.starts_with("p ") {
                        let is_place = problem(&checker, &place_alone).is_some();
                        return is_place || found.is_none_or(|(other, ..)| other != code);
                    }
                    found.is_none_or(|(_, found, _)| is_elsewhere(found))
                };
                if !ways.iter().any(is_good) {
                    circles.push(format!("`{line}` ({code}): \"{hint}\"; tried {ways:?}"));
                }
            }
        }
    }
    println!("{refused} refusals, {} proposals: {proposed:?}", proposed.len());
    assert!(circles.is_empty(), "{}", circles.join("\n"));
    assert!(refused > 300 && proposed.len() > 25, "{refused} {proposed:?}");
}
