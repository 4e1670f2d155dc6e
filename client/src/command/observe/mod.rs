//! `kprobectl observe`: follow events, and look at those of the past.
//!
//! Owns the arguments and what they ask the daemon for. Events that come faster than they can be printed wait in the daemon's queue for this
//! client; what that queue drops is reported like any other loss.

mod filter;
mod follow;
mod place;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kprobed_client::Client;
use kprobed_client::api::{EventOrder, OverflowPolicy, Pace, Probe, ProbeState};
use kprobed_client::event::{ResumingStream, StreamRequest, TimeOrdered};
use kprobed_client::format::TextParts;

use self::follow::{End, Follow, Source};
use self::place::Place;
use super::connection::connect;
use super::stop::{Stop, StopReason};
use super::{Exit, Failure, glob};
use crate::cli::{Format, Global, bytes, duration, label, point_in_time};
use crate::output::{EventPrinter, EventStyle, Output, TimeForm};

/// Events that may wait here for others, in the order of time.
const ORDERED_EVENTS: usize = 1_000_000;

const AFTER_HELP: &str = "\
Follows until Ctrl-C, unless -n or --duration say otherwise. --since, --last and --oldest look at \
what the daemon has kept, and end there unless -f follows on. When the connection is lost it is \
made again, and what happened meanwhile comes from what the daemon has kept, or is reported as \
lost.

--filter is an expression of the kernel's filter language over the fields of the probe and comm, \
pid, tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and globs, \
&& || ! and parentheses. The daemon evaluates it, for this command alone. --pid, --comm and --cpu \
are short for parts of it. To keep events from being recorded at all, use a kernel filter \
(`kprobectl filter`).

With --cursor the place where the command ended is kept in a file, and the next run goes on \
there. A batch of events that -n cut is shown again.

Examples:
  kprobectl observe
  kprobectl observe kprobes/open -n 10
  kprobectl observe 'kprobes/*' --comm 'ssh*' --filter 'filename ~ \"/etc/*\"'
  kprobectl observe open --filter 'dfd != -100' -o json | jq .fields
  kprobectl observe --since 10m
  kprobectl observe --last 1000 -f --order time
  kprobectl observe --cursor place.txt --no-follow -o json >> events.json
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
    /// Do not say what else could be said: no notes, no summary
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

/// Which events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which events")]
struct Selection {
    /// Only events for which this holds, in the language of kernel filters
    #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only probes that have this label
    #[arg(short = 'l', long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Only events of this thread id, as seen from outside of containers
    #[arg(long = "pid", visible_alias = "tid", value_name = "N")]
    tids: Vec<i32>,
    /// Only events of tasks whose name matches (`*`, `?`)
    #[arg(long = "comm", value_name = "GLOB")]
    comms: Vec<String>,
    /// Only events of this CPU
    #[arg(long = "cpu", value_name = "N")]
    cpus: Vec<u32>,
    /// Only one in so many of them
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true)]
    sample: u64,
}

/// From when to when.
#[derive(Debug, Args)]
#[command(next_help_heading = "From when to when")]
struct Start {
    /// Begin at a time (RFC 3339), or so long ago (`10m`)
    #[arg(long, value_name = "TIME", value_parser = point_in_time, group = "history")]
    since: Option<Timestamp>,
    /// Begin with so many of the latest events
    #[arg(long, value_name = "N", group = "history")]
    last: Option<u64>,
    /// Begin with the oldest event that the daemon has kept
    #[arg(long, group = "history")]
    oldest: bool,
    /// Go on with new events after those of the past
    #[arg(short, long)]
    follow: bool,
    /// Stop when everything that has happened until now is shown
    #[arg(long, conflicts_with = "follow")]
    no_follow: bool,
    /// Begin where this file says, if it exists, and keep the place there
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
}

/// How events come.
#[derive(Debug, Args)]
#[command(next_help_heading = "How they come")]
struct Delivery {
    /// In which order
    #[arg(long, value_name = "HOW", default_value = "cpu")]
    order: Order,
    /// What matters more
    #[arg(long, value_name = "WHAT")]
    pace: Option<PaceChoice>,
    /// Show at most so many events a second; others count as lost
    #[arg(long, value_name = "EVENTS", default_value_t = 0, hide_default_value = true)]
    rate: u64,
    /// Events that may wait in the daemon for this command; 0: the daemon's default
    #[arg(long, value_name = "EVENTS", default_value_t = 0, hide_default_value = true)]
    queue: u64,
    /// Bytes of events that may wait there (`64MiB`); 0: the daemon's default
    #[arg(long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = bytes)]
    queue_bytes: u64,
    /// What to do when no more may wait
    #[arg(long, value_name = "WHAT", default_value = "drop-oldest")]
    overflow: Overflow,
    /// End when the connection is lost
    #[arg(long)]
    no_reconnect: bool,
}

/// How events are shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "How they are shown")]
struct Form {
    /// Only these fields of the probe, and of `tid`, `comm`, `context`, `location`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    fields: Vec<String>,
    /// How to show time
    #[arg(long, value_name = "HOW", default_value = "wall")]
    time: Time,
    /// Show date and execution context too; the same as `-o wide`
    #[arg(long)]
    wide: bool,
    /// Leave out the line of headings
    #[arg(long)]
    no_header: bool,
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

/// In which order events come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// As they are read: sorted for each CPU
    Cpu,
    /// All in the order of time
    Time,
}

