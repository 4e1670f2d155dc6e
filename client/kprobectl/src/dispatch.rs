//! Choice of the command to run, and of the daemon or the hosts that it runs against.
//!
//! Owns the ways to run a command: for one daemon, for each of many, for many together, or without any.
//! It prints the failure of a command and returns the exit code.

use std::sync::Arc;

use clap::CommandFactory as _;

use crate::cli::{Cli, Command, Reach};
use crate::command::connection::{Destination, destination};
use crate::command::many_hosts::{self, HostCommand, OnHost};
use crate::command::{
    Exit, Failure, add, adopt, aggregations, apply, attach, audit, auth, check, completions, config, debug,
    delete, describe, diff, doctor, enable, functions, get, hist, hits, label, latency, ledger, list,
    observe, rollout, status, trace, update, version,
};
use crate::global::{Fleet, Format, Global};
use crate::help;
use crate::output::Output;

/// Runs a command and prints what went wrong, if anything.
pub(crate) async fn run(mut cli: Cli, output: &mut Output) -> Exit {
    let result = match find_hosts(&mut cli).await {
        Err(failure) => Err(failure),
        Ok(Some(fleet)) => Box::pin(on_many(cli, fleet, output)).await,
        Ok(None) => on_one(cli, output).await,
    };
    let result = result.and_then(|exit| output.flush().map(|()| exit).map_err(Failure::from));
    result.unwrap_or_else(|failure| failure.report(output))
}

/// Resolves the hosts of the command, or its one daemon.
async fn find_hosts(cli: &mut Cli) -> Result<Option<Fleet>, Failure> {
    let is_published = matches!(&cli.command, Command::Observe(arguments) if arguments.is_published());
    if is_published || cli.command.reach() == Reach::Own {
        return Ok(None);
    }
    match destination(&cli.global).await? {
        Destination::Many(fleet) => Ok(Some(fleet)),
        Destination::One(host) => {
            cli.global.host = Some(host);
            Ok(None)
        }
    }
}

/// Runs a command for many hosts.
async fn on_many(mut cli: Cli, fleet: Fleet, output: &mut Output) -> Result<Exit, Failure> {
    judge_form(&cli, true)?;
    match (cli.command.reach(), cli.command) {
        (Reach::Own | Reach::One, _) => Err(Failure::one_host_only()),
        (Reach::Together, command) => {
            cli.global.fleet = Some(Arc::new(fleet));
            dispatch(command, &cli.global, output).await
        }
        (Reach::Each, mut command) => {
            if !prepare(&mut command, output).await? {
                return Ok(Exit::Refused);
            }
            if command.is_change() && !command.is_dry_run() {
                let plan = command.plan().map(on_each);
                many_hosts::confirm(plan, &cli.global, &fleet, output).await?;
            }
            many_hosts::run(on_each(command), &cli.global, &fleet, output).await
        }
    }
}

/// Reads input that all hosts share. False: it cannot be read, which was reported.
async fn prepare(command: &mut Command, output: &mut Output) -> Result<bool, Failure> {
    match command {
        Command::Check(arguments) => arguments.read_shared().await.map(|()| true),
        Command::Apply(arguments) => arguments.files.are_readable(output).await,
        Command::Diff(arguments) => arguments.files.are_readable(output).await,
        _ => Ok(true),
    }
}

/// The command on one of many hosts.
fn on_each(command: Command) -> HostCommand {
    let (is_change, is_strict) = (command.is_change(), command.is_strict());
    let run = move |global: Global, mut output: Output| -> OnHost {
        let command = command.clone();
        Box::pin(async move {
            let result = match command {
                // Exit codes of `diff` have a meaning of their own.
                Command::Diff(arguments) => diff::answer(&global, arguments, &mut output).await,
                command => on_host(command, &global, &mut output).await,
            };
            (result, output)
        })
    };
    HostCommand { run: Arc::new(run), is_change, is_strict }
}

