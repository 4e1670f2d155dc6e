//! `kprobectl accept`: arm probes that the daemon holds back after a change of kernel.

use clap::Args;
use kprobed_client::api::AcceptProbeRequest;

use super::connection::connect;
use super::probe_selection::choose;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
On another build of the kernel or of a module, a definition can still be armed and record something
else: an argument is in another register, a member at another offset, or other instructions precede
an offset inside a function. The daemon holds such a probe back. `kprobectl get NAME` shows what it
recorded and what it would record now, and, if there is exactly one equivalent definition for this
kernel, that line: `kprobectl apply` with it as the definition arms it. `accept` arms the probe as
written; then the daemon holds it back on the kernel that it was made for.

Examples:
  kprobectl get kprobes/accept
  kprobectl accept kprobes/accept";

/// Arguments of `accept`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let chosen = choose(&client, arguments.names, None, None).await?;
    let mut exit = Exit::Success;
    let mut probes = Vec::with_capacity(chosen.len());
    for one in chosen {
        let request = AcceptProbeRequest { name: one.name, etag: one.etag, ..AcceptProbeRequest::default() };
        match client.accept_probe(request).await {
            Ok(probe) => probes.push(probe),
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    output.probes_changed(&probes)?;
    Ok(exit)
}
