//! `kprobectl explain`: what a definition does, in words.

use clap::Args;

use super::connection::connect;
use super::definition::definition;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Prints the line for the kernel, each argument in words, the fields of an event, and what is \
taken for granted. Whether the kernel would take the place is for `kprobectl check`.

Examples:
  kprobectl explain 'ip_rcv(x64 skb | int skb[32], NULL, string name+8)'
  kprobectl explain 'r:back do_sys_open rv ra # dialect: 2009'
  kprobectl explain -o json 'p:x vfs_read +0(+8($arg1)):string'";

/// Arguments of `explain`.
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
    let answer = client.explain_probe(&definition).await?;
    output.explanation(&answer)?;
    Ok(Exit::Success)
}
