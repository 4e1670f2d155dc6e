//! The options of `observe`, and what each group of them asks the daemon for.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kprobed_client::api::{EventOrder, OverflowPolicy, Pace};
use kprobed_client::event::StreamRequest;
use kprobed_client::format::TextParts;

use super::filter;
use super::place::Place;
use crate::cli::{Format, Global};
use crate::command::Failure;
use crate::output::{EventStyle, TimeForm};
use crate::quantity::{bytes, point_in_time};

/// Which events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which events")]
pub(super) struct Selection {
    /// Only events for which this holds, in the language of kernel filters
    #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only probes whose labels fit, as for `list`; of the past, those that they had then
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
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
pub(super) struct Start {
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
    pub(super) cursor: Option<PathBuf>,
}

/// How events come.
#[derive(Debug, Args)]
#[command(next_help_heading = "How they come")]
pub(super) struct Delivery {
    /// In which order
    #[arg(long, value_name = "HOW", default_value = "cpu")]
    pub(super) order: Order,
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
    pub(super) no_reconnect: bool,
}

/// How events are shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "How they are shown")]
pub(super) struct Form {
    /// Only these fields of the probe, and of `tid`, `comm`, `context`, `location`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) fields: Vec<String>,
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
pub(super) enum Time {
    /// Time of day, in the local zone
    Wall,
    /// Seconds since the event shown before
    Delta,
    /// Seconds of the kernel's trace clock
    Trace,
}

/// In which order events come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// As they are read: sorted for each CPU
    Cpu,
    /// All in the order of time
    Time,
}

/// What matters more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PaceChoice {
    /// To see events at once
    Latency,
    /// To take little of the machine
    Throughput,
}

/// What to do when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Overflow {
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
    pub(super) fn request(&self, globs: &[String]) -> Result<StreamRequest, Failure> {
        let filter = filter::combined(&self.filter, &self.tids, &self.comms, &self.cpus)
            .map_err(|problem| Failure::usage(problem, None))?;
        let mut request =
            StreamRequest::new().filter(filter).label_selector(&self.selector).sample_one_in(self.sample);
        for glob in globs {
            request = request.probe(glob.clone());
        }
        Ok(request)
    }
}

impl Start {
    fn is_history(&self) -> bool {
        self.since.is_some() || self.last.is_some() || self.oldest
    }

    pub(super) fn ends(&self) -> bool {
        self.no_follow || (self.is_history() && !self.follow)
    }

    pub(super) fn apply(
        &self,
        request: StreamRequest,
        place: Option<&Place>,
    ) -> Result<StreamRequest, Failure> {
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
    pub(super) fn apply(&self, request: StreamRequest) -> StreamRequest {
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
    pub(super) fn style(&self, global: &Global, observing: Option<String>, quiet: bool) -> EventStyle {
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
            observing,
            quiet,
        }
    }
}
