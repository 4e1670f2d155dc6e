//! `kprobectl`, the command line of kprobed.
//!
//! Owns the start and the end of the process: arguments in, exit code out. `command` carries out
//! commands, and `output` prints.

mod cli;
mod command;
mod completion;
mod config;
mod dispatch;
mod global;
mod help;
mod lines;
mod manual;
mod output;
mod progress;
mod quantity;
mod rollout;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::FromArgMatches as _;

use crate::cli::Cli;
use crate::output::Output;

fn main() -> ExitCode {
    if completion::answer() || manual::answer() {
        return ExitCode::SUCCESS;
    }
    let matches = help::grammar().try_get_matches().unwrap_or_else(|error| help::explained(error).exit());
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if cli.command.keeps_options() {
        cli.global.leave_out_environment(&matches);
    }
    let mut output = Output::new(&cli.global);
    match start(cli, &mut output) {
        Ok(exit) => exit.into(),
        Err(error) => {
            command::Failure::new(command::Exit::Refused, format!("{error:#}"), []).report(&mut output).into()
        }
    }
}

/// One worker receives and unpacks events while this thread formats them.
fn start(cli: Cli, output: &mut Output) -> anyhow::Result<command::Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(dispatch::run(cli, output)))
}
