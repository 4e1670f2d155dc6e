//! `kprobectl completions`: completion scripts for shells.

use clap::Args;
use clap_complete::Shell;

use super::{Exit, Failure};
use crate::output::Output;

const AFTER_HELP: &str = "\
The script completes commands, options and their values.

Examples:
  kprobectl completions bash > /etc/bash_completion.d/kprobectl
  kprobectl completions zsh > ~/.zfunc/_kprobectl
  kprobectl completions fish > ~/.config/fish/completions/kprobectl.fish";

/// Arguments of `completions`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Shell to print the script for
    shell: Shell,
}

pub(crate) fn run(
    arguments: Arguments,
    grammar: &mut clap::Command,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, grammar, "kprobectl", &mut script);
    output.raw(&script)?;
    Ok(Exit::Success)
}
