//! `kprobectl completion`: the script by which a shell asks this command.

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::{Exit, Failure};
use crate::output::Output;

const AFTER_HELP: &str = "\
The script has the shell ask this command at each TAB: for commands, options and their values, and for probes, \
functions, system calls, events and fields, which the daemon knows. A daemon that does not answer within a quarter of \
a second is not waited for. Print the script again after an upgrade.

Examples:
  kprobectl completion bash > /etc/bash_completion.d/kprobectl
  kprobectl completion zsh > ~/.zfunc/_kprobectl
  kprobectl completion fish > ~/.config/fish/completions/kprobectl.fish";

/// The variable by which the script says that it asks.
pub(crate) const VARIABLE: &str = "KPROBECTL_COMPLETE";

/// Arguments of `completion`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub(crate) fn run(arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let shells = Shells::builtins();
    let shell = arguments.shell.to_string();
    let Some(completer) = shells.completer(&shell) else {
        return Err(Failure::usage(format!("there is no script for `{shell}`"), None));
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "kprobectl", "kprobectl", "kprobectl", &mut script)?;
    output.raw(&script)?;
    Ok(Exit::Success)
}
