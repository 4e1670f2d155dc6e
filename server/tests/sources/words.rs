//! Style of what people read: messages, help, protos, configuration, documents and comments follow
//! the style page (`server/README.md`).
//!
//! Checks string literals of the daemon and its clients, the help texts of clap, comments of protos
//! and of the code, and documents.

use std::fmt::Write as _;
use std::path::Path;

use super::pages::{self, read};

/// What no user reads, and what to write instead. Words are separated by one blank; case does not matter.
const DENIED: &[(&str, &str)] = &[
    ("can not", "cannot"),
    ("is told", "name the actor: the daemon reports ..."),
    ("are told", "name the actor: the daemon reports ..."),
    ("was told", "name the actor: the client received ..."),
    ("gone over", "switched, or hand-over"),
    ("goes over to", "switches to"),
    ("go over to", "switch to"),
    ("going over to", "switching to, or hand-over"),
    ("went over to", "switched to"),
    ("for ever", "without end, never ends, until ..."),
    ("makes no sense", "say what is wrong: malformed, out of range, ..."),
    ("make no sense", "say what is wrong: malformed, out of range, ..."),
    ("what there is", "name it"),
    ("the other side", "the receiver, the peer"),
    ("refused for good", "refused finally"),
    ("told apart", "distinguished"),
    ("now and then", "at intervals, sometimes"),
    ("of a time to come", "ahead of, in the future"),
    ("comes by", "arrives"),
    ("lets go of", "releases, closes, drops"),
    ("how many-eth", "index"),
    ("none of ours", "say whose it is"),
    ("nobody", "no client, no program"),
    ("somebody", "another program, another user"),
    ("has to be", "must be"),
    ("have to be", "must be"),
    ("stand behind", "follow"),
    ("stands behind", "follows"),
    ("for a moment", "say for how long"),
    ("that of the other", "name it"),
];

/// Those of [`DENIED`] that are ruled out in comments of the code too.
const DENIED_IN_COMMENTS: &[&str] = &[
    "can not",
    "is told",
    "are told",
    "was told",
    "gone over",
    "goes over to",
    "go over to",
    "going over to",
    "went over to",
    "for ever",
    "makes no sense",
    "make no sense",
    "what there is",
    "the other side",
    "refused for good",
    "told apart",
    "now and then",
    "of a time to come",
    "comes by",
    "lets go of",
    "how many-eth",
    "none of ours",
    "nobody",
    "somebody",
    "stand behind",
    "stands behind",
    "that of the other",
];

/// The explanations and examples of the commands.
const HELP: &str = "client/kprobectl/src/command/help/";

/// Longest line of a comment, in columns.
const COMMENT_COLUMNS: usize = 120;

/// Texts of the kernel, which are compared with what it prints.
const OF_THE_KERNEL: &[&str] = &["$comm can not be dereferenced"];

/// `X is no Y`, where plain English says `X is not a Y`. `There is no Y` is plain.
fn has_bare_negation(text: &str) -> bool {
    text.match_indices(" is no ").any(|(at, found)| {
        let (before, after) = (&text[..at], &text[at + found.len()..]);
        !before.ends_with("there")
            && !["longer ", "more ", "less ", "larger ", "smaller "]
                .iter()
                .any(|word| after.starts_with(word))
    })
}

/// Whether the phrase stands in the text as words of its own. (`nobody:` is a user's name.)
pub(super) fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != ':');
    text.match_indices(phrase).any(|(at, found)| {
        is_edge(text[..at].chars().next_back()) && is_edge(text[at + found.len()..].chars().next())
    })
}

/// A text that users read, and the line that it begins in.
struct Passage {
    line: usize,
    text: String,
}

/// All files that end like this, as paths from the root. What fuzzers are made of is not for readers.
#[cfg(test)]
fn files(ending: &str) -> impl Iterator<Item = String> {
    let is_fuzzer = |path: &String| path.split('/').any(|part| part == "fuzz");
    pages::files("", ending).into_iter().filter(move |path| !is_fuzzer(path))
}

