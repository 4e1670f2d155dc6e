//! Options of `observe`, and the part of the request that each group of them sets.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kprobed_client::api::{EventOrder, OverflowPolicy, Pace};
use kprobed_client::event::StreamRequest;
use kprobed_client::event::format::TextParts;
#[cfg(feature = "nats")]
use kprobed_client::nats::{NatsFilter, NatsFilterError};

use super::combined_filter::combined;
use super::cursor_file::CursorFile;
use crate::command::Failure;
use crate::global::{Format, Global};
use crate::output::{EventStyle, TimeForm};
use crate::quantity::{bytes, point_in_time};

/// Options that select events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct Selection {
    #[command(flatten)]
    conditions: Conditions,
    /// Only probes whose labels match, as for `list`; for events of the history, their labels at
    /// that time [default: all]
    #[arg(
        short = 'l',
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "from"
    )]
    selector: String,
}

/// Options that select events of a probe.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Selection")]
pub(crate) struct Conditions {
    /// Only events that pass this filter [default: all]
    #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only events of this thread id, in the initial PID namespace; may be given more than once [default: all]
    #[arg(long = "pid", visible_alias = "tid", value_name = "N")]
    tids: Vec<i32>,
    /// Only events of tasks whose name matches (`*`, `?`); may be given more than once [default: all]
    #[arg(long = "comm", value_name = "GLOB")]
    comms: Vec<String>,
    /// Only events of this CPU; may be given more than once [default: all]
    #[arg(long = "cpu", value_name = "N")]
    cpus: Vec<u32>,
    /// Only every Nth event [default: 1]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true)]
    sample: u64,
}

/// Options for the range of time.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Time")]
pub(super) struct TimeRange {
    /// Begin with the events of the history since this time: `10m` ago, `07:00`, or a date with a time
    #[arg(long, value_name = "TIME", value_parser = point_in_time, group = "history")]
    pub(super) since: Option<Timestamp>,
    /// Begin with the last N events of the history
    #[arg(long, value_name = "N", group = "history")]
    pub(super) last: Option<u64>,
    /// Begin with the oldest event of the history
    #[arg(long, group = "history")]
    pub(super) oldest: bool,
    /// Follow new events after the history
    #[arg(short, long)]
    follow: bool,
    /// Stop after the events that were recorded before the command began
    #[arg(long, conflicts_with = "follow")]
    no_follow: bool,
    /// Begin at the position in this file, if it exists, and save the position there
    #[arg(long, value_name = "FILE")]
    pub(super) cursor: Option<PathBuf>,
}

/// Options for the delivery of events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Delivery")]
pub(super) struct Delivery {
    /// Order of events
    #[arg(long, value_name = "HOW", default_value = "cpu")]
    pub(super) order: Order,
    /// What to optimise for [default: a compromise]
    #[arg(long, value_name = "WHAT")]
    pace: Option<PaceChoice>,
    /// Show at most this many events per second, and report the others as lost [default: no limit]
    #[arg(long, value_name = "EVENTS", default_value_t = 0, hide_default_value = true)]
    rate: u64,
    /// Events that the daemon queues for this command [default: set by the daemon]
    #[arg(long, value_name = "EVENTS", default_value_t = 0, hide_default_value = true)]
    queue: u64,
    /// Bytes of events that the daemon queues (`65536`, `64MiB`) [default: set by the daemon]
    #[arg(long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = bytes)]
    queue_bytes: u64,
    /// What the daemon does when the queue is full
    #[arg(long, value_name = "WHAT", default_value = "drop-oldest")]
    overflow: Overflow,
    /// End if the connection is lost, instead of connecting again
    #[arg(long)]
    pub(super) no_reconnect: bool,
}

/// Options for the output of events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputOptions {
    /// Show only these: fields of the probe, `tid`, `comm`, `context`, `location` [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) fields: Vec<String>,
    /// Format of times
    #[arg(long, value_name = "HOW", default_value = "wall")]
    time: TimeChoice,
    /// Show the date and the execution context too; the same as `-o wide`
    #[arg(long)]
    wide: bool,
    /// Print no line of headings
    #[arg(long)]
    no_header: bool,
}

/// Format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TimeChoice {
    /// Time of day, in the local zone
    Wall,
    /// Seconds since the previous event shown
    Delta,
    /// Seconds of the kernel's trace clock
    Trace,
}

/// Order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// As they are read: in order for each CPU
    Cpu,
    /// In the order of time, over all CPUs
    Time,
}

/// Pace of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PaceChoice {
    /// Each event as early as possible
    Latency,
    /// Little CPU time for many events
    Throughput,
}

