//! `kprobectl filter`: show, set, clear or try the kernel filter of a probe.

use clap::Args;
use kprobed_client::api::UpdateProbeRequest;
use kprobed_client::event::StreamRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The filter is an expression of the kernel's filter language: FIELD OP VALUE with && || ! and \
parentheses. The kernel does not record events that do not pass, and still counts them as hits.

--dry-run changes nothing. It takes a filter of `kprobectl observe --filter`, which may also use comm, \
pid, tgid, cpu, probe and host. For each probe it prints the kernel filter that selects these events, \
and more events if the kernel cannot make every comparison. It exits with 1 unless the kernel filter \
is exact for every probe.

Examples:
  kprobectl filter kprobes/open
  kprobectl filter kprobes/open 'dfd == -100 && filename ~ \"/etc/*\"'
  kprobectl filter kprobes/open --clear
  kprobectl filter 'kprobes/*' --dry-run 'comm == \"cat\" && dfd == -100'";

/// Arguments of `filter`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it; with --dry-run also `*` and `?`
    name: String,
    /// The new filter, as one argument or several [default: print the current filter]
    expression: Vec<String>,
    /// Remove the filter
    #[arg(long, conflicts_with = "expression")]
    clear: bool,
    /// Also filter a probe that a file of the daemon declares; it then no longer belongs to it
    #[arg(long)]
    take_over: bool,
    /// Change nothing, and print the kernel filter for a filter of `kprobectl observe`
    #[arg(long, requires = "expression")]
    dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    if arguments.dry_run {
        let mut request = StreamRequest::new().filter(arguments.expression.join(" "));
        if arguments.name != "*" {
            request = request.probe(glob::of_names(&arguments.name));
        }
        let checked = client.check_filter(request.selection().clone()).await?;
        if checked.is_empty() {
            return Err(Failure::NoMatch(arguments.name));
        }
        output.filter_check(&request.selection().filter, &checked)?;
        let exact = checked.iter().all(|found| found.exact && found.problem.is_none());
        return Ok(if exact { Exit::Success } else { Exit::Refused });
    }
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