/// The string literals of a source, and where `help` the lines that clap shows. What only tests contain is left out.
fn of_source(source: &str, help: bool) -> Vec<Passage> {
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
    let mut passages = Vec::new();
    let mut rest = product.char_indices().peekable();
    let line_of = |at: usize| product[..at].matches('\n').count() + 1;
    while let Some((at, c)) = rest.next() {
        let here = &product[at..];
        if here.starts_with("//") {
            let end = at + here.find('\n').unwrap_or(here.len());
            if help && here.starts_with("/// ") {
                passages.push(Passage { line: line_of(at), text: product[at + 4..end].to_owned() });
            }
            while rest.next_if(|(next, _)| *next < end).is_some() {}
        } else if here.starts_with("'\"'") || here.starts_with("'\\\"'") {
            while rest.next_if(|(next, _)| *next < at + 3).is_some() {}
        } else if here.starts_with("r#\"") || here.starts_with("r\"") {
            let (open, close) = if here.starts_with("r#") { (3, "\"#") } else { (2, "\"") };
            let length = here[open..].find(close).unwrap_or(here.len() - open);
            passages.push(Passage { line: line_of(at), text: here[open..open + length].to_owned() });
            let end = at + open + length + close.len();
            while rest.next_if(|(next, _)| *next < end).is_some() {}
        } else if c == '"' {
            let mut text = String::new();
            while let Some((_, c)) = rest.next() {
                match c {
                    '"' => break,
                    // A line that goes on, or a character that is written with a backslash.
                    '\\' => {
                        rest.next();
                        text.push(' ');
                    }
                    c => text.push(c),
                }
            }
            passages.push(Passage { line: line_of(at), text });
        }
    }
    passages
}

/// The lines of a document; in `comments_only`, those after `//` or `#`.
fn of_document(document: &str, comments_only: Option<&str>) -> Vec<Passage> {
    let numbered = document.lines().enumerate();
    numbered
        .filter_map(|(index, line)| {
            let text = match comments_only {
                Some(mark) => line.split_once(mark)?.1,
                None => line,
            };
            Some(Passage { line: index + 1, text: text.to_owned() })
        })
        .collect()
}

#[cfg(test)]
fn passages(inner: &str) -> Vec<Passage> {
    let extension = Path::new(inner).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_test = inner.contains("/tests/")
        || inner.contains("/fixtures/")
        || inner.ends_with("tests.rs")
        || inner.contains("/benches/");
    let read = || read(inner);
    match extension {
        _ if is_test && inner != "server/benches/README.md" => Vec::new(),
        "rs" => of_source(
            &read(),
            ["cli.rs", "global.rs", "command/"].iter().any(|path| {
                inner.strip_prefix("client/kprobectl/src/").is_some_and(|inner| inner.starts_with(path))
            }),
        ),
        "proto" => of_document(&read(), Some("//")),
        "toml" if inner.starts_with("deploy/") => of_document(&read(), Some("#")),
        "service" => of_document(&read(), Some("#")),
        // The style page shows what it rules out.
        "md" if inner != "server/README.md" => of_document(&read(), None),
        "txt" if inner.starts_with(HELP) => vec![Passage { line: 1, text: read() }],
        _ => Vec::new(),
    }
}

/// The comments of a source, each as one text: a phrase may begin on one line and end on the next.
fn comments(source: &str) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut last = None;
    for (line, text) in (1..).zip(source.lines()) {
        let Some(text) = text.trim_start().strip_prefix("//") else { continue };
        let text = text.trim_start_matches(['/', '!']);
        match passages.last_mut().filter(|_| last.is_some_and(|last| last + 1 == line)) {
            Some(passage) => passage.text += text,
            None => passages.push(Passage { line, text: text.to_owned() }),
        }
        last = Some(line);
    }
    passages
}

