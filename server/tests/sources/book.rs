//! Test of the pages as a book: the summary and the index have all of them, links and anchors lead
//! somewhere, sentences are short, pages for users name no sources, and the pages of codes and
//! metrics have everything that the code has.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use kprobed_control::error::Reason;
use kprobed_filter::FilterCode;
use kprobed_lang::definition::Code;
use kprobed_verdict::meaning::DifferenceKind;

use super::pages::{files, links, quoted, read};
use super::words::has_phrase;

const BOOK: &str = "deploy/docs";

/// Most lines of the first page, so that a reader sees in a minute what kprobed is.
const README_LINES: usize = 150;

/// Most words of a sentence.
const SENTENCE_WORDS: usize = 35;

/// What pages do not say, and the words of the field for it.
const PLAIN: &[(&str, &str)] = &[
    ("anew", "again"),
    ("by itself", "automatically"),
    ("by themselves", "automatically"),
    ("figures", "metrics, measurements"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("in force", "takes effect, applies"),
    ("look at", "read, check, run"),
    ("looks at", "reads, checks"),
    ("meanwhile", "during X, until then"),
    ("says so", "reports"),
    ("taken back", "rolled back"),
    ("whoever", "a client, a user, a program"),
];

/// The pages whose sentences are short: the first one, the book, what forges show, and those of libraries.
fn edited() -> Vec<String> {
    let mut pages =
        vec!["README.md".to_owned(), "client/README.md".to_owned(), "client/python/README.md".to_owned()];
    pages.extend(
        [BOOK, ".github", "deploy/kubernetes", "deploy/pipelines"].iter().flat_map(|top| files(top, ".md")),
    );
    pages
}

#[test]
fn the_first_page_is_short_and_the_book_has_every_page() {
    let first = read("README.md");
    let lines = first.lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines: move text to {BOOK}/");
    assert!(links(&first).iter().any(|(_, target)| *target == "deploy/docs/README.md"));
    let pages = files(BOOK, ".md");
    assert!(pages.len() > 30, "{pages:?}");
    for list in ["README.md", "SUMMARY.md"] {
        let text = read(&format!("{BOOK}/{list}"));
        for page in &pages {
            let inner = page.strip_prefix(&format!("{BOOK}/")).unwrap();
            let is_linked = links(&text).iter().any(|(_, target)| *target == inner);
            // The summary is for a program, and the index has no link to itself.
            let is_list = inner == "SUMMARY.md" || inner == list;
            assert!(is_linked || is_list, "{BOOK}/{list} has no link to {inner}");
        }
    }
}

/// What a heading is called in a link: lower case, without punctuation, blanks as `-`.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The lines of a page that are not between fences.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

#[test]
fn links_lead_to_headings() {
    let (mut findings, mut seen) = (String::new(), 0);
    for page in files("", ".md") {
        let text = read(&page);
        for (line, target) in links(&text) {
            let Some((file, wanted)) = target.split_once('#').filter(|_| !target.contains(':')) else {
                continue;
            };
            let other = if file.is_empty() {
                text.clone()
            } else {
                let directory =
                    page.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
                read(&format!("{directory}{file}"))
            };
            seen += 1;
            let mut headings = prose(&other).filter(|(_, line)| line.starts_with('#'));
            if !headings.any(|(_, heading)| anchor(heading) == wanted) {
                writeln!(findings, "{page}:{line}: `{target}`: there is no such heading").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "{findings}");
    assert!(seen > 100, "only {seen} links with an anchor");
    assert_eq!(anchor("## `string` and `ustring`"), "string-and-ustring");
}

/// The paragraphs, items and cells of a page, with the lines that they begin in.
fn paragraphs(page: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    let mut before = 0;
    for (line, text) in prose(page) {
        let trimmed = text.trim();
        // What is between fences ends a paragraph too.
        is_open &= line == before + 1;
        before = line;
        if let Some(row) = trimmed.strip_prefix('|') {
            // A cell is not prose: its parts are sentences.
            let parts =
                row.split(" | ").flat_map(|cell| cell.split(['|', ';'])).flat_map(|part| part.split(": "));
            found.extend(parts.map(|part| (line, part.to_owned())));
            is_open = false;
        } else if trimmed.is_empty() || trimmed.starts_with('#') || text.starts_with("    ") && !is_open {
            is_open = false;
        } else {
            let number = trimmed.trim_start_matches(|c: char| c.is_ascii_digit());
            let item = ["- ", "* ", "> "].iter().find_map(|mark| trimmed.strip_prefix(mark));
            match item.or_else(|| number.strip_prefix(". ").filter(|_| number.len() < trimmed.len())) {
                Some(item) => found.push((line, item.to_owned())),
                None => match found.last_mut().filter(|_| is_open) {
                    Some((_, paragraph)) => paragraph.extend([" ", trimmed]),
                    None => found.push((line, trimmed.to_owned())),
                },
            }
            is_open = true;
        }
    }
    found
}

/// The numbers of words of the sentences of a paragraph. What is in backquotes is one word.
fn sentences(paragraph: &str) -> Vec<usize> {
    let parts = paragraph.split('`').enumerate();
    let plain: String = parts.map(|(index, part)| if index % 2 == 0 { part } else { "x" }).collect();
    // The target of a link is not read.
    let mut parts = plain.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    text.extend(parts.map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)));
    let (mut counts, mut words) = (Vec::new(), 0);
    for word in text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)) {
        words += 1;
        if word.trim_end_matches(['*', ')']).ends_with(['.', '?', '!']) {
            counts.push(std::mem::take(&mut words));
        }
    }
    counts.push(words);
    counts
}

