//! `kprobectl observe`: follow new events, and read the history. `kprobectl trace`: temporary probes and their events.
//!
//! Owns the arguments and the requests for them. Events that arrive faster than they are printed wait in
//! the daemon's queue for this client; what that queue drops is reported as a loss.

mod follow;
#[cfg(feature = "nats")]
mod from_nats;
mod joined;
mod observed;
mod options;
mod session;
mod source;
mod temporary_probes;

use std::time::Duration;

use clap::Args;
use kprobed_client::api::EventOrder;
use kprobed_client::event::StreamRequest;

use self::options::{Conditions, Delivery, NatsArguments, OutputOptions, Selection, TimeRange, max_wait};
use self::session::Session;
use self::source::CursorFile;
pub(super) use self::temporary_probes::{NO_EVENT, TemporaryProbes};
use super::{Exit, Failure};
use crate::command::probe_selection::glob_of_names;
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

/// Arguments of `observe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("../help/observe.txt"))]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`), including probes that are defined later [default: all]
    #[arg(value_name = "PROBE-GLOB")]
    probes: Vec<String>,
    /// Define this probe as well, for as long as the command runs; as for `trace`. May be given more than once
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION", conflicts_with_all = ["history", "until_now", "cursor", "selector", "from"])]
    definitions: Vec<String>,
    /// Show the call stack of the kernel with each event of the probes of -p, as for `trace`
    #[arg(long, alias = "kstack", requires = "definitions")]
    stack: bool,
    /// Stop after this many events [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// With --hosts: how long the others wait for a silent host before they continue without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = max_wait)]
    max_wait: Duration,
    /// Print no notes and no summary
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    start: TimeRange,
    #[command(flatten)]
    delivery: Delivery,
    #[command(flatten)]
    form: OutputOptions,
    #[command(flatten)]
    from: NatsArguments,
}

impl Arguments {
    /// Whether events are read that were published, and not those of daemons.
    pub(crate) fn is_published(&self) -> bool {
        self.from.url.is_some()
    }

    /// Follows these events, as the other arguments say.
    fn session(self, request: StreamRequest, cursor_file: Option<CursorFile>) -> Session {
        Session {
            request,
            definitions: self.definitions,
            stack: self.stack,
            command: Vec::new(),
            count: self.count,
            duration: self.duration,
            max_wait: self.max_wait,
            quiet: self.quiet,
            ordered: self.delivery.order == EventOrder::Time,
            cursor_file,
            once: self.delivery.no_reconnect,
            form: self.form,
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.is_published() {
        #[cfg(feature = "nats")]
        return from_nats::run(global, arguments, output).await;
        #[cfg(not(feature = "nats"))]
        return Err(Failure::usage(
            "`--from` cannot be used: this build of kprobectl cannot read from NATS",
            "install the package, which can, or build with `--features kprobectl/nats`",
        ));
    }
    if global.fleet.is_some() && arguments.start.cursor.is_some() {
        let message = "`--cursor` is a place in the events of one host, and `--hosts` asks for several";
        return Err(Failure::usage(message, "use `--since`, or `--server` for one host"));
    }
    let cursor_file = arguments.start.cursor.as_deref().map(CursorFile::open).transpose()?;
    let is_all = arguments.probes.iter().any(|pattern| pattern == "*");
    if is_all && !arguments.definitions.is_empty() {
        let message = "`*` selects all probes, those of `--probe` among them";
        return Err(Failure::usage(message, "leave `*` out to see the events of `--probe` alone"));
    }
    let patterns = arguments.probes.iter().filter(|_| !is_all);
    let globs: Vec<String> = patterns.map(|pattern| glob_of_names(pattern)).collect();
    let request = arguments.delivery.apply(arguments.selection.request(&globs)?);
    let request = arguments.start.apply(request, cursor_file.as_ref())?;
    arguments.session(request, cursor_file).run(global, output).await
}

/// Arguments of `trace`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("../help/trace.txt"))]
pub(crate) struct TraceArguments {
    /// Functions, system calls, events, calls or definitions, each in quotes
    #[arg(required = true, value_name = "DEFINITION")]
    definitions: Vec<String>,
    /// Run this command, and stop when it has ended [default: none]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Stop after this many events or calls [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// With --hosts: how long the others wait for a silent host before they continue without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = max_wait)]
    max_wait: Duration,
    /// Show the call stack of the kernel with each event
    #[arg(long, alias = "kstack")]
    stack: bool,
    /// Print no notes and no summary
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    form: OutputOptions,
}

pub(crate) async fn trace(
    global: &Global,
    arguments: TraceArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let session = Session {
        request: arguments.conditions.request()?.order(EventOrder::Time),
        definitions: arguments.definitions,
        stack: arguments.stack,
        command: arguments.command,
        count: arguments.count,
        duration: arguments.duration,
        max_wait: arguments.max_wait,
        quiet: arguments.quiet,
        form: arguments.form,
        ordered: true,
        cursor_file: None,
        once: true,
    };
    session.run(global, output).await
}
