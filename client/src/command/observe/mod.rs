//! `kprobectl observe`: follow events, and look at those of the past.
//!
//! Owns the arguments and what they ask the daemon for. Events that come faster than they can be printed wait in the daemon's queue for this
//! client; what that queue drops is reported like any other loss.

mod filter;
mod follow;
mod notes;
mod options;
mod place;

use std::time::Duration;

use clap::Args;
use kprobed_client::event::{ResumingStream, TimeOrdered};

use self::follow::{End, Follow, Source};
use self::notes::Selected;
use self::options::{Delivery, Form, Order, Selection, Start};
use self::place::Place;
use super::connection::connect;
use super::stop::{Stop, StopReason};
use super::{Exit, Failure, glob};
use crate::cli::Global;
use crate::output::{EventPrinter, Output};
use crate::quantity::duration;

/// Events that the command holds back to put them in the order of time.
const ORDERED_EVENTS: usize = 1_000_000;

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
  kprobectl observe --duration 10s --time delta";

/// Arguments of `observe`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`), also those that are defined later [default: all]
    #[arg(value_name = "PROBE-GLOB")]
    probes: Vec<String>,
    /// Stop after this many events [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
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
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let mut stop = Stop::new(arguments.duration).map_err(Failure::Signals)?;
    let place = arguments.start.cursor.as_deref().map(Place::open).transpose()?;
    let globs: Vec<String> = if arguments.probes.iter().any(|pattern| pattern == "*") {
        Vec::new()
    } else {
        arguments.probes.iter().map(|pattern| glob::of_names(pattern)).collect()
    };
    let mut request = arguments.selection.request(&globs)?;
    request = arguments.start.apply(arguments.delivery.apply(request), place.as_ref())?;
    for field in &arguments.form.fields {
        request = request.field(field.clone());
    }
    let client = tokio::select! {
        client = connect(global) => client?,
        _ = stop.wait() => return Err(Failure::Interrupted),
    };
    let mut observing = None;
    if !arguments.quiet {
        let selected = Selected::by(&client, &request).await?;
        if !arguments.start.ends() {
            selected.note_silence(&request, output);
            observing = Some(selected.description());
        }
        selected.note_lacking_fields(&arguments.form.fields, output);
        selected.note_push_down(&client, &request, output).await?;
    }
    let source = if arguments.delivery.no_reconnect {
        Source::Once(Box::new(client.stream_events(request).await?))
    } else {
        Source::Resuming(Box::new(ResumingStream::open(&client, request).await?))
    };
    let style = arguments.form.style(global, observing, arguments.quiet);
    let mut printer = EventPrinter::new(output, style);
    let ordered = (arguments.delivery.order == Order::Time).then(|| TimeOrdered::new(ORDERED_EVENTS));
    let follow = Follow { source, limit: arguments.count, stop, ordered, place, cut_sequence: None };
    let limited = arguments.count.is_some() || arguments.duration.is_some() || arguments.start.ends();
    let exit = match follow.run(&mut printer).await {
        Ok(End::Enough | End::Stopped(StopReason::Elapsed)) => Ok(Exit::Success),
        // Without a limit an interrupt is how following ends; with one, it comes too early.
        Ok(End::Stopped(StopReason::Signal)) => Ok(if limited { Exit::Interrupted } else { Exit::Success }),
        Ok(End::ByDaemon) if arguments.start.ends() => Ok(Exit::Success),
        Ok(End::ByDaemon) => Err(Failure::StreamEnded),
        Err(failure) => Err(failure.in_stream()),
    };
    if !exit.as_ref().is_err_and(Failure::is_broken_pipe) {
        printer.print_summary();
    }
    exit
}
