//! `kprobectl reload`: the configuration of the daemon, read again.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Does what `systemctl reload kprobed` does, and shows what differs. Roles and certificates are in force when the command \
returns; other settings need a restart of the daemon. With a mistake in the file nothing changes, and the exit code is 1. \
Needs a role that may `administer`.

Examples:
  kprobectl reload --dry-run
  kprobectl reload";

/// Arguments of `reload`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Show what differs, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let changes = connect(global).await?.reload(arguments.dry_run).await?;
    output.setting_changes(&changes, arguments.dry_run)?;
    Ok(Exit::Success)
}
