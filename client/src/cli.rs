//! The arguments of `kprobectl`.
//!
//! Owns the grammar of the command line and its help. It decides nothing: each command reads its own arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kprobed_client::Target;

use crate::command::{
    add, aggregations, attach, check, completions, delete, describe, disasm, doctor, explain, filter, get,
    hist, label, latency, ledger, list, observe, profile, stacks, switch, symbols, version,
};
use crate::quantity::duration;

const AFTER_HELP: &str = "\
Exit codes:
  0  success
  1  the request was refused, the probe was not found, or a check failed
  2  wrong usage of this command
  3  the daemon cannot be reached
  4  interrupted, or the connection was lost, before all was done

Examples:
  kprobectl check 'p:open do_sys_openat2 filename=+0($arg2):string'
  kprobectl add 'p:open do_sys_openat2 filename=+0($arg2):string'
  kprobectl observe kprobes/open -n 10
  kprobectl delete kprobes/open";

/// Define kernel probes, and follow what they record.
#[derive(Debug, Parser)]
#[command(name = "kprobectl", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The daemon: `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`
    #[arg(long, global = true, env = "KPROBED_SERVER", value_name = "TARGET", default_value_t)]
    pub(crate) server: Target,
    /// Certificate of the authority that vouches for the daemon, in PEM (for https)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate of this client, in PEM (for https)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of this client, in PEM (for https)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Name in the daemon's certificate, if it is not the host of the target
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// How to print
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
    /// When to use colours; the variable NO_COLOR switches them off too
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// How long the daemon may take to answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    Table,
    /// More columns for people
    Wide,
    /// JSON; one object per line when following
    Json,
    /// YAML; one document per object when following
    Yaml,
    /// Call stacks for tools that draw flame graphs; for commands that have some
    Folded,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Define a probe and let it record
    Add(add::Arguments),
    /// Ask whether the running kernel would accept a probe
    Check(check::Arguments),
    /// Say in words what a definition does
    Explain(explain::Arguments),
    /// Show what a function takes and returns, and what lies behind its parameters
    Describe(describe::Arguments),
    /// Find functions to probe by name
    Symbols(symbols::Arguments),
    /// Show the code of a function, and where probes can sit in it
    Disasm(disasm::Arguments),
    /// List probes
    List(list::Arguments),
    /// Show everything about a probe
    Get(get::Arguments),
    /// Let probes record
    Enable(switch::EnableArguments),
    /// Stop probes from recording, and keep them
    Disable(switch::DisableArguments),
    /// Show, set or clear the kernel filter of a probe
    Filter(filter::Arguments),
    /// Set and remove labels of probes
    Label(label::Arguments),
    /// Remove probes
    Delete(delete::Arguments),
    /// Follow events
    Observe(observe::Arguments),
    /// Record an event of the host: a tracepoint, or what another tool has defined
    Attach(attach::AttachArguments),
    /// Stop recording events of the host
    Detach(attach::DetachArguments),
    /// List the events of the host that are recorded
    Attached(attach::AttachedArguments),
    /// Count in the kernel: how often, by what, and how it is spread
    Hist(hist::Arguments),
    /// Measure in the kernel how long it takes from one probe to another
    Latency(latency::Arguments),
    /// Count in the kernel on which ways a probe is reached
    Stacks(stacks::Arguments),
    /// List, read and delete what is counted in the kernel
    Aggregations(aggregations::Arguments),
    /// Show how often probes were hit, and how often the kernel skipped them
    Profile(profile::Arguments),
    /// Show where every event went
    Ledger(ledger::Arguments),
    /// Examine the host, and say what is missing
    Doctor(doctor::Arguments),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Print the versions of this command and of the daemon
    Version(version::Arguments),
}

impl Command {
    /// Whether its output can have call stacks.
    pub(crate) fn has_stacks(&self) -> bool {
        match self {
            Self::Hist(_) | Self::Stacks(_) => true,
            Self::Aggregations(arguments) => arguments.has_stacks(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    /// What `kprobectl` is called with in a line for a shell.
    fn called_with(line: &str) -> Vec<String> {
        let mut commands = vec![Vec::new()];
        let mut word: Option<String> = None;
        let mut quote = None;
        for character in line.chars().chain([' ']) {
            match (quote, character) {
                (Some(open), _) if character == open => quote = None,
                (Some(_), _) => word.get_or_insert_default().push(character),
                (None, '\'' | '"') => {
                    quote = Some(character);
                    word.get_or_insert_default();
                }
                (None, ' ' | '|' | '>' | ';' | '&') => {
                    commands.last_mut().unwrap().extend(word.take());
                    if character != ' ' {
                        commands.push(Vec::new());
                    }
                }
                (None, _) => word.get_or_insert_default().push(character),
            }
        }
        commands.into_iter().find(|words| words.first().is_some_and(|word| word == "kprobectl")).unwrap()
    }

    #[test]
    fn every_command_has_examples_that_it_accepts() {
        let mut parsed = 0;
        let whole = Cli::command();
        for command in std::iter::once(&whole).chain(whole.get_subcommands()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
            let mut own = 0;
            for line in examples.lines() {
                let words = called_with(line);
                own += usize::from(words.get(1).is_some_and(|word| word == command.get_name()));
                parsed += 1;
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}\n{words:?}\n{error}");
                }
            }
            assert!(own > 0 || command.get_name() == "kprobectl", "`{}` has no example", command.get_name());
        }
        assert!(parsed > 80, "{parsed} examples");
    }
}
