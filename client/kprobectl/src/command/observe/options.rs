//! Options of `observe`, and the part of the request that each group of them sets.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use jiff::Timestamp;
use kprobed_client::api::{self, EventOrder, OverflowPolicy, Pace};
use kprobed_client::event::StreamRequest;
use kprobed_client::event::format::{LocationForm, TextParts};
#[cfg(feature = "nats")]
use kprobed_client::event::{EventFilter, EventFilterError};

use super::source::CursorFile;
use crate::command::{Exit, Failure};
use crate::global::{Format, Global};
use crate::output::{EventStyle, TimeForm};
use crate::quantity::{bytes, duration, named, point_in_time};

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
pub(super) struct Conditions {
    /// Only events that pass this filter [default: all]
    #[arg(long, value_name = "EXPRESSION", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only events of this process, by its id in the initial PID namespace; may be given more than once [default: all]
    #[arg(long = "pid", value_name = "N")]
    pids: Vec<i32>,
    /// Only events of this thread, by its id; may be given more than once [default: all]
    #[arg(long = "tid", value_name = "N")]
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
    #[arg(long, value_name = "N", group = "history", conflicts_with = "from")]
    pub(super) last: Option<u64>,
    /// Begin with the oldest event of the history
    #[arg(long, group = "history")]
    pub(super) oldest: bool,
    /// Follow new events after the history
    #[arg(short, long)]
    follow: bool,
    /// Stop after the events that were recorded before the command began
    #[arg(long, conflicts_with = "follow")]
    until_now: bool,
    /// Begin at the position in this file, if it exists, and save the position there
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub(super) cursor: Option<PathBuf>,
}

/// Options for the delivery of events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Delivery")]
pub(super) struct Delivery {
    /// Order of events
    #[arg(long, value_name = "HOW", default_value = "cpu", value_parser = named([
        ("cpu", EventOrder::PerCpu, "As they are read: in order for each CPU"),
        ("time", EventOrder::Time, "In the order of time, over all CPUs"),
    ]))]
    pub(super) order: EventOrder,
    /// What to optimise for [default: a compromise]
    #[arg(long, value_name = "WHAT", conflicts_with = "from", value_parser = named([
        ("latency", Pace::Latency, "Each event as early as possible"),
        ("throughput", Pace::Throughput, "Little CPU time for many events"),
    ]))]
    pace: Option<Pace>,
    /// Show at most this many events per second, and report the others as lost [default: no limit]
    #[arg(long, value_name = "EVENTS", conflicts_with = "from")]
    rate: Option<u64>,
    /// Events that the daemon queues for this command [default: set by the daemon]
    #[arg(long, value_name = "EVENTS", conflicts_with = "from")]
    queue: Option<u64>,
    /// Bytes of events that the daemon queues (`65536`, `64MiB`) [default: set by the daemon]
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "from")]
    queue_bytes: Option<u64>,
    /// What the daemon does when the queue is full
    #[arg(long, value_name = "WHAT", default_value = "drop-oldest", conflicts_with = "from", value_parser = named([
        ("drop-oldest", OverflowPolicy::DropOldest, "Drops the oldest events in the queue"),
        ("drop-newest", OverflowPolicy::DropNewest, "Drops the events that arrive"),
        (
            "disconnect",
            OverflowPolicy::Disconnect,
            "Ends the stream after the queue; the command connects again and reads the rest from the history",
        ),
    ]))]
    overflow: OverflowPolicy,
    /// End if the connection is lost, instead of connecting again
    #[arg(long)]
    pub(super) no_reconnect: bool,
}

/// Options for the output of events.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputOptions {
    /// Show only these: fields of the probe, `tid`, `comm`, `context`, `location` [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) fields: Vec<String>,
    /// Format of times
    #[arg(long, value_name = "HOW", default_value = "wall")]
    time: TimeForm,
    /// Show the date, the execution context and the address of every entry too; the same as `-o wide`
    #[arg(long)]
    wide: bool,
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

