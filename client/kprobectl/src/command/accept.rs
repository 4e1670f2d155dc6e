//! `kprobectl accept`: what probes record on this kernel is right.

use clap::Args;
use kprobed_client::api::AcceptProbeRequest;

use super::connection::connect;
use super::selection::choose;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
On another build of the kernel, or of its module, a definition can arm and record something else: an argument
that has moved to another register, a member at another offset, other instructions before a place inside a
function. Such a probe is held back. `kprobectl get NAME` shows both sides, and the line for this kernel where
exactly one is possible: `--ported` arms that one. Without it, the probe is armed as it is written. On the
kernel that it was made for, it is held back from then on.

Examples:
  kprobectl get kprobes/accept
  kprobectl accept kprobes/accept
  kprobectl accept --ported kprobes/open";

/// Arguments of `accept`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Arm the line that is offered for this kernel instead, which replaces the definition
    #[arg(long)]
    ported: bool,
}

/// Goes through all names, whatever happens to one of them. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let ported = arguments.ported;
    let chosen = choose(&client, arguments.names, None, None).await?;
    let mut exit = Exit::Success;
    let mut probes = Vec::with_capacity(chosen.len());
    for one in chosen {
        let request =
            AcceptProbeRequest { name: one.name, etag: one.etag, ported, ..AcceptProbeRequest::default() };
        match client.accept_probe(request).await {
            Ok(probe) => probes.push(probe),
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    output.probes_changed(&probes)?;
    Ok(exit)
}
