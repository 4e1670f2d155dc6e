//! `cargo vm check`: all checks that need no guest.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kprobed_vm::workspace;

/// Run every check that needs no guest: format, words, lints, documentation, dependencies, tests on
/// the host
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm check

This is the first half of `.ci/run`; `cargo vm test --guest-only` is the other.")]
pub(crate) struct Check {}

impl Check {
    pub(crate) fn run() -> Result<ExitCode> {
        let root = workspace::root().context("run this in the source directory, through `cargo vm`")?;
        let status = Command::new(root.join(".ci/run"))
            .arg("host")
            .current_dir(&root)
            .status()
            .context("cannot run .ci/run")?;
        if !status.success() {
            bail!("a check failed ({status})");
        }
        Ok(ExitCode::SUCCESS)
    }
}