impl Selection {
    /// The same for what was published: a filter, if one is needed, and one in how many of the events that it selects.
    ///
    /// # Errors
    /// What cannot be a filter, or needs a daemon.
    #[cfg(feature = "nats")]
    pub(super) fn published(&self) -> Result<(Option<EventFilter>, u64), Failure> {
        let (text, sample) = (self.conditions.text()?, self.conditions.sample);
        if text.is_empty() {
            return Ok((None, sample));
        }
        let filter = EventFilter::new(&text).map_err(|error| {
            let hint = match &error {
                EventFilterError::Syntax(error) => error.hint.clone(),
                _ => "use another field here, or `filter` in `[export.nats]` of the daemons".to_owned(),
            };
            Failure::usage(format!("`{text}`: {error}"), &hint)
        })?;
        Ok((Some(filter), sample))
    }

    /// `globs`: names of probes; none selects all.
    pub(super) fn request(&self, globs: &[String]) -> Result<StreamRequest, Failure> {
        let request = self.conditions.request()?.label_selector(&self.selector);
        Ok(globs.iter().fold(request, StreamRequest::probe))
    }
}

impl Conditions {
    /// A request for the events of all probes that match.
    pub(super) fn request(&self) -> Result<StreamRequest, Failure> {
        Ok(StreamRequest::new().filter(self.text()?).sample_one_in(self.sample))
    }

