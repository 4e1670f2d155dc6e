//! `kprobectl observe`: follow events.
//!
//! Owns the loop from the stream to the printer, and when it ends. Events that come faster than they can be printed wait in the
//! daemon's queue for this client; what that queue drops is reported like any other loss.

mod condition;
mod selection;

use std::time::Duration;

use clap::{Args, ValueEnum};
use kprobed_client::Client;
use kprobed_client::api::{Probe, ProbeState};
use kprobed_client::event::{EventStream, StreamItem};

use self::condition::Condition;
use self::selection::Selection;
use super::connection::connect;
use super::stop::{Stop, StopReason};
use super::{Exit, Failure, glob};
use crate::cli::{Format, Global, duration};
use crate::output::{EventPrinter, Output, TimeForm};

const AFTER_HELP: &str = "\
Follows until Ctrl-C, unless -n or --duration say otherwise. Events of one CPU are in the order \
of time; those of several CPUs come as they are read. --pid, --comm, --cpu and --where choose what \
is shown of what arrives; to keep events from being recorded at all, use a kernel filter \
(`kprobectl filter`).

--where compares a field: == != < <= > >= with a number or a text, ~ with a glob. A value that \
could not be read matches nothing; an array matches when one of its values does. Of several \
--where all must hold.

Examples:
  kprobectl observe
  kprobectl observe kprobes/open -n 10
  kprobectl observe 'kprobes/*' --comm 'ssh*' --where 'filename ~ /etc/*'
  kprobectl observe open --where 'dfd != -100' -o json | jq .fields
  kprobectl observe --duration 10s --time delta";

/// Arguments of `observe`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`); those of the future too
    #[arg(value_name = "PROBE-GLOB")]
    probes: Vec<String>,
    /// Stop after this many events were shown
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Only events of this thread id, as seen from outside of containers
    #[arg(long = "pid", visible_alias = "tid", value_name = "N")]
    tids: Vec<i32>,
    /// Only events of tasks whose name matches (`*`, `?`)
    #[arg(long = "comm", value_name = "GLOB")]
    comms: Vec<String>,
    /// Only events of this CPU
    #[arg(long = "cpu", value_name = "N")]
    cpus: Vec<u32>,
    /// Only events with a field that compares so
    #[arg(long = "where", value_name = "FIELD OP VALUE")]
    conditions: Vec<Condition>,
    /// How to show time
    #[arg(long, value_name = "HOW", default_value = "wall")]
    time: Time,
    /// Show date and execution context too; the same as `-o wide`
    #[arg(long)]
    wide: bool,
    /// Leave out the line of headings
    #[arg(long)]
    no_header: bool,
    /// Events that may wait in the daemon for this command before it drops some; 0: the daemon's default
    #[arg(long, value_name = "EVENTS", default_value_t = 0)]
    queue: u64,
}

/// How to show time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Time {
    /// Time of day, in the local zone
    Wall,
    /// Seconds since the event shown before
    Delta,
    /// Seconds of the kernel's trace clock
    Trace,
}

