//! `kprobectl trace`: probes for as long as it runs, and their events.
//!
//! Owns the arguments. Everything else is what `observe` does with probes of its own.

use std::time::Duration;

use clap::Args;

use super::connection::Fleet;
use super::observe::{self, Conditions, Form};
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
Defines probes, follows their events in the order of time, and deletes the probes at the end. It defines all of them or none. Each argument is \
one definition, as for `kprobectl add`, in quotes; the name of a function alone stands for its entry.

The command ends with Ctrl-C, after -n events, after the time of --for, or when the command after `--` has ended. Every event that the probes \
recorded until then is shown or reported as lost: recording begins after the daemon has subscribed the command, and the daemon reads the \
rest before it deletes the probes. The command after `--` is never stopped: if tracing ends before it does, `kprobectl trace` waits for it. \
If `kprobectl trace` is killed, the daemon deletes the probes when it sees the end of the connection; \
if the network fails, after 30 seconds.

Other clients see the probes in `kprobectl list`. `kprobectl add --for 2h` defines probes that outlive the command, for a time.

--filter, --pid, --comm and --cpu select events as for `kprobectl observe`.

With --hosts or --host-selector it defines the probes on all hosts, and shows their events in one order of time, as `kprobectl observe` does. \
They are defined on every host before the first of them records. A host that refuses a definition, or that is lost, is named, with the reason, and \
is in the ledger of hosts; the others go on, unless --fail-fast is given. At the end the probes are deleted on all hosts. On more than 20 hosts (or `confirm_above` of the context) it only \
shows what would be defined, until --yes is added. The command after `--` runs here, once.

Examples:
  kprobectl trace kernel_clone
  kprobectl trace 'p:open do_sys_openat2 filename=+0($arg2):string' --comm 'ssh*'
  kprobectl trace 'p:open do_sys_openat2 dfd=$arg1:s32' 'r:opened do_sys_openat2 fd=$retval:s32' --filter 'fd < 0'
  kprobectl trace 'vfs_read(x64 file)' -n 10 -o json
  kprobectl trace vfs_unlink --for 10s --time delta
  kprobectl trace 'r:opened do_sys_openat2 fd=$retval:s32' --comm cat -- cat /etc/hostname
  kprobectl trace vfs_unlink --hosts 'web[001-020]' --for 10s";

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// What to probe: definitions, each in quotes, or names of functions
    #[arg(required = true, value_name = "DEFINITION")]
    pub(super) definitions: Vec<String>,
    /// Run this command, and stop when it has ended
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    /// Stop after this many events [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long = "for", visible_alias = "duration", value_name = "DURATION", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// With --hosts: how long the others wait for a host that says nothing, before they go on without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(super) max_wait: Duration,
    /// Print no notes and no summary
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) conditions: Conditions,
    #[command(flatten)]
    pub(super) form: Form,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    observe::trace(global, arguments, output).await
}

/// `kprobectl trace` on many hosts.
pub(super) async fn run_on_many(
    global: &Global,
    arguments: Arguments,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    observe::trace_on_many(global, arguments, fleet, output).await
}
