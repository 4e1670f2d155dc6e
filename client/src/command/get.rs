//! `kprobectl get`: everything about one probe.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  kprobectl get kprobes/open
  kprobectl get open -o yaml";

/// Arguments of `get`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    name: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let probe = client.get_probe(&arguments.name).await?;
    output.probe(&probe)?;
    Ok(Exit::Success)
}
