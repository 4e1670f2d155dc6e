//! Events as lines for people.
//!
//! Owns the layout of a line. It is written for speed: the time of day is worked out once a second, everything else goes
//! straight into the buffer.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kprobed_client::event::{Escaped, Loss, LossCause, Row};

use super::super::style::{Style, Tone};

/// How time is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeForm {
    /// Time of day, in the local zone.
    Wall,
    /// Seconds since the event shown before.
    Delta,
    /// Seconds of the trace clock.
    Trace,
}

/// The layout, and what it remembers from line to line.
pub(super) struct TextForm {
    time: TimeForm,
    wide: bool,
    style: Style,
    zone: TimeZone,
    /// The last second that was shown, and its text.
    second: Option<(u64, String)>,
    previous_ns: Option<u64>,
}

impl TextForm {
    pub(super) fn new(time: TimeForm, wide: bool, style: Style) -> Self {
        Self::in_zone(TimeZone::system(), time, wide, style)
    }

    pub(super) fn in_zone(zone: TimeZone, time: TimeForm, wide: bool, style: Style) -> Self {
        Self { time, wide, style, zone, second: None, previous_ns: None }
    }

    /// The headings.
    pub(super) fn header(&self) -> &'static str {
        if self.wide {
            "TIME [CPU] CONTEXT COMM-TID PROBE (LOCATION) FIELDS"
        } else {
            "TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS"
        }
    }

    /// Appends the line of an event.
    pub(super) fn push_row(&mut self, line: &mut String, row: &Row<'_>) {
        self.push_time(line, row);
        // Writing to a string can not fail.
        write!(line, " [{:03}] ", row.cpu()).ok();
        if self.wide {
            match row.context() {
                Some(context) => write!(line, "{context} ").ok(),
                None => write!(line, "????? ").ok(),
            };
        }
        match row.comm() {
            Some(comm) => write!(line, "{}-{} ", Escaped(comm), row.tid()).ok(),
            None => write!(line, "<...>-{} ", row.tid()).ok(),
        };
        let (before, behind) = self.style.brackets(Tone::Strong);
        write!(line, "{before}{}{behind} (", row.probe()).ok();
        match row.return_location() {
            Some(to) => write!(line, "{to} <- {})", row.location()).ok(),
            None => write!(line, "{})", row.location()).ok(),
        };
        for (name, value) in row.fields() {
            write!(line, " {name}={value}").ok();
        }
        line.push('\n');
    }

    fn push_time(&mut self, line: &mut String, row: &Row<'_>) {
        match self.time {
            TimeForm::Wall => self.push_wall(line, row.wall_ns()),
            TimeForm::Trace => {
                let ns = row.timestamp_ns();
                write!(line, "{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000).ok();
            }
            TimeForm::Delta => {
                let ns = row.timestamp_ns();
                let previous = self.previous_ns.replace(ns).unwrap_or(ns);
                // CPUs take turns, so that time can go back from one batch to the next.
                let (sign, delta) = if ns < previous { ('-', previous - ns) } else { ('+', ns - previous) };
                write!(line, "{sign}{}.{:06}", delta / 1_000_000_000, delta % 1_000_000_000 / 1_000).ok();
            }
        }
    }

    fn push_wall(&mut self, line: &mut String, wall_ns: u64) {
        let second = wall_ns / 1_000_000_000;
        match &self.second {
            Some((known, text)) if *known == second => line.push_str(text),
            _ => {
                let text = self.second_text(second);
                line.push_str(&text);
                self.second = Some((second, text));
            }
        }
        write!(line, ".{:06}", wall_ns % 1_000_000_000 / 1_000).ok();
    }

    fn second_text(&self, second: u64) -> String {
        let time = Timestamp::from_second(second as i64).unwrap_or_default().to_zoned(self.zone.clone());
        time.strftime(if self.wide { "%Y-%m-%dT%H:%M:%S" } else { "%H:%M:%S" }).to_string()
    }

    /// What is to be said about a gap.
    pub(super) fn loss(&self, loss: &Loss) -> String {
        let mut time = self.second_text(loss.before_wall_ns / 1_000_000_000);
        write!(time, ".{:06}", loss.before_wall_ns % 1_000_000_000 / 1_000).ok();
        let count = loss.count.map_or_else(|| "some".to_owned(), |count| count.to_string());
        format!("{count} events of CPU {} before {time}: {}", loss.cpu, cause(loss.cause))
    }
}

/// Why events were lost, for people.
pub(super) fn cause(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Overrun => "the kernel's ring buffer was full",
        LossCause::SubscriberQueue => "events came faster than they were printed",
        LossCause::Undecodable => "the daemon could not decode them",
        LossCause::Other => "for a reason that this version does not know",
    }
}
