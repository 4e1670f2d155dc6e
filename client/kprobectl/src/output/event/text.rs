//! Text of an event stream: times in the local zone, losses and lost connections.

use std::fmt::Write as _;

use clap::ValueEnum;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kprobed_client::event::format;
use kprobed_client::event::{Interruption, Loss, LossCause, PauseReason, RecordingPause};

use crate::output::data::counted;

/// Format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeForm {
    /// Time of day, in the local zone
    Wall,
    /// Seconds since the previous event shown
    Delta,
    /// Seconds of the kernel's trace clock
    Trace,
}

/// Time in the local zone, for people.
pub(super) struct LocalTime {
    zone: TimeZone,
    date: bool,
}

impl LocalTime {
    pub(super) fn new(date: bool) -> Self {
        Self::in_zone(TimeZone::system(), date)
    }

    pub(super) fn in_zone(zone: TimeZone, date: bool) -> Self {
        Self { zone, date }
    }

    /// The same for the lines of events.
    pub(super) fn time(&self, form: TimeForm) -> format::TimeForm {
        match form {
            TimeForm::Wall => {
                let local_time = Self { zone: self.zone.clone(), date: self.date };
                format::TimeForm::Wall(Box::new(move |second| local_time.second(second)))
            }
            TimeForm::Delta => format::TimeForm::Delta,
            TimeForm::Trace => format::TimeForm::Trace,
        }
    }

    pub(super) fn second(&self, second: u64) -> String {
        let time = Timestamp::from_second(second as i64).unwrap_or_default().to_zoned(self.zone.clone());
        time.strftime(if self.date { "%Y-%m-%dT%H:%M:%S" } else { "%H:%M:%S" }).to_string()
    }

    /// The message about a gap.
    pub(super) fn loss(&self, loss: &Loss) -> String {
        let mut text = match loss.count {
            None => "some events".to_owned(),
            Some(0) => "already reported events".to_owned(),
            Some(count) => counted(count, "event"),
        };
        // Writing to a string cannot fail.
        if let Some(cpu) = loss.cpu {
            write!(text, " of CPU {cpu}").ok();
        }
        if let Some(wall_ns) = loss.before_wall_ns {
            let second = self.second(wall_ns / 1_000_000_000);
            write!(text, " before {second}.{:06}", wall_ns % 1_000_000_000 / 1_000).ok();
        }
        if loss.gaps > 1 {
            write!(text, " in {} gaps", loss.gaps).ok();
        }
        write!(text, ": {}", cause(loss.cause)).ok();
        if let Some(pause) = &loss.pause {
            text.push_str(&details(pause));
        }
        text
    }
}

/// Why events were lost.
pub(super) fn cause(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Overrun => "the kernel's ring buffer was full",
        LossCause::SubscriberQueue => "this command printed too slowly, and its queue was full",
        LossCause::Undecodable => "the daemon could not decode them",
        LossCause::RateLimit => "they exceeded `--rate`",
        LossCause::Expired => "they are no longer in the history",
        LossCause::NotStored => "the daemon could not write them to the history",
        LossCause::Damaged => "the files of the history were damaged",
        LossCause::Paused => "the daemon paused recording",
        LossCause::Reset => "another program emptied the kernel's ring buffer",
        LossCause::CommitOverrun => {
            "writers were nested too deep in the kernel's ring buffer (commit overrun)"
        }
        LossCause::DroppedEvents => {
            "the kernel's ring buffer was full, and overwriting is off (dropped events)"
        }
        LossCause::Taken => "another program read them from the kernel's ring buffer",
        LossCause::Unexplained => {
            "another program changed what the daemon records: `kprobectl ledger` has how many it can be (UNEXPLAINED)"
        }
        LossCause::Unspecified => "the reason is unknown to this version",
    }
}

/// How long a pause was, what for, and what it cost.
fn details(pause: &RecordingPause) -> String {
    let what_for = match pause.reason {
        PauseReason::Baseline => " to take the baseline of its ledger",
        PauseReason::Deletion => " to delete a probe",
        PauseReason::Resize => " to enlarge the ring buffers",
        PauseReason::Unspecified => "",
    };
    let hits = match pause.hits {
        Some(1) => "1 hit was not recorded".to_owned(),
        Some(hits) => format!("{hits} hits were not recorded"),
        None => "the kernel did not count the hits".to_owned(),
    };
    format!(" for {:.1} ms{what_for}; {hits}", pause.duration.as_secs_f64() * 1e3)
}

/// Why a connection was lost.
pub(super) fn why(interruption: &Interruption) -> String {
    interruption.error.as_ref().map_or_else(|| "the daemon ended the stream".to_owned(), ToString::to_string)
}