/// Runs a command for one daemon.
async fn on_one(cli: Cli, output: &mut Output) -> Result<Exit, Failure> {
    judge_form(&cli, false)?;
    if cli.command.handles_signals() {
        return dispatch(cli.command, &cli.global, output).await;
    }
    tokio::select! {
        result = dispatch(cli.command, &cli.global, output) => result,
        _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
    }
}

/// Refuses the forms of lists where there is no list.
fn judge_form(cli: &Cli, has_many_hosts: bool) -> Result<(), Failure> {
    let why = match cli.global.output {
        Format::Csv | Format::Name if has_many_hosts => "each of several hosts has its own",
        Format::Csv | Format::Name if !cli.command.prints_list() => "this command has none",
        _ => return Ok(()),
    };
    let message = format!("`-o name` and `-o csv` print a list, and {why}");
    Err(Failure::usage(message, Some("use `-o json`".to_owned())))
}

/// Runs a command for one daemon, for many together, or for none.
async fn dispatch(command: Command, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
    match command {
        Command::Debug(arguments) => debug::run(global, arguments, output).await,
        Command::Observe(arguments) => observe::run(global, *arguments, output).await,
        Command::Trace(arguments) => trace::run(global, arguments, output).await,
        Command::Hist(arguments) => hist::run(global, arguments, output).await,
        Command::Latency(arguments) => latency::run(global, arguments, output).await,
        Command::Stacks(arguments) => hist::run(global, arguments.by_stack(), output).await,
        Command::Aggregations(arguments) => aggregations::run(global, arguments, output).await,
        Command::Rollout(arguments) => rollout::run(global, arguments, output).await,
        Command::Config(arguments) => config::run(global, arguments, output).await,
        Command::Options => {
            output.raw(help::options().to_string().as_bytes())?;
            Ok(Exit::Success)
        }
        Command::Completions(arguments) => completions::run(&arguments, &mut Cli::command(), output),
        command => on_host(command, global, output).await,
    }
}

/// Runs a command on one host, which may be one of many.
async fn on_host(command: Command, global: &Global, output: &mut Output) -> Result<Exit, Failure> {
    match command {
        Command::Add(arguments) => add::run(global, arguments, output).await,
        Command::Apply(arguments) => apply::run(global, arguments, output).await,
        Command::Diff(arguments) => diff::run(global, arguments, output).await,
        Command::Check(arguments) => check::run(global, arguments, output).await,
        Command::Audit(arguments) => audit::run(global, arguments, output).await,
        Command::Auth(arguments) => auth::run(global, arguments, output).await,
        Command::Describe(arguments) => describe::run(global, arguments, output).await,
        Command::Functions(arguments) => functions::run(global, arguments, output).await,
        Command::List(arguments) => list::run(global, arguments, output).await,
        Command::Get(arguments) => get::run(global, arguments, output).await,
        Command::Enable(arguments) => enable::run(global, arguments, true, output).await,
        Command::Disable(arguments) => enable::run(global, arguments, false, output).await,
        Command::Update(arguments) => update::run(global, arguments, output).await,
        Command::Label(arguments) => label::run(global, arguments, output).await,
        Command::Delete(arguments) => delete::run(global, arguments, output).await,
        Command::Adopt(arguments) => adopt::run(global, arguments, output).await,
        Command::Attach(arguments) => attach::attach(global, arguments, output).await,
        Command::Detach(arguments) => attach::detach(global, arguments, output).await,
        Command::Attached(arguments) => attach::attached(global, arguments, output).await,
        Command::Hits(arguments) => hits::run(global, arguments, output).await,
        Command::Ledger(arguments) => ledger::run(global, arguments, output).await,
        Command::Status(arguments) => status::run(global, arguments, output).await,
        Command::Doctor(arguments) => doctor::run(global, arguments, output).await,
        Command::Version(arguments) => version::run(global, arguments, output).await,
        Command::Observe(_)
        | Command::Trace(_)
        | Command::Hist(_)
        | Command::Latency(_)
        | Command::Stacks(_)
        | Command::Aggregations(_)
        | Command::Debug(_)
        | Command::Rollout(_)
        | Command::Config(_)
        | Command::Options
        | Command::Completions(_) => Err(Failure::one_host_only()),
    }
}
