//! `kprobectl check`: the verdict on a definition.

use clap::Args;
use kprobed_client::api::Verdict;

use super::connection::connect;
use super::definition::definition;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Exits with 0 when the running kernel would accept the probe, and with 1 when not. Nothing \
is written to the kernel to find out.

Examples:
  kprobectl check 'p:open do_sys_openat2+4 dfd=$arg1:s32'
  kprobectl check -o json p:fork kernel_clone";

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required = true)]
    definition: Vec<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let definition = definition(&arguments.definition).await?;
    let client = connect(global).await?;
    let answer = client.check_probe(&definition).await?;
    output.check(&definition, &answer)?;
    Ok(if answer.verdict() == Verdict::Accepted { Exit::Success } else { Exit::Refused })
}