#[test]
fn comments_are_plain_and_short() {
    let (mut findings, mut seen) = (String::new(), 0);
    for inner in files(".rs") {
        let source = read(&inner);
        for (line, text) in (1..).zip(source.lines()) {
            let columns = text.chars().count();
            if columns > COMMENT_COLUMNS && text.trim_start().starts_with("//") {
                writeln!(findings, "{inner}:{line}: {columns} columns").unwrap();
            }
        }
        for Passage { line, text } in comments(&source) {
            seen += 1;
            let plain = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
            for phrase in DENIED_IN_COMMENTS.iter().filter(|phrase| has_phrase(&plain, phrase)) {
                writeln!(findings, "{inner}:{line}: \"{phrase}\": {plain}").unwrap();
            }
        }
    }
    assert!(seen > 3000, "only {seen} comments were found");
    assert!(findings.is_empty(), "these do not keep to server/README.md:\n{findings}");
}

#[test]
fn comments_are_found_across_lines() {
    let source =
        "//! One\n//! two.\n\nlet a = 1; // no\n    /// for\n    /// ever\n    // own\nlet b;\n// last\n";
    let found: Vec<_> = comments(source).into_iter().map(|found| (found.line, found.text)).collect();
    let expected = [(1, " One two."), (5, " for ever own"), (9, " last")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    assert!(DENIED_IN_COMMENTS.iter().all(|phrase| DENIED.iter().any(|(denied, _)| denied == phrase)));
}

#[test]
fn what_users_read_is_plain() {
    let (mut findings, mut seen, mut helps) = (String::new(), 0, 0);
    for inner in files("") {
        helps += usize::from(inner.starts_with(HELP));
        for Passage { line, text } in passages(&inner) {
            seen += 1;
            if OF_THE_KERNEL.contains(&text.as_str()) {
                continue;
            }
            let plain = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
            for (phrase, instead) in DENIED {
                if has_phrase(&plain, phrase) {
                    writeln!(findings, "{inner}:{line}: \"{phrase}\" ({instead}): {plain}").unwrap();
                }
            }
            if has_bare_negation(&format!(" {plain} ")) {
                writeln!(findings, "{inner}:{line}: \"is no\" (is not a): {plain}").unwrap();
            }
        }
    }
    assert!(seen > 3000 && helps > 30, "only {seen} passages and {helps} texts of help were found");
    assert!(findings.is_empty(), "these do not keep to server/README.md:\n{findings}");
}

/// The phrase that no file has, comments included.
#[test]
fn cannot_is_one_word() {
    let sources = files(".rs").chain(files(".sql")).chain(files(".txt"));
    let mut seen = 0;
    for path in sources.filter(|path| !path.ends_with("tests/sources/words.rs")) {
        seen += 1;
        let mut text = read(&path);
        for own in OF_THE_KERNEL {
            text = text.replace(own, "");
        }
        let text = text.to_lowercase();
        let line = text.lines().position(|line| line.contains("can not"));
        assert_eq!(line, None, "{path}: write `cannot`");
    }
    assert!(seen > 900, "only {seen} files were found");
}

#[test]
fn literals_and_help_are_found() {
    let source = "/// Help here\nfn f() { let a = \"one \\\n    two\"; // \"not this\"\nlet b = '\"'; r#\"raw \"text\"\"#; }\n\
                  #[cfg(test)]\nmod tests { \"nor this\" }";
    let texts = |help| of_source(source, help).into_iter().map(|passage| passage.text).collect::<Vec<_>>();
    assert_eq!(texts(true), ["Help here", "one      two", "raw \"text\""]);
    assert_eq!(texts(false).len(), 2);
    assert!(has_phrase("it is told that", "is told") && !has_phrase("for every one", "for ever"));
    assert!(has_bare_negation("`x` is no number") && !has_bare_negation("there is no number"));
}
