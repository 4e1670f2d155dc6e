//! Test of the console blocks of pages: the guest test `pages` runs every command of them, but for a list of
//! exceptions; and the picture of the first page is made of such blocks.
//!
//! `KPROBED_RENEW=1 cargo test -p kprobed --test sources` writes the picture; without it, the picture is compared.

use std::fmt::Write as _;

use super::pages::{files, read, root};

/// The guest test, with its exceptions.
const GUEST_TEST: &str = "deploy/vm/tests/guest/pages/mod.rs";

const PICTURE: &str = "deploy/docs/terminal.svg";

/// What the picture shows: pages, and how commands of them begin.
const SHOWN: [(&str, &str); 3] = [
    ("deploy/docs/tutorial/first-probe.md", "kprobectl describe vfs_open"),
    ("deploy/docs/tutorial/refused-probe.md", "kprobectl check 'p:open vfs_open "),
    ("deploy/docs/tutorial/latency.md", "kprobectl latency read "),
];

/// Columns of the terminal in the picture.
const COLUMNS: usize = 86;

/// Width of a column and height of a line of the picture, in pixels.
const CELL: (usize, usize) = (8, 18);

/// The fenced blocks of a page: the line of the fence, what follows it, and the lines of the block.
fn blocks(page: &str) -> Vec<(usize, &str, Vec<&str>)> {
    let mut blocks: Vec<(usize, &str, Vec<&str>)> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(page.lines()) {
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(kind) => {
                is_open = true;
                blocks.push((number, kind, Vec::new()));
            }
            None if is_open => blocks.iter_mut().last().into_iter().for_each(|(.., block)| block.push(line)),
            None => {}
        }
    }
    blocks
}

/// The exceptions of the guest test: page, how the command begins, reason.
#[cfg(test)]
fn exceptions(source: &str) -> Vec<[String; 3]> {
    let list = source.split_once("const NOT_RUN").unwrap().1.split_once("\n];").unwrap().0;
    let texts: Vec<_> = list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    texts.chunks(3).map(|entry| entry.to_vec().try_into().unwrap()).collect()
}

#[test]
fn each_command_is_run_in_a_guest_or_is_an_exception() {
    let exceptions = exceptions(&read(GUEST_TEST));
    let (mut findings, mut commands) = (String::new(), Vec::new());
    for page in files("", ".md") {
        let is_run = page == "README.md" || page.starts_with("deploy/docs/");
        for (line, kind, block) in blocks(&read(&page)) {
            let has_command = block.iter().any(|line| line.starts_with("$ "));
            let wrong = match kind {
                "console" if !is_run => "the guest test does not run the blocks of this page",
                "console" if !block.first().is_some_and(|line| line.starts_with("$ ")) => "no command first",
                "console" => "",
                _ if has_command => "a block with commands and their output is `console`, and is run",
                _ => "",
            };
            if !wrong.is_empty() {
                writeln!(findings, "{page}:{line}: {wrong}").unwrap();
            }
            let typed = block.iter().filter_map(|line| line.strip_prefix("$ "));
            commands.extend(typed.map(|command| (page.clone(), command.to_owned())));
        }
    }
    let is_of = |[of, begin, _]: &[String; 3], (page, command): &(String, String)| {
        of == page && command.starts_with(begin.as_str())
    };
    for entry in &exceptions {
        if !commands.iter().any(|command| is_of(entry, command)) {
            writeln!(findings, "{GUEST_TEST}: no page has the command of {entry:?}").unwrap();
        }
    }
    assert!(findings.is_empty(), "{findings}");
    let run = commands.iter().filter(|command| !exceptions.iter().any(|entry| is_of(entry, command)));
    let (run, all) = (run.count(), commands.len());
    assert!(run > 25 && run * 2 > all, "{run} of {all} commands are run");
    assert!(read("deploy/vm/tests/guest/main.rs").contains("(\"pages\", pages::TESTS)"));
    let page = "```console\n$ a\nb\n```\nc\n  ```\n  d\n  ```\n";
    assert_eq!(blocks(page), [(1, "console", vec!["$ a", "b"]), (6, "", vec!["  d"])]);
}

/// The lines of a terminal: commands of pages and what follows them, wrapped.
fn session() -> Vec<String> {
    let mut lines = Vec::new();
    for (page, begin) in SHOWN {
        let text = read(page);
        let blocks = blocks(&text).into_iter().filter(|(_, kind, _)| *kind == "console");
        let all: Vec<_> = blocks.flat_map(|(.., block)| block).collect();
        let is_meant = |line: &&str| line.strip_prefix("$ ").is_some_and(|typed| typed.starts_with(begin));
        let at = all.iter().position(is_meant).unwrap_or_else(|| panic!("{page} has no `{begin}`"));
        let output = all[at + 1..].iter().take_while(|line| !line.starts_with("$ "));
        for line in std::iter::once(&all[at]).chain(output) {
            let columns: Vec<_> = line.chars().collect();
            lines.extend(columns.chunks(COLUMNS).map(|part| part.iter().collect::<String>()));
            if columns.is_empty() {
                lines.push(String::new());
            }
        }
    }
    lines
}

/// The colour of a line.
fn colour(line: &str) -> &'static str {
    match line.split(' ').next().unwrap_or_default() {
        "$" => "#ffffff",
        "refused" | "error:" => "#ff7b72",
        "hint:" => "#7ee787",
        "note:" => "#79c0ff",
        _ if line.contains("|@") => "#7ee787",
        _ => "#c9d1d9",
    }
}

/// A picture of a terminal. Each line has its width, so that columns are aligned in any font.
#[cfg(test)]
fn picture(lines: &[String]) -> String {
    let (width, height) = (COLUMNS * CELL.0 + 32, lines.len() * CELL.1 + 32);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"13\">\n\
         <title>A terminal with commands of kprobectl</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let (y, length) = (28 + index * CELL.1, line.chars().count() * CELL.0);
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let colour = colour(line);
        writeln!(
            svg,
            "<text x=\"16\" y=\"{y}\" textLength=\"{length}\" fill=\"{colour}\" xml:space=\"preserve\">{text}</text>"
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_of_the_first_page_is_of_commands_that_are_run() {
    let wanted = picture(&session());
    if std::env::var_os("KPROBED_RENEW").is_some() {
        std::fs::write(root().join(PICTURE), &wanted).unwrap();
    }
    assert!(read(PICTURE) == wanted, "{PICTURE} is not of what the pages show: see the head of this file");
    assert!(read("README.md").contains(&format!("({PICTURE})")), "README.md does not show {PICTURE}");
    let exceptions = exceptions(&read(GUEST_TEST));
    let is_exception = |(page, _): &(&str, &str)| exceptions.iter().any(|[of, ..]| of == page);
    assert!(!SHOWN.iter().any(is_exception), "a page of the picture has commands that are not run");
}
