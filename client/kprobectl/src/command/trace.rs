//! `kprobectl trace`: temporary probes and their events.
//!
//! Owns the arguments. `observe` has the temporary probes and the loop.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::EventOrder;

use super::observe::{Conditions, OutputOptions, Session, max_wait};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

/// Arguments of `trace`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/trace.txt"))]
pub(crate) struct Arguments {
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

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
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
        ends: false,
        once: true,
    };
    session.run(global, output).await
}
