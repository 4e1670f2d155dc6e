//! `kprobectl symbols`: functions by name.

use clap::Args;
use kprobed_client::api::ListFunctionsRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
PLACE is what to write in a definition to mean this very function: its name, or something else \
when several have it. Probes go where ftrace can trace (TRACEABLE) and the kernel allows \
kprobes (not BLACKLISTED).

Examples:
  kprobectl symbols vfs_read
  kprobectl symbols 'vfs_*' --traceable
  kprobectl symbols --module btrfs -o json | jq -r .place";

/// Arguments of `symbols`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// A glob for whole names (`*`, `?`), or a part of names
    #[arg(default_value = "", hide_default_value = true, required_unless_present = "module")]
    pattern: String,
    /// Only functions of this module
    #[arg(short, long, default_value = "", hide_default_value = true)]
    module: String,
    /// Only functions that ftrace can trace
    #[arg(short, long)]
    traceable: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let Arguments { pattern, module, traceable } = arguments;
    let request = ListFunctionsRequest {
        pattern: pattern.clone(),
        module,
        traceable_only: traceable,
        ..Default::default()
    };
    let answer = client.list_functions(request).await?;
    if answer.functions.is_empty() {
        return Err(Failure::NoFunction { pattern, suggestions: answer.suggestions });
    }
    output.functions(&answer.functions)?;
    Ok(Exit::Success)
}
