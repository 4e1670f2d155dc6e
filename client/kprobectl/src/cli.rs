//! The arguments of `kprobectl`.
//!
//! Owns the grammar of the command line and its help. It decides nothing: each command reads its own arguments.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kprobed_client::fleet::Host;
use kprobed_client::{Client, Target, TargetError};

use crate::command::{
    Fleet, accept, add, adopt, aggregations, apply, attach, check, completions, config, delete, describe,
    diff, disasm, doctor, explain, exporters, filter, get, hist, label, latency, ledger, list, observe,
    profile, reconcile, renew, rollout, stacks, switch, symbols, trace, version,
};
use crate::config::LabelSelector;
use crate::quantity::{Tolerance, duration};

const AFTER_HELP: &str = "\
Exit codes:
  0  success
  1  the request was refused, the probe was not found, or a check failed
  2  wrong usage of this command
  3  the daemon cannot be reached
  4  interrupted or disconnected before everything was done
On many hosts (--hosts) it is the highest of these, unless no more hosts than --tolerate are without an answer:
  1  a host refused the request, or its answer is such a one as above
  3  a host could not be reached, or did not answer in time
  4  a host failed in the middle, or was not tried

Examples:
  kprobectl check 'p:open do_sys_openat2 filename=+0($arg2):string'
  kprobectl add 'p:open do_sys_openat2 filename=+0($arg2):string'
  kprobectl observe kprobes/open -n 10
  kprobectl delete kprobes/open";

/// Define kernel probes, and follow their events.
#[derive(Debug, Parser)]
#[command(name = "kprobectl", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// An address of the daemon. Whether `HOST:PORT` is TLS depends on the certificates, which are not known yet.
fn address(text: &str) -> Result<String, TargetError> {
    text.parse::<Target>().map(|_| text.to_owned())
}

