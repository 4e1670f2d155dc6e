//! Help pages: commands by group, examples first, and the options of every command on a page of their own.
//!
//! Owns the arrangement. Each command has its own words.

use std::fmt::Write as _;

use clap::builder::{Resettable, StyledStr};
use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _};

use crate::cli::Cli;

/// The commands by what people want to do. Every command is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "See what the kernel has, and what can be probed",
        &["functions", "describe", "lines", "vars", "check", "list", "get"],
    ),
    ("Trace events", &["trace", "observe"]),
    ("Count in the kernel", &["hist", "latency", "stacks", "aggregations", "hits"]),
    ("Keep probes", &["add", "apply", "diff", "enable", "disable", "update", "label", "adopt", "delete"]),
    ("Operate the daemon", &["status", "doctor", "ledger", "audit", "auth", "debug"]),
    ("Many hosts, and this command", &["rollout", "config", "options", "completions", "version"]),
];

/// Headings of options that `-h` leaves out, so that it fits on a screen.
const LONG_ONLY: [&str; 2] = ["Delivery", "From NATS"];

/// Examples before the options, and explanations after them.
const PAGE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}\n\n";

/// The end of each page.
const EVERY_COMMAND: &str = "`kprobectl options` shows the options that every command has.";

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
/// has a value, and variables of the environment give some.
pub(crate) fn explained(error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::MissingSubcommand {
        return error;
    }
    let without_environment = grammar().mut_args(|argument| argument.env(Resettable::Reset));
    without_environment.try_get_matches().err().unwrap_or(error)
}

/// A command, with its subcommands, whose `-h` is short, and whose `--help` begins with examples.
fn arranged(command: Command) -> Command {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (explanation, examples) = match text.rsplit_once("Examples:\n") {
        Some((explanation, examples)) => {
            (explanation.trim_end().to_owned(), format!("Examples:\n{examples}"))
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
            let is_global = argument.is_global_set();
            argument.hide(is_global).hide_short_help(is_rare)
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