    /// The filter of all of them, in the language of filters. Options of the same kind are alternatives. The user's
    /// text stays first, so that spans in messages fit it.
    ///
    /// # Errors
    /// When a name cannot be written in that language, which knows no escapes: it has both kinds of quotes in it.
    fn text(&self) -> Result<String, Failure> {
        let comms = self.comms.iter().map(|comm| of_comm(comm)).collect::<Result<Vec<_>, _>>()?;
        let parts = [
            Some(self.filter.clone()).filter(|own| !own.trim().is_empty()),
            // The daemon does not know the process of a task that has ended before its events are read. The id of a
            // process is that of its first thread, which every event has.
            any_of(self.pids.iter().map(|pid| format!("tgid == {pid} || pid == {pid}"))),
            any_of(self.tids.iter().map(|tid| format!("pid == {tid}"))),
            any_of(comms.into_iter()),
            any_of(self.cpus.iter().map(|cpu| format!("cpu == {cpu}"))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        Ok(match parts.as_slice() {
            [part] => part.clone(),
            parts => parts.iter().map(|part| format!("({part})")).collect::<Vec<_>>().join(" && "),
        })
    }
}

fn any_of(conditions: impl Iterator<Item = String>) -> Option<String> {
    let conditions: Vec<String> = conditions.collect();
    (!conditions.is_empty()).then(|| conditions.join(" || "))
}

fn of_comm(comm: &str) -> Result<String, Failure> {
    let quote = ['"', '\''].into_iter().find(|quote| !comm.contains(*quote)).ok_or_else(|| {
        let message = format!("the task name `{comm}` has both `\"` and `'`, which a filter cannot express");
        Failure::new(Exit::Usage, message, [])
    })?;
    let operator = if comm.contains(['*', '?', '[']) { "~" } else { "==" };
    Ok(format!("comm {operator} {quote}{comm}{quote}"))
}

/// How long to wait for a host, which is some time.
pub(super) fn max_wait(text: &str) -> Result<Duration, String> {
    let wait = duration(text)?;
    if wait.is_zero() {
        return Err("it is zero, and every answer takes some time: write a time such as `2s`".to_owned());
    }
    Ok(wait)
}

impl TimeRange {
    fn is_history(&self) -> bool {
        self.since.is_some() || self.last.is_some() || self.oldest
    }

    pub(super) fn ends(&self) -> bool {
        self.until_now || (self.is_history() && !self.follow)
    }

    pub(super) fn apply(
        &self,
        request: StreamRequest,
        cursor_file: Option<&CursorFile>,
    ) -> Result<StreamRequest, Failure> {
        if self.until_now && !self.is_history() && self.cursor.is_none() {
            return Err(Failure::usage(
                "`--until-now` needs a place in the history to begin at",
                "add `--since`, `--last`, `--oldest` or `--cursor`",
            ));
        }
        let request = match (cursor_file.and_then(CursorFile::cursor), self.since, self.last) {
            (Some(cursor), _, _) => request.after(cursor.clone()),
            (None, Some(since), _) => request.since(SystemTime::from(since)),
            (None, None, Some(events)) => request.last_events(events),
            // The file is new: begin now, or with the oldest event.
            (None, None, None) if self.oldest || self.until_now => request.oldest(),
            (None, None, None) => request,
        };
        Ok(if self.ends() { request.until_now() } else { request })
    }
}

impl Delivery {
    pub(super) fn apply(&self, request: StreamRequest) -> StreamRequest {
        request.delivery(api::Delivery {
            order: self.order.into(),
            pace: self.pace.unwrap_or_default().into(),
            overflow: self.overflow.into(),
            queue_events: self.queue.unwrap_or_default(),
            queue_bytes: self.queue_bytes.unwrap_or_default(),
            max_events_per_second: self.rate.unwrap_or_default(),
            heartbeat_ms: 0,
        })
    }
}

impl OutputOptions {
    /// `host_width`: characters of the longest name of a host, if there are several.
    pub(super) fn style(&self, global: &Global, quiet: bool, host_width: Option<usize>) -> EventStyle {
        let has = |names: &[&str]| {
            self.fields.is_empty() || self.fields.iter().any(|field| names.contains(&field.as_str()))
        };
        let wide = self.wide || global.output == Format::Wide;
        EventStyle {
            time: self.time,
            wide,
            parts: TextParts {
                context: wide && has(&["context"]),
                task: has(&["tid", "comm"]),
                location: match (has(&["location"]), wide || !self.fields.is_empty()) {
                    (false, _) => LocationForm::Hidden,
                    (true, false) => LocationForm::Telling,
                    (true, true) => LocationForm::All,
                },
            },
            quiet,
            host_width,
            are_calls: false,
            limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: &str, pids: &[i32], tids: &[i32], comms: &[&str], cpus: &[u32]) -> Result<String, Failure> {
        let comms: Vec<String> = comms.iter().map(|comm| (*comm).to_owned()).collect();
        let (filter, pids, tids, cpus) = (own.to_owned(), pids.to_vec(), tids.to_vec(), cpus.to_vec());
        Conditions { filter, pids, tids, comms, cpus, sample: 1 }.text()
    }

    #[test]
    fn options_become_a_filter() {
        assert_eq!(of("", &[], &[], &[], &[]).unwrap(), "");
        assert_eq!(of("a == 1 || b", &[], &[], &[], &[]).unwrap(), "a == 1 || b", "as it was written");
        assert_eq!(of("", &[], &[7], &[], &[]).unwrap(), "pid == 7");
        assert_eq!(of("", &[7, 8], &[], &[], &[]).unwrap(), "tgid == 7 || pid == 7 || tgid == 8 || pid == 8");
        assert_eq!(
            of("a == 1 || b", &[6], &[7, 8], &["ssh*", "cat"], &[0]).unwrap(),
            "(a == 1 || b) && (tgid == 6 || pid == 6) && (pid == 7 || pid == 8) && (comm ~ \"ssh*\" || comm == \"cat\") && (cpu == 0)"
        );
        assert_eq!(of("", &[], &[], &["a\"b"], &[]).unwrap(), "comm == 'a\"b'");
        assert!(of("", &[], &[], &["a\"b'"], &[]).is_err());
    }
}
