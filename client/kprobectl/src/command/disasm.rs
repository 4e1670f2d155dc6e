//! `kprobectl disasm`: the instructions of a function, and where a probe can be placed.

use clap::Args;
use kprobed_client::api::ProbeKind;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Shows the instructions as they are in memory now. PROBE says how the kernel would arm a probe there: through ftrace, \
with a breakpoint, or with a jump that replaces the breakpoint. If a rule forbids a probe there, it names the rule; \
`-o wide` adds the reason.

If several functions have the name, the command fails with a hint how to name each of them.

Examples:
  kprobectl disasm vfs_read
  kprobectl disasm vfs_read+11
  kprobectl disasm --return kernel_clone
  kprobectl disasm btrfs:btrfs_sync_file -o json | jq -r 'select(.probeable).offset'";

/// Arguments of `disasm`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The function: `[MODULE:]NAME`, `NAME+OFFSET`, or an address in it
    function: String,
    /// Show where a return probe can be placed [default: an entry probe]
    #[arg(long)]
    r#return: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let kind = if arguments.r#return { ProbeKind::Return } else { ProbeKind::Entry };
    let answer = client.disassemble_function(&arguments.function, kind).await?;
    if answer.function.is_none() {
        let name = arguments.function;
        return Err(Failure::SeveralFunctions { name, candidates: answer.candidates });
    }
    output.disassembly(&answer)?;
    Ok(Exit::Success)
}
