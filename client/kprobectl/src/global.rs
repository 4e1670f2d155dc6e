//! Options that every command has.
//!
//! Owns the global options, the output formats and the hosts that a command was given. It decides
//! nothing: `command::connection` resolves the options to addresses.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use kprobed_client::fleet::Host;
use kprobed_client::{Client, Target, TargetError};
use kprobed_lang::model::{LabelError, LabelSelector};

use crate::lines::Lines;
use crate::quantity::{Limit, time_limit};

/// Checks an address. Whether `HOST:PORT` is TLS depends on the certificates, which are read later.
fn address(text: &str) -> Result<String, TargetError> {
    text.parse::<Target>().map(|_| text.to_owned())
}

/// Reads a selector of hosts. An empty one is more likely an empty variable of a script than all hosts.
fn selector(text: &str) -> Result<LabelSelector, String> {
    match text.trim() {
        "" => Err("an empty selector would select all hosts".to_owned()),
        _ => text.parse().map_err(|error: LabelError| error.to_string()),
    }
}

/// Options that every command has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Address of the daemon: `HOST:PORT` (TLS, or plain TCP on loopback without certificates),
    /// `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT` [default: that of the
    /// context, or unix:/run/kprobed/kprobed.sock]
    #[arg(long, global = true, env = "KPROBED_SERVER", value_name = "TARGET", value_parser = address)]
    pub(crate) server: Option<String>,
    /// Context of the configuration, as `kprobectl help config` explains [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Run the command on these hosts: names, globs, ranges (`web[001-480]`), groups, addresses,
    /// `all`, `@FILE`, `-`, or `@failed` for those that did not answer in the last run; overrides
    /// --server
    #[arg(long, global = true, value_name = "LIST")]
    pub(crate) hosts: Vec<String>,
    /// Run the command on the hosts whose labels match, as for `list --selector` [default: all of --hosts]
    #[arg(short = 'L', long, global = true, value_name = "SELECTOR", value_parser = selector)]
    pub(crate) host_selector: Option<LabelSelector>,
    /// Most hosts that are asked at the same time; streams stay open, one for each host [default:
    /// that of the context, or 64]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) parallel: Option<NonZeroUsize>,
    /// Try no further host after the first that did not answer
    #[arg(long, global = true)]
    pub(crate) fail_fast: bool,
    /// Number or percentage of hosts that may fail to answer without an effect on the exit code:
    /// `3` or `5%` [default: 0]
    #[arg(long, global = true, value_name = "HOSTS", default_value = "0", hide_default_value = true)]
    pub(crate) tolerate: Limit,
    /// Change many hosts without a confirmation [needed above 20 hosts, or `confirm_above` of the context]
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
    /// Format of the output
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
    /// Print no line of headings, with `-o table`, `wide` and `csv`
    #[arg(long, global = true)]
    pub(crate) no_headers: bool,
    /// When to use colours; the environment variable NO_COLOR switches them off as well
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// How long to wait for the daemon's answer to a request; with several hosts, for each of them, from the
    /// connection to its answer. A request of many changes has more: twice this for 250, five times this for 1000
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = time_limit)]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) lines: Lines,
    /// The daemon, resolved from options and configuration.
    #[arg(skip)]
    pub(crate) host: Option<Host>,
    /// The hosts, for a command that handles many hosts itself.
    #[arg(skip)]
    pub(crate) fleet: Option<Arc<Fleet>>,
    /// An open connection to use.
    #[arg(skip)]
    pub(crate) client: Option<Client>,
}

impl Global {
    /// Leaves out what the environment says of the connection, for a command that writes down its options.
    pub(crate) fn leave_out_environment(&mut self, matches: &ArgMatches) {
        let is_of_environment = |name: &str| matches.value_source(name) == Some(ValueSource::EnvVariable);
        self.server.take_if(|_| is_of_environment("server"));
        self.domain.take_if(|_| is_of_environment("domain"));
        for (name, file) in [("ca", &mut self.ca), ("cert", &mut self.cert), ("key", &mut self.key)] {
            file.take_if(|_| is_of_environment(name));
        }
    }
}

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    Table,
    /// More columns for people
    Wide,
    /// JSON; one object per line for lists and streams
    Json,
    /// YAML; one document per object for lists and streams
    Yaml,
    /// Names only, one per line
    Name,
    /// Comma-separated values: all columns, with a line of headings
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

/// The selected hosts.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) hosts: Vec<Host>,
    /// The context that names them.
    pub(crate) context: Option<String>,
    pub(crate) parallel: Option<NonZeroUsize>,
    pub(crate) confirm_above: Option<u64>,
}
