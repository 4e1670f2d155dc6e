//! `kprobectl observe`: follow events, and look at those of the past; and what `kprobectl trace` does with probes of its own.
//!
//! Owns the arguments and what they ask the daemon for. Events that come faster than they can be printed wait in the daemon's queue for this
//! client; what that queue drops is reported like any other loss.

mod filter;
mod follow;
mod merged;
mod notes;
mod options;
mod place;
#[cfg(feature = "nats")]
mod published;
mod session;
mod temporary;
mod traced;

use std::time::Duration;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::EventOrder;

use self::merged::{Merged, Show};
pub(super) use self::options::{Conditions, Form};
use self::options::{Delivery, Order, Selection, Start};
use self::place::Place;
use self::session::Session;
use self::temporary::Temporary;
use self::traced::Tracing;
use super::connection::Fleet;
use super::published::From;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::glob;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
Follows new events until Ctrl-C, or until -n or --duration is reached. --since, --last and --oldest read the history \
and end with it, unless -f follows on. If the connection is lost, the command connects again and \
reads the events in between from the history; those that the history does not have are reported as lost.

`observing N probes` on stderr says that the daemon has subscribed the command: every event recorded from then on is \
shown or reported as lost. A script waits for this line before it causes events. It is not printed with -q, nor when only the \
history is read.

--filter is an expression of the kernel's filter language over the fields of the probe and comm, pid (thread id), tgid, \
cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and globs, && || ! and parentheses. A field of \
the probe that has one of these names is written fields.NAME. The daemon evaluates the filter, for this command alone. \
--pid, --comm and --cpu are short for parts of it. A kernel filter (`kprobectl filter`) keeps events from being recorded at all.

TIME is how long ago (`10m`, `7h`), a time of day (`07:00`: the last such moment), or a date with a time, in RFC 3339 or as \
printed by --wide. A time without a zone is local.

--cursor saves the place where the command ended in a file, and the next run goes on there. A batch of events that -n \
cut is shown again.

With --hosts or --host-selector the events of all hosts are in one order of time. The clock of each host is compared with that of \
this one over the connection, again and again, and the order is by the corrected time, which is the one shown; JSON has both. \
Events of two hosts that are closer together than the error bounds of their clocks (shown with each host) may have happened the other \
way round. An event is shown when every host has said that nothing earlier comes. A host that says nothing for \
--max-wait holds up no other any longer: what it sends after that, and what is older than events that were shown, is marked `late`. \
Hosts that are lost, late and back are shown among the events, and at the end what became of each.

--from reads what daemons have published to NATS JetStream ([export.nats] of their configuration): the same events, gaps and losses, of one host \
or a thousand over one connection, merged in the same way. The clocks of the hosts cannot be compared there: the order is by the wall clock of \
each. Hosts are those of which the stream has something when the command begins. Globs, --filter, --pid, --comm, --cpu, --sample, --fields and -l \
select here what a daemon would select; -l goes by the labels that probes have now, and a field that no probe has selects nothing. --last, --cursor, -p \
and the limits of queues need a daemon, and so do `.function` and `common_*` other than `common_pid` and `common_cpu` in a filter. --ca, --cert and --key are for tls://.

-p defines a probe that is deleted when the command ends, as `kprobectl trace` does; without a PROBE-GLOB only its events are shown.

A value followed by `(?)` is unproven: the kernel does not show whether it could be read (`kprobectl check` says \
why). JSON and YAML list such fields in `unproven`, and those that could not be read in `faults`.

Examples:
  kprobectl observe
  kprobectl observe kprobes/open -n 10
  kprobectl observe 'kprobes/*' --comm 'ssh*' --filter 'filename ~ \"/etc/*\"'
  kprobectl observe open --filter 'dfd != -100' -o json | jq .fields
  kprobectl observe -l team=storage --since 10m
  kprobectl observe kprobes/open --since 07:00 -f
  kprobectl observe --last 1000 -f --order time
  kprobectl observe --cursor place.txt --no-follow -o json >> events.json
  kprobectl observe kprobes/open -p 'r:opened do_sys_openat2 fd=$retval:s32'
  kprobectl observe --duration 10s --time delta
  kprobectl observe 'kprobes/*' --hosts 'web[001-480]' --max-wait 5s
  kprobectl observe -L role=web --comm nginx --since 10m -o json
  kprobectl observe kprobes/open --from nats://127.0.0.1:4222 --hosts 'web*' --since 10m";

/// Arguments of `observe`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`), also those that are defined later [default: all]
    #[arg(value_name = "PROBE-GLOB")]
    probes: Vec<String>,
    /// Define this probe as well, for as long as the command runs; as for `trace`. May be given more than once
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION", conflicts_with_all = ["history", "no_follow", "cursor", "selector"])]
    definitions: Vec<String>,
    /// Stop after this many events [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// With --hosts: how long the others wait for a host that says nothing, before they go on without it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    max_wait: Duration,
    /// Print no notes and no summary
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    delivery: Delivery,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    from: From,
}

