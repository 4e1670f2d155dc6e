//! Help pages: commands by group, examples first, and the options of every command on a page of their own.
//!
//! Owns the arrangement. The words of each command are in `command/help/`.

use std::fmt::Write as _;

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};

use crate::cli::Cli;

/// The commands by what people want to do. Every command is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "See what the kernel has, and what can be probed",
        &["functions", "describe", "lines", "vars", "check", "list", "get"],
    ),
    ("Trace events", &["trace", "observe", "language", "recipes"]),
    ("Count in the kernel", &["hist", "latency", "stacks", "aggregations", "hits"]),
    ("Keep probes", &["add", "apply", "diff", "enable", "disable", "update", "label", "adopt", "delete"]),
    ("Operate the daemon", &["status", "doctor", "ledger", "audit", "auth", "debug"]),
    ("Many hosts, and this command", &["rollout", "config", "options", "completion", "version"]),
];

/// Headings of options that `-h` leaves out, so that it fits on a screen.
const LONG_ONLY: [&str; 2] = ["Delivery", "From NATS"];

/// Examples before the options, and explanations after them.
const PAGE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}\n\n";

/// The end of each page.
const EVERY_COMMAND: &str = "`kprobectl options` shows the options that every command has.";

/// The page of all codes, which is also one of the manual.
const CODES: &str = include_str!("../../../deploy/docs/reference/codes.md");

/// The grammar with its help pages.
pub(crate) fn grammar() -> Command {
    let whole = arranged(Cli::command());
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{{before-help}}{{options}}{{after-help}}\n\n\
         `kprobectl help COMMAND` explains a command.\n{EVERY_COMMAND}",
        groups(&whole)
    );
    whole.help_template(template)
}

/// The error of a command line. One that lacks a command is the help of what is there: clap gives it only if no option
/// has a value, and variables of the environment give some. A code in the place of a command is the entry of the code.
pub(crate) fn explained(mut error: clap::Error) -> clap::Error {
    let of_document =
        document(&error).map(|path| format!("documents are given with an option: `--file {path}`"));
    if let Some(tip) = of_document.or_else(|| of_other_tools(&error)) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    if error.kind() != ErrorKind::MissingSubcommand {
        return of_code(&error).unwrap_or(error);
    }
    let without_environment = grammar().mut_args(|argument| argument.env(Resettable::Reset));
    without_environment.try_get_matches().err().unwrap_or(error)
}

/// The word that a command of documents does not expect.
fn document(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_word = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
    (is_word && usage.to_string().contains(" --file <PATH>")).then(|| word.clone())
}

/// Commands and options of other tools, and what does the same: `WORDS: TIP` in each line.
const OTHER_TOOLS: &str = include_str!("command/help/other-tools.txt");

fn tips() -> impl Iterator<Item = (&'static str, &'static str)> {
    OTHER_TOOLS.lines().filter_map(|line| line.split_once(": "))
}

/// What does here what a command or an option of another tool does.
fn of_other_tools(error: &clap::Error) -> Option<String> {
    let word = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg]
        .into_iter()
        .find_map(|kind| error.get(kind));
    let Some(ContextValue::String(word)) = word else { return None };
    let (_, tip) = tips().find(|(words, _)| words.split(' ').any(|other| other == word))?;
    Some(tip.to_owned())
}

/// The help of a code, for an error about a command of that name.
fn of_code(error: &clap::Error) -> Option<clap::Error> {
    let Some(ContextValue::String(code)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let code = code.to_ascii_uppercase();
    let help = format!("{code}: {}\n", entry(&code)?);
    Command::new("kprobectl").override_help(help).try_get_matches_from(["kprobectl", "--help"]).err()
}

/// The entry of a code, up to the next heading.
fn entry(code: &str) -> Option<&'static str> {
    let (_, rest) = CODES.split_once(&format!("\n### {code}\n"))?;
    Some(rest.split("\n#").next().unwrap_or(rest).trim())
}

