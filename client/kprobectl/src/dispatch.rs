//! Choice of the command to run, and of the daemon or the hosts that it runs against.
//!
//! Owns the ways to run a command: for one daemon, for each of many, for many together, or without any.
//! It prints the failure of a command and returns the exit code.

use std::sync::Arc;

use crate::cli::{Cli, Command, Reach};
use crate::command::connection::{Destination, destination};
use crate::command::many_hosts::{self, HostCommand, OnHost};
use crate::command::{Exit, Failure};
use crate::global::{Fleet, Format, Global};
use crate::output::Output;

/// Runs a command and prints what went wrong, if anything.
pub(crate) async fn run(mut cli: Cli, output: &mut Output) -> Exit {
    let is_diff = matches!(cli.command, Command::Diff(_));
    let result = match find_hosts(&mut cli).await {
        Err(failure) => Err(failure),
        Ok(Some(fleet)) => Box::pin(on_many(cli, fleet, output)).await,
        Ok(None) => Box::pin(on_one(cli, output)).await,
    };
    let result = result.and_then(|exit| match output.flush().map_err(Failure::from) {
        // The reader needs no more output, and the exit code is still that of what was done.
        Err(closed) if closed.is_broken_pipe() => Ok(exit),
        flushed => flushed.map(|()| exit),
    });
    let result = result.map_err(|failure| if is_diff { failure.of_diff() } else { failure });
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
            command.run(&cli.global, output).await
        }
        (reach, mut command) => {
            command.read_files(true).await?;
            cli.global.timeout = cli.global.timeout.saturating_add(command.lasts());
            if reach == Reach::Change && !command.is_dry_run() {
                let plan = command.plan().map(on_each);
                many_hosts::confirm(plan, &cli.global, &fleet, output).await?;
            }
            many_hosts::run(on_each(command), &cli.global, &fleet, output).await
        }
    }
}

/// The command on one of many hosts.
fn on_each(command: Command) -> HostCommand {
    let (is_change, is_strict) = (command.reach() == Reach::Change, command.is_strict());
    let run = move |global: Global, mut output: Output| -> OnHost {
        let command = command.clone();
        Box::pin(async move {
            let result = command.run_on_host(&global, &mut output).await;
            (result, output)
        })
    };
    HostCommand { run: Arc::new(run), is_change, is_strict }
}

/// Runs a command for one daemon.
async fn on_one(cli: Cli, output: &mut Output) -> Result<Exit, Failure> {
    judge_form(&cli, false)?;
    if cli.command.handles_signals() {
        return cli.command.run(&cli.global, output).await;
    }
    let mut command = cli.command;
    let is_endless = command.is_endless();
    let left = (command.reach() == Reach::Change && !command.is_dry_run())
        .then_some("the daemon may have carried out the request: `kprobectl list` shows the probes");
    let work = async {
        command.read_files(false).await?;
        command.run(&cli.global, output).await
    };
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => {
            // What has no other end ends so.
            if is_endless { Ok(Exit::Success) } else { Err(Failure::interrupted(left)) }
        }
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
    Err(Failure::usage(message, "use `-o json`"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        global: Global,
    }

    #[test]
    fn a_closed_pipe_is_no_failed_comparison() {
        let Options { global } = Options::parse_from(["kprobectl"]);
        let mut output = Output::new(&global).keeping();
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(closed.is_broken_pipe());
        assert_eq!(closed.of_diff().report(&mut output), Exit::Success);
        let failed = || Failure::refused("no", "yes");
        assert_eq!(failed().of_diff().report(&mut output), Exit::Usage);
        assert_eq!(failed().report(&mut output), Exit::Refused);
    }
}
