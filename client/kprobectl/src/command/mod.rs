//! What each command does.
//!
//! Owns the way from arguments to calls and back to an exit code, one file for each command. It never prints by itself: that is
//! for `output`.

pub(crate) mod accept;
pub(crate) mod add;
pub(crate) mod adopt;
pub(crate) mod aggregations;
pub(crate) mod apply;
pub(crate) mod attach;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod disasm;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod exporters;
pub(crate) mod filter;
pub(crate) mod get;
pub(crate) mod hist;
pub(crate) mod label;
pub(crate) mod latency;
pub(crate) mod ledger;
pub(crate) mod list;
pub(crate) mod observe;
pub(crate) mod profile;
pub(crate) mod reconcile;
pub(crate) mod renew;
pub(crate) mod rollout;
pub(crate) mod stacks;
pub(crate) mod switch;
pub(crate) mod symbols;
pub(crate) mod trace;
pub(crate) mod version;

mod child;
mod connection;
mod counting;
mod definition;
mod descriptors;
mod documents;
mod failure;
mod fleet;
mod labels;
mod pieces;
mod published;
mod selection;
mod stop;
mod together;
mod wanted;

pub(crate) use connection::Fleet;
pub(crate) use failure::{Exit, Failure};

use std::sync::Arc;

use crate::cli::{Cli, Command, Format};
use crate::output::Output;

/// Runs a command and prints what went wrong, if anything.
pub(crate) async fn run(mut cli: Cli, output: &mut Output) -> Exit {
    let result = match find_hosts(&mut cli).await {
        Err(failure) => Err(failure),
        Ok(Some(fleet)) => on_many(cli, fleet, output).await,
        Ok(None) => on_one(cli, output).await,
    };
    let result = result.and_then(|exit| output.flush().map(|()| exit).map_err(Failure::from));
    result.unwrap_or_else(|failure| failure.report(output))
}

/// Finds out what the command talks to: hosts, if it asks for them, or one daemon.
async fn find_hosts(cli: &mut Cli) -> Result<Option<Fleet>, Failure> {
    let is_published = match &cli.command {
        Command::Observe(arguments) => arguments.is_published(),
        Command::List(arguments) => arguments.is_published(),
        Command::Profile(arguments) => arguments.is_published(),
        _ => false,
    };
    if is_published || !cli.command.needs_daemon() {
        return Ok(None);
    }
    match connection::aim(&cli.global).await? {
        connection::Aim::Many(fleet) => Ok(Some(fleet)),
        connection::Aim::One(host) => {
            cli.global.host = Some(host);
            Ok(None)
        }
    }
}

/// Runs a command for many hosts.
async fn on_many(mut cli: Cli, fleet: Fleet, output: &mut Output) -> Result<Exit, Failure> {
    if cli.global.output != Format::Folded || !matches!(cli.command, Command::Hist(_) | Command::Stacks(_)) {
        fleet::judge_format(cli.global.output)?;
    }
    match cli.command {
        // Merges what the hosts send, instead of showing what each of them said.
        Command::Observe(arguments) => observe::run_on_many(&cli.global, *arguments, &fleet, output).await,
        Command::Trace(arguments) => trace::run_on_many(&cli.global, arguments, &fleet, output).await,
        Command::Hist(arguments) => {
            cli.global.fleet = Some(Arc::new(fleet));
            hist::run(&cli.global, arguments, output).await
        }
        Command::Latency(arguments) => {
            cli.global.fleet = Some(Arc::new(fleet));
            latency::run(&cli.global, arguments, output).await
        }
        Command::Stacks(arguments) => {
            cli.global.fleet = Some(Arc::new(fleet));
            stacks::run(&cli.global, arguments, output).await
        }
        command => fleet::run(fleet::Asked::new(command)?, &cli.global, fleet, output).await,
    }
}

