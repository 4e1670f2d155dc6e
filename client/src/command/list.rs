//! `kprobectl list`: probes by name.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure, glob};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  kprobectl list
  kprobectl list 'kprobes/*' -o wide
  kprobectl list -o json";

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`)
    glob: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let probes = client.list_probes(&glob::of_names(arguments.glob.as_deref().unwrap_or_default())).await?;
    output.probes(&probes)?;
    Ok(Exit::Success)
}
