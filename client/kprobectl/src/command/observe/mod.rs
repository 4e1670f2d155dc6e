//! `kprobectl observe`: follow new events, and read the history. `kprobectl trace` uses its parts.
//!
//! Owns the arguments and the requests for them. Events that arrive faster than they are printed wait in
//! the daemon's queue for this client; what that queue drops is reported as a loss.

mod cursor_file;
mod follow;
#[cfg(feature = "nats")]
mod from_nats;
mod joined;
mod options;
mod selection_notes;
mod session;
mod skipped_runs;
mod source;
mod temporary_probes;

use std::time::Duration;

use clap::Args;
use kprobed_client::event::StreamRequest;

use self::cursor_file::CursorFile;
pub(super) use self::options::{Conditions, OutputOptions, max_wait};
use self::options::{Delivery, NatsArguments, Order, Selection, TimeRange};
pub(super) use self::session::Session;
pub(super) use self::temporary_probes::{NO_EVENT, TemporaryProbes};
use super::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
Follows new events until Ctrl-C, or until -n or --for is reached. --since, --last and --oldest read \
the history and end with it, unless -f follows new events after it. If the connection is lost, the \
command connects again and reads the missed events from the history; events that the history does not \
have are reported as lost.

The note `observing N probes` on stderr means that the daemon has subscribed the command: every event \
recorded from then on is shown or reported as lost. A script should wait for it before it causes events. \
It is not printed with -q, or if only the history is read.

--filter is an expression of the kernel's filter language over the fields of the probe and comm, pid \
(thread id), tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and globs, \
&& || ! and parentheses. A field of the probe that has one of these names is written fields.NAME. The \
daemon evaluates the filter, for this command only. --pid (the process, tgid), --tid (the thread, pid), --comm and --cpu \
are short forms of such conditions; several values of one of them are alternatives. The kernel's filter of a probe \
(`kprobectl update --filter`) prevents that events are recorded.

TIME is how long ago (`10m`, `7h`), a time of day (`07:00`: the last such moment), or a date with a time, \
in RFC 3339 or as printed by --wide. A time without a zone is local.

--cursor saves the position at which the command ended in a file, and the next run continues there. If \
-n ends the command inside a batch of events, the next run shows that batch again.

With --hosts or --host-selector the events of all hosts are shown in one order of time. The command \
measures the offset of each host's clock over the connection every 30 seconds, and orders and prints \
events by the corrected time; JSON has both times. Events of two hosts that are closer together than \
the error bounds of their clocks (shown with each host) may have happened in the other order. An event \
is printed when every host has reported that no earlier one follows. If a host is silent for --max-wait, \
the others continue without it: events that it sends after that, and events that are older than \
printed ones, are marked `late`. State changes of hosts are shown among the events, and at the end the \
outcome of each.

--from reads what daemons have published to NATS JetStream ([export.nats] of their configuration): the \
same events, gaps and losses, of any number of hosts over one connection, merged in the same way. Clocks \
cannot be measured there: the order is by the wall clock of each host. Hosts are those with messages in \
the stream when the command begins. Globs, --filter, --pid, --tid, --comm, --cpu, --sample and --fields are \
evaluated by this command; a field that no probe has selects nothing. -l, --last, --cursor, -p and the \
limits of queues need a daemon, and so do `.function` and `common_*` other than `common_pid` and `common_cpu` in a filter. --ca, --cert and --key are for tls://.

-p defines a temporary probe on all hosts, as `kprobectl trace` does; without a PROBE-GLOB only its events are shown. \
The kernel applies as much of the command's filter to it as it can.

If the daemon was started again, the output has the time: events between the end of its previous run and that time may \
not be recorded. JSON has an object of the type `epoch` there, with `start_time`.

Numbers are shown as their types in the kernel suggest: fd=-2 (ENOENT), how=1 (SHUT_WR), dport=443, dev=8:1, mode=0644. \
JSON and YAML have the recorded numbers in `fields` and these strings in `names`. A filter compares with the shown value: \
'fd == -ENOENT', 'dport == 443', 'dev == \"8:1\"'. The address of a probe is shown if it is inside of a function or the \
caller that a function returned to; -o wide shows all.

