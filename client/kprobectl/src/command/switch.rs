//! `kprobectl enable` and `kprobectl disable`.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::UpdateProbeRequest;

use super::connection::connect;
use super::labels::selector;
use super::selection::choose;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const ENABLE_HELP: &str = "\
A probe whose event another program has switched off, filtered or removed is repaired: its filter and its
switch are set again, and its event is defined anew. It is shown as armed only if the kernel has it so.

Examples:
  kprobectl enable kprobes/open
  kprobectl enable open opened
  kprobectl enable -l team=storage";

const DISABLE_HELP: &str = "\
Examples:
  kprobectl disable kprobes/open
  kprobectl disable open opened
  kprobectl disable -l team=storage";

/// Arguments of `enable`.
#[derive(Debug, Args)]
#[command(after_help = ENABLE_HELP)]
pub(crate) struct EnableArguments {
    #[command(flatten)]
    probes: Probes,
}

/// Arguments of `disable`.
#[derive(Debug, Args)]
#[command(after_help = DISABLE_HELP)]
pub(crate) struct DisableArguments {
    #[command(flatten)]
    probes: Probes,
}

#[derive(Debug, Args)]
struct Probes {
    /// GROUP/EVENT, or EVENT if only one probe has it
    #[arg(required_unless_present = "selector", value_name = "NAME")]
    names: Vec<String>,
    /// Instead of names: all probes whose labels match, as for `list`
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "names")]
    selector: Option<String>,
    /// Switch probes that belong to a file of the daemon too; they do so no more then
    #[arg(long)]
    take_over: bool,
}

pub(crate) async fn enable(
    global: &Global,
    arguments: EnableArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, arguments.probes, true, output).await
}

pub(crate) async fn disable(
    global: &Global,
    arguments: DisableArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, arguments.probes, false, output).await
}

/// Goes through all names, whatever happens to one of them. The worst exit code wins.
async fn switch(
    global: &Global,
    probes: Probes,
    enabled: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let chosen = choose(&client, probes.names, None, probes.selector).await?;
    let requests = chosen.into_iter().map(|one| UpdateProbeRequest {
        name: one.name,
        etag: one.etag,
        enabled: Some(enabled),
        take_over: probes.take_over,
        ..Default::default()
    });
    let requests: Vec<_> = requests.collect();
    let mut exit = Exit::Success;
    let mut probes = Vec::with_capacity(requests.len());
    for requests in requests.chunks(Client::CHANGES_AT_ONCE) {
        let outcomes = client.update_probes(requests.to_vec()).await.unwrap_or_else(|error| vec![Err(error)]);
        for outcome in outcomes {
            match outcome {
                Ok(probe) => probes.push(probe),
                Err(error) => exit = exit.max(Failure::from(error).report(output)),
            }
        }
    }
    output.probes_changed(&probes)?;
    Ok(exit)
}
