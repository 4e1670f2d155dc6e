//! Test of the console blocks of pages: the guest test `pages` runs every command of them, but for a list of
//! exceptions.

use std::fmt::Write as _;

use super::pages::{files, read};

/// The guest test, with its exceptions.
const GUEST_TEST: &str = "deploy/vm/tests/guest/pages/mod.rs";

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