/// Runs a command for one daemon.
async fn on_one(cli: Cli, output: &mut Output) -> Result<Exit, Failure> {
    match cli.command {
        _ if cli.global.output == Format::Folded && !cli.command.has_stacks() => {
            let message = "`-o folded` prints call stacks, and this command has none".to_owned();
            Err(Failure::usage(message, Some("see `kprobectl help stacks`".to_owned())))
        }
        _ if cli.global.output == Format::Csv && !cli.command.has_csv() => {
            let message =
                "`-o csv` is a form of `kprobectl profile`, and this command does not have it".to_owned();
            Err(Failure::usage(message, Some("use `-o json`".to_owned())))
        }
        // Ends its stream in order when it is interrupted, and so waits for signals itself. The same holds for those that count.
        Command::Observe(arguments) => observe::run(&cli.global, *arguments, output).await,
        Command::Trace(arguments) => trace::run(&cli.global, arguments, output).await,
        Command::Hist(arguments) => hist::run(&cli.global, arguments, output).await,
        Command::Latency(arguments) => latency::run(&cli.global, arguments, output).await,
        Command::Stacks(arguments) => stacks::run(&cli.global, arguments, output).await,
        Command::Aggregations(arguments) => aggregations::run(&cli.global, arguments, output).await,
        Command::Rollout(arguments) => rollout::run(&cli.global, arguments, output).await,
        command => tokio::select! {
            result = dispatch(command, &cli.global, output) => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        },
    }
}

async fn dispatch(
    command: Command,
    global: &crate::cli::Global,
    output: &mut Output,
) -> Result<Exit, Failure> {
    match command {
        Command::Add(arguments) => add::run(global, arguments, output).await,
        Command::Apply(arguments) => apply::run(global, arguments, output).await,
        Command::Diff(arguments) => diff::run(global, arguments, output).await,
        Command::Check(arguments) => check::run(global, arguments, output).await,
        Command::Explain(arguments) => explain::run(global, arguments, output).await,
        Command::Describe(arguments) => describe::run(global, arguments, output).await,
        Command::Symbols(arguments) => symbols::run(global, arguments, output).await,
        Command::Disasm(arguments) => disasm::run(global, arguments, output).await,
        Command::List(arguments) => list::run(global, arguments, output).await,
        Command::Get(arguments) => get::run(global, arguments, output).await,
        Command::Accept(arguments) => accept::run(global, arguments, output).await,
        Command::Enable(arguments) => switch::enable(global, arguments, output).await,
        Command::Disable(arguments) => switch::disable(global, arguments, output).await,
        Command::Filter(arguments) => filter::run(global, arguments, output).await,
        Command::Label(arguments) => label::run(global, arguments, output).await,
        Command::Renew(arguments) => renew::run(global, arguments, output).await,
        Command::Delete(arguments) => delete::run(global, arguments, output).await,
        Command::Adopt(arguments) => adopt::run(global, arguments, output).await,
        Command::Reconcile(arguments) => reconcile::run(global, arguments, output).await,
        Command::Observe(arguments) => observe::run(global, *arguments, output).await,
        Command::Trace(arguments) => trace::run(global, arguments, output).await,
        Command::Attach(arguments) => attach::attach(global, arguments, output).await,
        Command::Detach(arguments) => attach::detach(global, arguments, output).await,
        Command::Attached(arguments) => attach::attached(global, arguments, output).await,
        Command::Hist(arguments) => hist::run(global, arguments, output).await,
        Command::Latency(arguments) => latency::run(global, arguments, output).await,
        Command::Stacks(arguments) => stacks::run(global, arguments, output).await,
        Command::Aggregations(arguments) => aggregations::run(global, arguments, output).await,
        Command::Profile(arguments) => profile::run(global, arguments, output).await,
        Command::Ledger(arguments) => ledger::run(global, arguments, output).await,
        Command::Exporters(arguments) => exporters::run(global, arguments, output).await,
        Command::Doctor(arguments) => doctor::run(global, arguments, output).await,
        Command::Rollout(arguments) => rollout::run(global, arguments, output).await,
        Command::Config(arguments) => config::run(global, arguments, output).await,
        Command::Completions(arguments) => completions::run(&arguments, output),
        Command::Version(arguments) => version::run(global, arguments, output).await,
    }
}
