//! `kprobectl filter`: the kernel filter of a probe.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The filter is an expression of the kernel's filter language: FIELD OP VALUE with && || ! and parentheses. Events \
that do not pass are not recorded, but still counted as hits.

Examples:
  kprobectl filter kprobes/open
  kprobectl filter kprobes/open 'dfd == -100 && filename ~ \"/etc/*\"'
  kprobectl filter kprobes/open --clear";

/// Arguments of `filter`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT where only one probe has it
    name: String,
    /// The new filter, as one argument or several; without it the present one is printed
    expression: Vec<String>,
    /// Remove the filter
    #[arg(long, conflicts_with = "expression")]
    clear: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let probe = if arguments.clear {
        client.set_filter(&arguments.name, "").await?
    } else if arguments.expression.is_empty() {
        client.get_probe(&arguments.name).await?
    } else {
        client.set_filter(&arguments.name, &arguments.expression.join(" ")).await?
    };
    output.filter(&probe)?;
    Ok(Exit::Success)
}