/// What matters more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PaceChoice {
    /// To see events at once
    Latency,
    /// To take little of the machine
    Throughput,
}

/// What to do when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Overflow {
    /// The oldest events that wait are lost
    DropOldest,
    /// The events that arrive are lost
    DropNewest,
    /// Read what waits, connect again, and get the rest from what the daemon has kept
    Disconnect,
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

impl Selection {
    /// The globs of names: none stands for all.
    fn request(&self, globs: &[String]) -> Result<StreamRequest, Failure> {
        let filter = filter::combined(&self.filter, &self.tids, &self.comms, &self.cpus)
            .map_err(|problem| Failure::usage(problem, None))?;
        let mut request = StreamRequest::new().filter(filter).sample_one_in(self.sample);
        for glob in globs {
            request = request.probe(glob.clone());
        }
        for (key, value) in &self.labels {
            request = request.label(key.clone(), value.clone());
        }
        Ok(request)
    }
}

impl Start {
    fn is_history(&self) -> bool {
        self.since.is_some() || self.last.is_some() || self.oldest
    }

    fn ends(&self) -> bool {
        self.no_follow || (self.is_history() && !self.follow)
    }

    fn apply(&self, request: StreamRequest, place: Option<&Place>) -> Result<StreamRequest, Failure> {
        if self.no_follow && !self.is_history() && self.cursor.is_none() {
            return Err(Failure::usage(
                "`--no-follow` leaves nothing to show".to_owned(),
                Some("add `--since`, `--last`, `--oldest` or `--cursor`".to_owned()),
            ));
        }
        let request = match (place.and_then(Place::cursor), self.since, self.last) {
            (Some(cursor), _, _) => request.after(cursor.clone()),
            (None, Some(since), _) => request.since(SystemTime::from(since)),
            (None, None, Some(events)) => request.last_events(events),
            // The file begins with this run: from now on, or with all that there is.
            (None, None, None) if self.oldest || self.no_follow => request.oldest(),
            (None, None, None) => request,
        };
        Ok(if self.ends() { request.until_now() } else { request })
    }
}

impl Delivery {
    fn apply(&self, request: StreamRequest) -> StreamRequest {
        let pace = match self.pace {
            None => Pace::Unspecified,
            Some(PaceChoice::Latency) => Pace::Latency,
            Some(PaceChoice::Throughput) => Pace::Throughput,
        };
        let overflow = match self.overflow {
            Overflow::DropOldest => OverflowPolicy::DropOldest,
            Overflow::DropNewest => OverflowPolicy::DropNewest,
            Overflow::Disconnect => OverflowPolicy::Disconnect,
        };
        let order = match self.order {
            Order::Cpu => EventOrder::PerCpu,
            Order::Time => EventOrder::Time,
        };
        request
            .order(order)
            .pace(pace)
            .overflow(overflow)
            .queue_events(self.queue)
            .queue_bytes(self.queue_bytes)
            .max_events_per_second(self.rate)
    }
}

impl Form {
    fn style(&self, global: &Global, quiet: bool) -> EventStyle {
        let has = |names: &[&str]| {
            self.fields.is_empty() || self.fields.iter().any(|field| names.contains(&field.as_str()))
        };
        let wide = self.wide || global.output == Format::Wide;
        EventStyle {
            time: self.time.into(),
            wide,
            parts: TextParts {
                context: wide && has(&["context"]),
                task: has(&["tid", "comm"]),
                location: has(&["location"]),
            },
            header: !self.no_header,
            quiet,
        }
    }
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
    if !arguments.quiet {
        let selected = selected_probes(&client, &globs).await?;
        if !arguments.start.ends() {
            note_silence(&selected, &arguments.probes, output);
        }
        if !request.selection().filter.is_empty() && !selected.is_empty() {
            note_push_down(&client, &request, &selected, output).await?;
        }
    }
    let source = if arguments.delivery.no_reconnect {
        Source::Once(Box::new(client.stream_events(request).await?))
    } else {
        Source::Resuming(Box::new(ResumingStream::open(&client, request).await?))
    };
    let style = arguments.form.style(global, arguments.quiet);
    let mut printer = EventPrinter::new(output, &style);
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

/// The probes that exist now and are selected by their names.
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

/// Says so when the kernel could do the filter just as well, for one probe or more: then nothing else need be recorded.
///
/// # Errors
/// When the filter can not be used for any probe.
async fn note_push_down(
    client: &Client,
    request: &StreamRequest,
    selected: &[Probe],
    output: &mut Output,
) -> Result<(), Failure> {
    let checked = client.check_filter(request.selection().clone()).await?;
    let has_it = |name: &str, filter: &str| {
        selected.iter().any(|probe| probe.name == name && probe.filter.trim() == filter.trim())
    };
    let possible = checked.iter().find(|found| {
        found.exact && !found.kernel_filter.is_empty() && !has_it(&found.probe, &found.kernel_filter)
    });
    if let Some(found) = possible {
        output.note(&format!(
            "the kernel can do this filter: see `kprobectl filter {} --dry-run '{}'`",
            found.probe,
            request.selection().filter
        ));
    }
    Ok(())
}
