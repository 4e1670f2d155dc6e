//! `kprobectl completions`: scripts for shells.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Exit, Failure};
use crate::cli::Cli;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  kprobectl completions bash > /etc/bash_completion.d/kprobectl
  kprobectl completions zsh > ~/.zfunc/_kprobectl
  kprobectl completions fish > ~/.config/fish/completions/kprobectl.fish";

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "kprobectl", &mut script);
    output.raw(&script)?;
    Ok(Exit::Success)
}