impl From<Time> for TimeForm {
    fn from(time: Time) -> Self {
        match time {
            Time::Wall => Self::Wall,
            Time::Delta => Self::Delta,
            Time::Trace => Self::Trace,
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let mut stop = Stop::new(arguments.duration).map_err(Failure::Signals)?;
    let client = tokio::select! {
        client = connect(global) => client?,
        _ = stop.wait() => return Err(Failure::Interrupted),
    };
    let globs: Vec<String> = if arguments.probes.iter().any(|pattern| pattern == "*") {
        Vec::new()
    } else {
        arguments.probes.iter().map(|pattern| glob::of_names(pattern)).collect()
    };
    let selected = selected_probes(&client, &globs).await?;
    for condition in &arguments.conditions {
        condition.check(&selected)?;
    }
    note_silence(&selected, &arguments.probes, output);
    let stream = client.stream_events(globs, arguments.queue).await?;
    let selection = Selection {
        tids: arguments.tids,
        comms: arguments.comms,
        cpus: arguments.cpus,
        conditions: arguments.conditions,
    };
    let wide = arguments.wide || global.output == Format::Wide;
    let mut printer = EventPrinter::new(output, arguments.time.into(), wide, !arguments.no_header);
    let follow = Follow { selection, limit: arguments.count, stop };
    let limited = arguments.count.is_some() || arguments.duration.is_some();
    let end = follow.run(stream, &mut printer).await;
    let exit = match end {
        Ok(End::Enough | End::Stopped(StopReason::Elapsed)) => Ok(Exit::Success),
        // Without a limit an interrupt is how following ends; with one, it comes too early.
        Ok(End::Stopped(StopReason::Signal)) => Ok(if limited { Exit::Interrupted } else { Exit::Success }),
        Ok(End::ByDaemon) => Err(Failure::StreamEnded),
        Err(failure) => Err(failure.in_stream()),
    };
    let flushed = printer.flush();
    if !exit.as_ref().is_err_and(Failure::is_broken_pipe) && flushed.is_ok() {
        printer.summary();
    }
    flushed?;
    exit
}

/// The probes that exist now and are selected.
async fn selected_probes(client: &Client, globs: &[String]) -> Result<Vec<Probe>, Failure> {
    if globs.is_empty() {
        return Ok(client.list_probes("").await?);
    }
    let mut probes: Vec<Probe> = Vec::new();
    for glob in globs {
        probes.extend(client.list_probes(glob).await?);
    }
    probes.sort_by(|a, b| a.name.cmp(&b.name));
    probes.dedup_by(|a, b| a.name == b.name);
    Ok(probes)
}

/// Says so when nothing will come: waiting in silence for events of a probe that is off helps nobody.
fn note_silence(selected: &[Probe], patterns: &[String], output: &mut Output) {
    if selected.is_empty() {
        let what = if patterns.is_empty() { "there is no probe" } else { "no probe matches" };
        output.note(&format!("{what} yet: waiting for one"));
    } else if !selected.iter().any(|probe| probe.state() == ProbeState::Armed) {
        output.note("none of the selected probes is recording; `kprobectl enable` switches them on");
    }
}

/// How following ended.
enum End {
    /// As many events as were asked for.
    Enough,
    /// A signal, or the time was up.
    Stopped(StopReason),
    /// The daemon ended the stream.
    ByDaemon,
}

struct Follow {
    selection: Selection,
    limit: Option<u64>,
    stop: Stop,
}

impl Follow {
    async fn run(mut self, mut stream: EventStream, printer: &mut EventPrinter<'_>) -> Result<End, Failure> {
        let mut pending = false;
        loop {
            let item = tokio::select! {
                biased;
                reason = self.stop.wait() => return Ok(End::Stopped(reason)),
                item = stream.next() => item?,
                // Nothing has arrived: this is the time to let go of what was printed.
                () = std::future::ready(()), if pending => {
                    printer.flush()?;
                    pending = false;
                    continue;
                }
            };
            pending = true;
            match item {
                None => return Ok(End::ByDaemon),
                Some(StreamItem::Started(_)) => printer.start()?,
                Some(StreamItem::Schema(_)) => {}
                Some(StreamItem::Loss(loss)) => printer.loss(&loss)?,
                Some(StreamItem::Batch(batch)) => {
                    printer.delivered(batch.len());
                    for row in batch.rows().filter(|row| self.selection.selects(row)) {
                        printer.row(&row)?;
                        if self.limit.is_some_and(|limit| printer.shown() >= limit) {
                            return Ok(End::Enough);
                        }
                    }
                    // On a terminal people watch line by line.
                    if printer.is_terminal() {
                        printer.flush()?;
                    }
                }
            }
        }
    }
}