A value followed by `(?)` is unproven: nothing shows that it was read, or that its name is right (`kprobectl \
check` has the reason). JSON and YAML list such fields in `unproven`, and those that could not be read in `faults`.

Examples:
  kprobectl observe
  kprobectl observe kprobes/open -n 10
  kprobectl observe 'kprobes/*' --comm 'ssh*' --filter 'filename ~ \"/etc/*\"'
  kprobectl observe open --filter 'dfd != -100' -o json | jq .fields
  kprobectl observe -l team=storage --since 10m
  kprobectl observe kprobes/open --since 07:00 -f
  kprobectl observe --last 1000 -f --order time
  kprobectl observe --cursor place.txt --until-now -o json >> events.json
  kprobectl observe kprobes/open -p 'r:opened do_sys_openat2 fd=$retval:s32'
  kprobectl observe --for 10s --time delta
  kprobectl observe 'kprobes/*' --hosts 'web[001-480]' --max-wait 5s
  kprobectl observe -L role=web --comm nginx --since 10m -o json
  kprobectl observe kprobes/open --from nats://127.0.0.1:4222 --hosts 'web*' --since 10m";

/// Arguments of `observe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`), including probes that are defined later [default: all]
    #[arg(value_name = "PROBE-GLOB")]
    probes: Vec<String>,
    /// Define this probe as well, for as long as the command runs; as for `trace`. May be given more than once
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION", conflicts_with_all = ["history", "until_now", "cursor", "selector", "from"])]
    definitions: Vec<String>,
    /// Show the call stack of the kernel with each event of the probes of -p, as for `trace`
    #[arg(long, alias = "kstack", requires = "definitions")]
    stack: bool,
    /// Stop after this many events [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long = "for", alias = "duration", value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// With --hosts: how long the others wait for a silent host before they continue without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = max_wait)]
    max_wait: Duration,
    /// Print no notes and no summary
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    start: TimeRange,
    #[command(flatten)]
    delivery: Delivery,
    #[command(flatten)]
    form: OutputOptions,
    #[command(flatten)]
    from: NatsArguments,
}

impl Arguments {
    /// Whether events are read that were published, and not those of daemons.
    pub(crate) fn is_published(&self) -> bool {
        self.from.url.is_some()
    }

    /// Follows these events, as the other arguments say.
    fn session(self, request: StreamRequest, cursor_file: Option<CursorFile>) -> Session {
        Session {
            request,
            definitions: self.definitions,
            stack: self.stack,
            command: Vec::new(),
            count: self.count,
            duration: self.duration,
            max_wait: self.max_wait,
            quiet: self.quiet,
            ordered: self.delivery.order == Order::Time,
            cursor_file,
            ends: self.start.ends(),
            once: self.delivery.no_reconnect,
            form: self.form,
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.is_published() {
        #[cfg(feature = "nats")]
        return from_nats::run(global, arguments, output).await;
        #[cfg(not(feature = "nats"))]
        return Err(Failure::usage(
            "`--from` cannot be used: this build of kprobectl cannot read from NATS".to_owned(),
            Some("install the package, which can, or build with `--features kprobectl/nats`".to_owned()),
        ));
    }
    if global.fleet.is_some() && arguments.start.cursor.is_some() {
        let message =
            "`--cursor` is a place in the events of one host, and `--hosts` asks for several".to_owned();
        return Err(Failure::usage(message, Some("use `--since`, or `--server` for one host".to_owned())));
    }
    let cursor_file = arguments.start.cursor.as_deref().map(CursorFile::open).transpose()?;
    let is_all = arguments.probes.iter().any(|pattern| pattern == "*");
    if is_all && !arguments.definitions.is_empty() {
        let message = "`*` selects all probes, those of `--probe` among them".to_owned();
        return Err(Failure::usage(
            message,
            Some("leave `*` out to see the events of `--probe` alone".to_owned()),
        ));
    }
    let patterns = arguments.probes.iter().filter(|_| !is_all);
    let globs: Vec<String> = patterns.map(|pattern| glob::of_names(pattern)).collect();
    let request = arguments.delivery.apply(arguments.selection.request(&globs)?);
    let request = arguments.start.apply(request, cursor_file.as_ref())?;
    arguments.session(request, cursor_file).run(global, output).await
}