#[test]
fn sentences_are_short() {
    let (mut findings, mut seen) = (String::new(), 0);
    for page in edited() {
        for (line, paragraph) in paragraphs(&read(&page)) {
            for words in sentences(&paragraph) {
                seen += 1;
                if words > SENTENCE_WORDS {
                    writeln!(findings, "{page}:{line}: a sentence of {words} words: {paragraph}").unwrap();
                }
            }
        }
    }
    assert!(findings.is_empty(), "{findings}");
    assert!(seen > 2000, "only {seen} sentences");
    let page = "# Head\nOne two\nthree. Four [five](six seven).\n\n- a `b c` d\n  e.\n```\nx\n```\n| f g | h; i |\n    code\n";
    let counts: Vec<_> = paragraphs(page).iter().map(|(line, text)| (*line, sentences(text))).collect();
    let expected =
        [(2, vec![3, 2, 0]), (5, vec![4, 0]), (10, vec![2]), (10, vec![1]), (10, vec![1]), (10, vec![0])];
    assert_eq!(counts, expected);
    assert_eq!(sentences("One (two) three [four](five six). `Seven` (eight)."), [4, 2, 0]);
}

#[test]
fn pages_use_the_words_of_the_field() {
    let mut findings = String::new();
    // The rows of the ledger are those of the command.
    for page in edited().iter().filter(|page| !page.ends_with("reference/ledger.md")) {
        for (line, paragraph) in paragraphs(&read(page)) {
            // A column of a table may have such a name, and a command may print it.
            let text: String = paragraph.split('`').step_by(2).collect::<Vec<_>>().join("x").to_lowercase();
            for (phrase, instead) in PLAIN.iter().filter(|(phrase, _)| has_phrase(&text, phrase)) {
                writeln!(findings, "{page}:{line}: \"{phrase}\" ({instead}): {paragraph}").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "{findings}");
}

#[test]
fn pages_for_users_name_no_sources() {
    let mut findings = String::new();
    let is_for_users = |page: &String| page.starts_with(BOOK) && !page.contains("/project/");
    for page in edited().iter().filter(|page| is_for_users(page)) {
        for (line, cited) in quoted(&read(page)) {
            let is_source = cited.contains(".rs") || cited.starts_with("guest: ");
            if is_source {
                writeln!(findings, "{page}:{line}: `{cited}`").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "names of sources and tests are for people who change kprobed:\n{findings}");
}

#[test]
fn every_code_has_an_entry() {
    let page = read(&format!("{BOOK}/reference/codes.md"));
    let mut listed = BTreeSet::new();
    for entry in page.split("\n### ").skip(1) {
        let (name, text) = entry.split_once('\n').unwrap();
        assert!(listed.insert(name), "{name} has two entries");
        assert!(text.contains("\nFix: "), "{name} has no fix");
    }
    let known = Code::ALL.iter().map(|code| code.name());
    let known = known.chain(FilterCode::ALL.iter().map(|code| code.name()));
    let known = known.chain(DifferenceKind::ALL.iter().map(|kind| kind.code()));
    let known: BTreeSet<_> = known.chain(Reason::ALL.iter().map(|reason| reason.name)).collect();
    let missing: Vec<_> = known.difference(&listed).collect();
    assert!(missing.is_empty(), "codes.md has no entry for {missing:?}");
    // Codes of states and obstacles have no list: they are words of the sources.
    let mut sources = String::new();
    for path in files("server", ".rs").iter().filter(|path| path.contains("/src/")) {
        sources.push_str(&read(path));
    }
    let invented: Vec<_> = listed.iter().filter(|name| !sources.contains(&format!("\"{name}\""))).collect();
    let invented: Vec<_> = invented.into_iter().filter(|name| !known.contains(**name)).collect();
    assert!(invented.is_empty(), "codes.md has codes that the daemon does not have: {invented:?}");
}

#[test]
fn the_page_of_metrics_has_all() {
    let source = read("server/src/export/metrics/families.rs");
    let is_name = |word: &&str| word.starts_with("kprobed.") || word.starts_with("process.");
    let names: BTreeSet<_> = source.split('"').filter(is_name).map(|name| name.replace('.', "_")).collect();
    assert!(names.len() > 25, "{names:?}");
    let page = read(&format!("{BOOK}/reference/metrics.md"));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<_> = rows.map(|name| name.trim_end_matches("_total").to_owned()).collect();
    assert_eq!(listed, names);
}