/// A command, with its subcommands, whose `-h` is short, and whose `--help` begins with examples.
fn arranged(command: Command) -> Command {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (explanation, examples) = match text.rsplit_once("Examples:\n") {
        Some((explanation, examples)) => {
            (explanation.trim_end().to_owned(), format!("Examples:\n{}", examples.trim_end()))
        }
        None => (text, String::new()),
    };
    let given = |text: String| {
        if text.is_empty() { Resettable::Reset } else { Resettable::Value(StyledStr::from(text)) }
    };
    command
        .after_help(Resettable::Reset)
        .before_long_help(given(examples))
        .after_long_help(given(explanation))
        .help_template(format!("{PAGE}{EVERY_COMMAND}"))
        .mut_args(|argument| {
            let is_rare = argument.get_help_heading().is_some_and(|heading| LONG_ONLY.contains(&heading));
            let is_hidden = argument.is_global_set() || argument.is_hide_set();
            argument.hide(is_hidden).hide_short_help(is_rare)
        })
        .mut_subcommands(arranged)
}

fn groups(whole: &Command) -> String {
    let width = whole.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for (group, names) in GROUPS {
        _ = writeln!(text, "{group}:");
        for command in names.iter().filter_map(|name| whole.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            _ = writeln!(text, "  {:width$}  {about}", command.get_name());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_page_has_help() {
        let codes: Vec<_> =
            CODES.split("\n### ").skip(1).filter_map(|entry| entry.split('\n').next()).collect();
        assert!(codes.len() > 200, "{}", codes.len());
        for code in codes {
            let help = |code: &str| {
                explained(grammar().try_get_matches_from(["kprobectl", "help", code]).unwrap_err())
            };
            let (written, lower) = (help(code), help(&code.to_lowercase()));
            assert_eq!((written.kind(), written.exit_code()), (ErrorKind::DisplayHelp, 0), "{code}");
            let text = written.to_string();
            assert_eq!(lower.to_string(), text);
            assert!(text.starts_with(code) && text.contains("\nFix: ") && !text.contains("\n#"), "{text}");
        }
        let unknown = grammar().try_get_matches_from(["kprobectl", "help", "NO_SUCH_CODE"]).unwrap_err();
        assert_eq!(explained(unknown).kind(), ErrorKind::InvalidSubcommand);
        let of = |arguments: &[&str]| {
            explained(grammar().try_get_matches_from(arguments).unwrap_err()).to_string()
        };
        assert!(
            of(&["kprobectl", "trace", "-p", "1", "vfs_read"]).contains("tip: `--pid N` is for a process")
        );
        // The command that bpftrace runs, and a number of events elsewhere.
        assert!(of(&["kprobectl", "trace", "-c", "ls", "openat"]).contains("`kprobectl trace openat -- ls`"));
        assert_eq!((tips().count(), OTHER_TOOLS.lines().count()), (18, 18));
        for (words, tip) in tips() {
            for word in words.split(' ') {
                assert!(of(&["kprobectl", word]).contains(&format!("tip: {tip}")), "{word}");
            }
            let commands =
                tip.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("kprobectl "));
            for command in commands {
                let words = command.split(' ').map(|word| word.trim_matches('\''));
                let read = grammar().try_get_matches_from(words);
                let is_whole = read.as_ref().is_ok()
                    || read.is_err_and(|error| error.kind() == ErrorKind::MissingRequiredArgument);
                assert!(is_whole, "{command}");
            }
        }
        let tip = "tip: documents are given with an option: `--file a.yaml`";
        assert!(of(&["kprobectl", "apply", "a.yaml"]).contains(tip));
        assert!(!of(&["kprobectl", "version", "a.yaml"]).contains("--file"));
    }

    #[test]
    fn every_command_is_in_one_group() {
        let whole = Cli::command();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut all: Vec<_> = whole.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
        grammar().debug_assert();
    }
}
