//! Tests of help texts.

use std::fmt::Write as _;
use std::process::Command;

use insta::assert_snapshot;

use super::command::kprobectl;
use super::fake::shown;

/// A page as a terminal of 80 columns shows it.
fn page(arguments: &[&str]) -> String {
    let at_80 = |command: &mut Command| shown(&command.env("COLUMNS", "80").output().unwrap());
    let page = at_80(&mut kprobectl(arguments));
    assert!(page.starts_with("exit: 0"), "{arguments:?}: {page}");
    let elsewhere = at_80(kprobectl(arguments).env("KPROBED_SERVER", "unix:/elsewhere"));
    assert_eq!(page, elsewhere, "a page shows nothing of the environment");
    page
}

/// The names in lists of commands.
fn names(lists: &str) -> Vec<&str> {
    let entries =
        lists.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    entries.filter_map(|entry| entry.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// The commands of the main page.
fn commands(whole: &str) -> Vec<&str> {
    let commands = names(whole.split_once("\nExamples:").unwrap().0);
    assert!(commands.len() > 25, "{commands:?}");
    commands
}

#[test]
fn every_page_is_as_it_was() {
    let whole = page(&["--help"]);
    let mut pages = format!("# kprobectl --help\n{whole}\n# kprobectl options\n{}", page(&["options"]));
    for command in commands(&whole) {
        let help = page(&[command, "--help"]);
        _ = write!(pages, "\n# kprobectl {command} --help\n{help}");
        let inner = help.split_once("\nCommands:\n").and_then(|(_, rest)| rest.split_once("\n\n"));
        for inner in inner.map(|(list, _)| names(list)).unwrap_or_default() {
            _ = write!(
                pages,
                "\n# kprobectl {command} {inner} --help\n{}",
                page(&[command, inner, "--help"])
            );
        }
    }
    let widest = |text: &str, columns| {
        let wide = text.lines().find(|line| line.chars().count() > columns).map(str::to_owned);
        assert_eq!(wide, None, "more than {columns} columns");
    };
    widest(&whole, 80);
    // Clap does not break words.
    widest(&pages, 100);
    assert_snapshot!("pages", pages);
}

#[test]
fn a_command_that_is_missing_is_answered_by_help_whatever_the_environment_has() {
    for (arguments, part) in [(&[][..], "Trace events:"), (&["rollout"], "plan "), (&["auth"], "can-i ")] {
        let here = shown(&kprobectl(arguments).output().unwrap());
        assert!(here.starts_with("exit: 2") && here.contains(part), "{arguments:?}: {here}");
        assert!(!here.contains("requires a subcommand"), "{arguments:?}: {here}");
        let elsewhere = kprobectl(arguments).env("KPROBED_SERVER", "unix:/elsewhere").output().unwrap();
        assert_eq!(shown(&elsewhere), here, "{arguments:?}");
    }
}

#[test]
fn the_short_page_is_one_screen() {
    let whole = page(&["--help"]);
    for command in commands(&whole) {
        let lines = page(&[command, "-h"]).lines().count();
        assert!(lines <= 70, "`{command} -h` has {lines} lines");
    }
}