impl Arguments {
    /// Whether events are read that were published, and not those of daemons.
    pub(crate) fn is_published(&self) -> bool {
        self.from.is_given()
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.is_published() {
        #[cfg(feature = "nats")]
        return published::run(global, arguments, output).await;
        #[cfg(not(feature = "nats"))]
        return Err(super::published::refused());
    }
    let place = arguments.start.cursor.as_deref().map(Place::open).transpose()?;
    let is_all = arguments.probes.iter().any(|pattern| pattern == "*");
    if is_all && !arguments.definitions.is_empty() {
        let message = "`*` selects all probes, those of `--probe` among them".to_owned();
        return Err(Failure::usage(
            message,
            Some("leave `*` out to see the events of `--probe` alone".to_owned()),
        ));
    }
    let globs: Vec<String> = if is_all {
        Vec::new()
    } else {
        arguments.probes.iter().map(|pattern| glob::of_names(pattern)).collect()
    };
    let request = arguments.selection.request(&globs)?;
    let request = arguments.start.apply(arguments.delivery.apply(request), place.as_ref())?;
    let session = Session {
        request,
        definitions: arguments.definitions,
        command: Vec::new(),
        count: arguments.count,
        duration: arguments.duration,
        quiet: arguments.quiet,
        form: arguments.form,
        ordered: arguments.delivery.order == Order::Time,
        place,
        ends: arguments.start.ends(),
        once: arguments.delivery.no_reconnect,
    };
    session.run(global, output).await
}

/// `kprobectl observe` on many hosts.
pub(super) async fn run_on_many(
    global: &Global,
    arguments: Arguments,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if !arguments.definitions.is_empty() {
        let message = "`--probe` defines a probe on one host, and `--hosts` asks for several".to_owned();
        let hint = "define it with `kprobectl trace --hosts` or `apply --hosts`, or observe one host with `--server`".to_owned();
        return Err(Failure::usage(message, Some(hint)));
    }
    if arguments.start.cursor.is_some() {
        let message =
            "`--cursor` is a place in the events of one host, and `--hosts` asks for several".to_owned();
        return Err(Failure::usage(message, Some("use `--since`, or `--server` for one host".to_owned())));
    }
    judge_wait(arguments.max_wait)?;
    let is_all = arguments.probes.iter().any(|pattern| pattern == "*");
    let patterns = arguments.probes.iter().filter(|_| !is_all);
    let globs: Vec<String> = patterns.map(|pattern| glob::of_names(pattern)).collect();
    let request = arguments.delivery.apply(arguments.selection.request(&globs)?);
    let merged = Merged {
        request: arguments.start.apply(request, None)?,
        max_wait: arguments.max_wait,
        show: Show {
            count: arguments.count,
            duration: arguments.duration,
            quiet: arguments.quiet,
            form: arguments.form,
            ends: arguments.start.ends(),
            since_ns: None,
        },
        once: arguments.delivery.no_reconnect,
    };
    merged.run(global, fleet, output).await
}

/// Refuses to wait for no host at all.
fn judge_wait(max_wait: Duration) -> Result<(), Failure> {
    if max_wait.is_zero() {
        let message = "`--max-wait` is zero, and every answer takes some time".to_owned();
        return Err(Failure::usage(message, Some("write a time such as `2s`".to_owned())));
    }
    Ok(())
}

/// Shows what `kprobectl trace` would define on one host.
pub(super) async fn plan(
    client: &Client,
    definitions: &[String],
    output: &mut Output,
) -> Result<Exit, Failure> {
    Temporary::plan(client, definitions, output).await
}

/// `kprobectl trace` on many hosts.
pub(super) async fn trace_on_many(
    global: &Global,
    arguments: super::trace::Arguments,
    fleet: &Fleet,
    output: &mut Output,
) -> Result<Exit, Failure> {
    judge_wait(arguments.max_wait)?;
    let tracing = Tracing {
        request: arguments.conditions.request()?,
        definitions: arguments.definitions,
        command: arguments.command,
        max_wait: arguments.max_wait,
        show: Show {
            count: arguments.count,
            duration: arguments.duration,
            quiet: arguments.quiet,
            form: arguments.form,
            ends: false,
            since_ns: None,
        },
    };
    tracing.run(global, fleet, output).await
}

/// `kprobectl trace`.
pub(super) async fn trace(
    global: &Global,
    arguments: super::trace::Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let session = Session {
        request: arguments.conditions.request()?.order(EventOrder::Time),
        definitions: arguments.definitions,
        command: arguments.command,
        count: arguments.count,
        duration: arguments.duration,
        quiet: arguments.quiet,
        form: arguments.form,
        ordered: true,
        place: None,
        ends: false,
        once: true,
    };
    session.run(global, output).await
}
