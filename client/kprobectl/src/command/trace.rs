//! `kprobectl trace`: temporary probes and their events.
//!
//! Owns the arguments. `observe` has the temporary probes and the loop.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::EventOrder;

use super::observe::{Conditions, OutputOptions, Session, max_wait};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
Defines temporary probes, prints their events in order of time, and deletes the probes when it ends. It defines \
all of them or none. Each argument is a definition, in single quotes if it has blanks: the name of a function, of a \
system call or of an event, or a line as for `kprobectl add`. `kprobectl help language` explains definitions. A note \
shows the line that a name becomes. The name of a function alone records all of its parameters. `vfs_*` selects each \
function that matches; more than 100 probes need --yes.

`FUNCTION(ARGUMENTS) -> NAME:TYPE` is a call: an entry probe and a return probe, whose events are printed as one \
line when the function returns, with the duration. Arguments are names of parameters (`filename:ustring`, \
`how->flags`), `*` for all of them, or `NAME=` and a value of a definition (`+0($arg2):ustring`). Types can be left \
out if the kernel has them, and so can `-> NAME`. --filter can use the fields of both ends. If one end of a call is \
missing, its line has the reason: `no entry` (the call began before), `no return` (the kernel missed it), `running` \
(when the command ended), `gap` (events were lost), `limit` (65536 calls were open, and this was the oldest). The \
summary counts such calls, and -n counts each as one. If returns of a recursive function are missed (NMISSED), a \
call may be joined with the return of an outer call.

The command ends at Ctrl-C, after -n events, after the time of --for, or when the command after `--` has ended. \
Every event that the probes recorded until then is printed or reported as lost: the probes begin to record after the \
daemon has subscribed the command, the command after `--` starts when all probes record, and the daemon reads the \
last events before it deletes the probes. If it cannot read them, the summary has the reason and `at least` how many \
events are lost. `kprobectl trace` never stops the command after `--`: if tracing ends first, it waits for that command. If `kprobectl trace` is killed, the daemon deletes the probes when it sees the end of the \
connection; if the network fails, after 40 seconds.

Other clients see the probes in `kprobectl list`. `kprobectl add --lease 2h` defines probes that outlive \
the command, for a limited time.

--filter, --pid, --tid, --comm and --cpu select events as for `kprobectl observe`. The kernel applies them if it \
can, and then records no other events. It knows threads and not processes: the daemon applies --pid, `tgid`, names of \
symbols, and comparisons joined to these by `||`. --comm compares the name that a task has when the probe is hit. The \
summary has the number of events that were recorded, and of those that were not selected.

--stack shows below each event the functions of the kernel that led to it, the innermost first; for a return \
probe, from the caller on. With -o json they are the array `stack` of the fields. --filter can search them \
(`stack ~ \"*ext4_*\"`). The kernel records each stack right after its event. A stack that was lost, or that may \
not be that of its event, is shown as lost, and the number of a gap includes stacks. Functions of the program \
are not shown: at a probe, the kernel can read neither its memory nor its unwinding tables. A stack costs a hit \
several times what the event costs; only the probes of this command pay for it. --stack needs a rule with \
`stack-traces` in `reads`, and a kernel from 5.18 on, and is refused for a probe that the kernel arms by a jump. \
`kprobectl stacks` counts stacks instead.

With --hosts or --host-selector, the command defines the probes on all hosts before the first of them records, and \
prints their events in one order of time, as `kprobectl observe` does. A host that refuses a definition, \
or is lost, is reported with the reason and counted in the ledger of hosts; the others continue, unless \
--fail-fast is given. At the end the probes are deleted on all hosts. On more than 20 hosts (or \
`confirm_above` of the context) the command only shows what it would define, unless --yes is given. The \
command after `--` runs once, on this machine.

Examples:
  kprobectl trace vfs_read
  kprobectl trace 'do_sys_openat2(filename:ustring, how->flags) -> fd:s32' --filter 'fd < 0'
  kprobectl trace openat --comm cat
  kprobectl trace 'vfs_read count pos' vfs_write%return
  kprobectl trace 'vfs_un*' --for 10s
  kprobectl trace vfs_unlink --stack -n 10
  kprobectl trace sched:sched_process_exec
  kprobectl trace 'p:open do_sys_openat2 filename=+0($arg2):ustring' --comm 'ssh*'
  kprobectl trace 'vfs_read(count) -> read:s64' --comm postgres --for 10s -o json
  kprobectl trace 'vfs_read(x64 file)' -n 10 -o json
  kprobectl trace vfs_unlink --for 10s --time delta
  kprobectl trace 'r:opened do_sys_openat2 fd=$retval:s32' --comm cat -- cat /etc/hostname
  kprobectl trace vfs_unlink --hosts 'web[001-020]' --for 10s";

/// Arguments of `trace`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Functions, system calls, events, calls or definitions, each in quotes
    #[arg(required = true, value_name = "DEFINITION")]
    definitions: Vec<String>,
    /// Run this command, and stop when it has ended [default: none]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Stop after this many events or calls [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// With --hosts: how long the others wait for a silent host before they continue without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = max_wait)]
    max_wait: Duration,
    /// Show the call stack of the kernel with each event
    #[arg(long, alias = "kstack")]
    stack: bool,
    /// Print no notes and no summary
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    form: OutputOptions,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let session = Session {
        request: arguments.conditions.request()?.order(EventOrder::Time),
        definitions: arguments.definitions,
        stack: arguments.stack,
        command: arguments.command,
        count: arguments.count,
        duration: arguments.duration,
        max_wait: arguments.max_wait,
        quiet: arguments.quiet,
        form: arguments.form,
        ordered: true,
        cursor_file: None,
        ends: false,
        once: true,
    };
    session.run(global, output).await
}