/// Options that every command has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Address of the daemon: `HOST:PORT` (TLS, or plain TCP on loopback without certificates), `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT` [default: that of the context, or unix:/run/kprobed/kprobed.sock]
    #[arg(long, global = true, env = "KPROBED_SERVER", value_name = "TARGET", value_parser = address)]
    pub(crate) server: Option<String>,
    /// Context of the configuration, as `kprobectl help config` explains [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Do it on these hosts: names, globs, ranges (`web[001-480]`), groups, addresses, `all`, `srv:NAME` for the targets of an SRV record in DNS, `@FILE`, `-`, or `@failed` for those of the last run that did not answer; counts before --server
    #[arg(long, global = true, value_name = "LIST")]
    pub(crate) hosts: Vec<String>,
    /// Only on hosts whose labels match, as for `list --selector`
    #[arg(short = 'L', long, global = true, value_name = "SELECTOR")]
    pub(crate) host_selector: Option<LabelSelector>,
    /// Most hosts that are asked at the same time; streams stay open, one for each host [default: that of the context, or 64]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) parallel: Option<NonZeroUsize>,
    /// Try no further host after one that did not answer
    #[arg(long, global = true)]
    pub(crate) fail_fast: bool,
    /// So many hosts may fail to answer without an effect on the exit code: `3` or `5%`
    #[arg(long, global = true, value_name = "HOSTS", default_value = "0", hide_default_value = true)]
    pub(crate) tolerate: Tolerance,
    /// Change something on many hosts without a question [asked above 20 hosts, or `confirm_above` of the context]
    #[arg(long, global = true)]
    pub(crate) yes: bool,
    /// Certificate of the authority that signed the daemon's certificate, a PEM file; needed for https
    #[arg(long, global = true, env = "KPROBED_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate of this client, a PEM file; needed for https
    #[arg(long, global = true, env = "KPROBED_CERT", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of this client, a PEM file; needed for https
    #[arg(long, global = true, env = "KPROBED_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Name in the daemon's certificate [default: the host of the address]
    #[arg(long, global = true, env = "KPROBED_DOMAIN", value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// Form of the output
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
    /// When to use colours; the environment variable NO_COLOR switches them off as well
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// How long to wait for the daemon's answer; with several hosts, for each of them, from the connection to its answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Where the daemon is, as options and configuration say together.
    #[arg(skip)]
    pub(crate) host: Option<Host>,
    /// The hosts that were asked for, where a command goes to them by itself.
    #[arg(skip)]
    pub(crate) fleet: Option<Arc<Fleet>>,
    /// A connection that is there already.
    #[arg(skip)]
    pub(crate) client: Option<Client>,
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    Table,
    /// More columns for people
    Wide,
    /// JSON; one object per line for streams
    Json,
    /// YAML; one document per object for streams
    Yaml,
    /// Call stacks as flame graph tools read them; only for commands that count by stack
    Folded,
    /// Comma-separated values with a line of headings; only for `profile`
    Csv,
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
    /// Define a probe and start recording
    Add(add::Arguments),
    /// Make probes what documents say
    Apply(apply::Arguments),
    /// Show what `apply` would change
    Diff(diff::Arguments),
    /// Check whether the running kernel would accept a probe
    Check(check::Arguments),
    /// Explain a definition in words
    Explain(explain::Arguments),
    /// Show the parameters, return type and structures of a function
    Describe(describe::Arguments),
    /// Find functions by name
    Symbols(symbols::Arguments),
    /// Show the code of a function, and where it can be probed
    Disasm(disasm::Arguments),
    /// List probes
    List(list::Arguments),
    /// Show all properties of a probe
    Get(get::Arguments),
    /// Arm probes that are held back: what they record on this kernel is right
    Accept(accept::Arguments),
    /// Switch recording on
    Enable(switch::EnableArguments),
    /// Switch recording off, and keep the probes
    Disable(switch::DisableArguments),
    /// Show, set or clear the kernel filter of a probe
    Filter(filter::Arguments),
    /// Set and remove labels
    Label(label::Arguments),
    /// Renew the leases of probes
    Renew(renew::Arguments),
    /// Delete probes
    Delete(delete::Arguments),
    /// Make probes of kprobe events that the daemon did not define
    Adopt(adopt::Arguments),
    /// Look at all probes now, and repair what other programs have changed
    Reconcile(reconcile::Arguments),
    /// Follow events, or read the history
    Observe(Box<observe::Arguments>),
    /// Define probes for as long as the command runs, and follow their events
    Trace(trace::Arguments),
    /// Record a trace event that the daemon did not define, such as a tracepoint
    Attach(attach::AttachArguments),
    /// Stop recording attached events
    Detach(attach::DetachArguments),
    /// List attached events
    Attached(attach::AttachedArguments),
    /// Count events in the kernel, by fields, tasks or CPUs
    Hist(hist::Arguments),
    /// Measure the time between two probes in the kernel
    Latency(latency::Arguments),
    /// Count the call stacks that lead to a probe in the kernel
    Stacks(stacks::Arguments),
    /// List, read and delete aggregations
    Aggregations(aggregations::Arguments),
    /// Show how often probes were hit, and how often the kernel skipped them
    Profile(profile::Arguments),
    /// Show where every event went
    Ledger(ledger::Arguments),
    /// Show what the daemon sends elsewhere, and how that stands
    Exporters(exporters::Arguments),
    /// Check the host, and show how to fix what is missing
    Doctor(doctor::Arguments),
    /// Change a fleet wave by wave, and put everything back if a gate is not passed
    Rollout(rollout::Arguments),
    /// Show and change contexts: hosts, groups, and how to reach them
    Config(config::Arguments),
    /// Print a shell completion script
    Completions(completions::Arguments),
    /// Print the versions of this command and the daemon
    Version(version::Arguments),
}

impl Command {
    /// Whether it talks to a daemon at all.
    pub(crate) fn needs_daemon(&self) -> bool {
        match self {
            Self::Config(_) | Self::Completions(_) | Self::Rollout(_) => false,
            Self::Version(arguments) => !arguments.client,
            _ => true,
        }
    }

    /// Whether it can print comma-separated values.
    pub(crate) fn has_csv(&self) -> bool {
        matches!(self, Self::Profile(_))
    }

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
                (Some(_) | None, _) => word.get_or_insert_default().push(character),
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