/// Options for reading from NATS.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "From NATS")]
pub(super) struct NatsArguments {
    /// Read what daemons have published to this server (`[export.nats]`), without a connection to
    /// any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts then names hosts of the stream
    #[arg(id = "from", long = "from", value_name = "URL")]
    pub(super) url: Option<String>,
    /// Name of the stream
    #[arg(long, value_name = "NAME", default_value = "KPROBED", requires = "from")]
    pub(super) stream: String,
    /// First part of the subjects
    #[arg(long, value_name = "PREFIX", default_value = "kprobed", requires = "from")]
    pub(super) subject_prefix: String,
    /// File with the JWT and seed of a user, as `nsc` writes it [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) credentials: Option<PathBuf>,
    /// File with a token [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) token: Option<PathBuf>,
    /// File with `USER:PASSWORD` [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) password: Option<PathBuf>,
}

/// Policy for a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Overflow {
    /// Drops the oldest events in the queue
    DropOldest,
    /// Drops the events that arrive
    DropNewest,
    /// Ends the stream after the queue; the command connects again and reads the rest from the history
    Disconnect,
}

impl From<TimeChoice> for TimeForm {
    fn from(time: TimeChoice) -> Self {
        match time {
            TimeChoice::Wall => Self::Wall,
            TimeChoice::Delta => Self::Delta,
            TimeChoice::Trace => Self::Trace,
        }
    }
}

impl Selection {
    /// The same for what was published: a filter, if one is needed, and one in how many of the events that it selects.
    ///
    /// # Errors
    /// What cannot be a filter, or needs a daemon.
    #[cfg(feature = "nats")]
    pub(super) fn published(&self) -> Result<(Option<NatsFilter>, u64), Failure> {
        let Conditions { filter, tids, comms, cpus, sample } = &self.conditions;
        let text = combined(filter, tids, comms, cpus).map_err(|problem| Failure::usage(problem, None))?;
        if text.is_empty() {
            return Ok((None, *sample));
        }
        let filter = NatsFilter::new(&text).map_err(|error| {
            let hint = match &error {
                NatsFilterError::Syntax(error) => error.hint.clone(),
                _ => "use another field here, or `filter` in `[export.nats]` of the daemons".to_owned(),
            };
            Failure::usage(format!("`{text}`: {error}"), Some(hint))
        })?;
        Ok((Some(filter), *sample))
    }

    /// `globs`: names of probes; none selects all.
    pub(super) fn request(&self, globs: &[String]) -> Result<StreamRequest, Failure> {
        let mut request = self.conditions.request()?.label_selector(&self.selector);
        for glob in globs {
            request = request.probe(glob.clone());
        }
        Ok(request)
    }
}

impl Conditions {
    /// A request for the events of all probes that match.
    pub(in crate::command) fn request(&self) -> Result<StreamRequest, Failure> {
        let filter = combined(&self.filter, &self.tids, &self.comms, &self.cpus)
            .map_err(|problem| Failure::usage(problem, None))?;
        Ok(StreamRequest::new().filter(filter).sample_one_in(self.sample))
    }
}

impl TimeRange {
    fn is_history(&self) -> bool {
        self.since.is_some() || self.last.is_some() || self.oldest
    }

    pub(super) fn ends(&self) -> bool {
        self.no_follow || (self.is_history() && !self.follow)
    }

    pub(super) fn apply(
        &self,
        request: StreamRequest,
        cursor_file: Option<&CursorFile>,
    ) -> Result<StreamRequest, Failure> {
        if self.no_follow && !self.is_history() && self.cursor.is_none() {
            return Err(Failure::usage(
                "`--no-follow` needs a place in the history to begin at".to_owned(),
                Some("add `--since`, `--last`, `--oldest` or `--cursor`".to_owned()),
            ));
        }
        let request = match (cursor_file.and_then(CursorFile::cursor), self.since, self.last) {
            (Some(cursor), _, _) => request.after(cursor.clone()),
            (None, Some(since), _) => request.since(SystemTime::from(since)),
            (None, None, Some(events)) => request.last_events(events),
            // The file is new: begin now, or with the oldest event.
            (None, None, None) if self.oldest || self.no_follow => request.oldest(),
            (None, None, None) => request,
        };
        Ok(if self.ends() { request.until_now() } else { request })
    }
}

impl Delivery {
    /// The first given option that needs a daemon.
    #[cfg(feature = "nats")]
    pub(super) fn first(&self) -> Option<&'static str> {
        let used = [
            ("--pace", self.pace.is_some()),
            ("--rate", self.rate > 0),
            ("--queue", self.queue > 0),
            ("--queue-bytes", self.queue_bytes > 0),
            ("--overflow", self.overflow != Overflow::DropOldest),
        ];
        used.into_iter().find_map(|(option, is_used)| is_used.then_some(option))
    }

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

impl OutputOptions {
    /// `host_width`: characters of the longest name of a host, if there are several.
    pub(super) fn style(
        &self,
        global: &Global,
        observing: Option<String>,
        quiet: bool,
        host_width: Option<usize>,
    ) -> EventStyle {
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
            host_width,
        }
    }
}
