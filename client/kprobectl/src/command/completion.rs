//! `kprobectl completion`: the script by which a shell asks this command.

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::{Exit, Failure};
use crate::output::Output;

/// The variable by which the script says that it asks.
pub(crate) const VARIABLE: &str = "KPROBECTL_COMPLETE";

/// Arguments of `completion`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = include_str!("help/completion.txt"))]
pub(crate) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub(crate) fn run(arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let shells = Shells::builtins();
    let shell = arguments.shell.to_string();
    let Some(completer) = shells.completer(&shell) else {
        return Err(Failure::new(Exit::Usage, format!("there is no script for `{shell}`"), []));
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "kprobectl", "kprobectl", "kprobectl", &mut script)?;
    output.raw(&script)?;
    Ok(Exit::Success)
}
