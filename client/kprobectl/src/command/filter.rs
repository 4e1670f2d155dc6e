//! `kprobectl filter`: show, set or clear the kernel filter of a probe.

use clap::Args;
use kprobed_client::api::UpdateProbeRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The filter is an expression of the kernel's filter language: FIELD OP VALUE with && || ! and \
parentheses. The kernel does not record events that do not pass, and still counts them as hits.

Examples:
  kprobectl filter kprobes/open
  kprobectl filter kprobes/open 'dfd == -100 && filename ~ \"/etc/*\"'
  kprobectl filter kprobes/open --clear";

/// Arguments of `filter`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    name: String,
    /// The new filter, as one argument or several [default: print the current filter]
    expression: Vec<String>,
    /// Remove the filter
    #[arg(long, conflicts_with = "expression")]
    clear: bool,
    /// Also filter a probe that a file of the daemon declares; it then no longer belongs to it
    #[arg(long)]
    take_over: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let request = |filter| UpdateProbeRequest {
        name: arguments.name.clone(),
        filter: Some(filter),
        take_over: arguments.take_over,
        ..Default::default()
    };
    let probe = if arguments.clear {
        client.update_probe(request(String::new())).await?
    } else if arguments.expression.is_empty() {
        client.get_probe(&arguments.name).await?
    } else {
        client.update_probe(request(arguments.expression.join(" "))).await?
    };
    output.filter(&probe)?;
    Ok(Exit::Success)
}
