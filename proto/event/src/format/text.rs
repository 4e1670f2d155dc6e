//! Text lines: events for people.
//!
//! Owns the layout of a line. Never knows a time zone: the caller formats the time of day.

use std::fmt;
use std::io::Write as _;

use super::digits::{push_decimal, push_duration, push_padded, push_seconds, push_signed};
use super::value::{push_address, push_escaped, push_value};
use super::{Call, Origin};
use crate::Row;

/// Mark after a value whose fault the daemon cannot detect.
const UNPROVEN: &[u8] = b"(?)";

/// How time is shown.
pub enum TimeForm {
    /// Time of day: the function formats seconds since 1970, and is called once a second.
    Wall(Box<dyn Fn(u64) -> String + Send>),
    /// Seconds since the event shown before.
    Delta,
    /// Seconds of the trace clock.
    Trace,
}

impl fmt::Debug for TimeForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wall(_) => "Wall",
            Self::Delta => "Delta",
            Self::Trace => "Trace",
        })
    }
}

/// Parts of a line besides time, CPU, probe and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextParts {
    /// The execution context.
    pub context: bool,
    /// Name and id of the task.
    pub task: bool,
    /// The address of the probe.
    pub location: bool,
}

/// Writer of text lines, with its state from one line to the next.
#[derive(Debug)]
pub struct TextLines {
    time: TimeForm,
    parts: TextParts,
    /// Escape sequences before and after the name of the probe: colours.
    brackets: (&'static str, &'static str),
    /// The last second that was shown, and its text.
    second: Option<(u64, String)>,
    previous_ns: Option<u64>,
}

impl TextLines {
    /// Lines with these parts. `brackets` enclose the name of the probe.
    pub fn new(time: TimeForm, parts: TextParts, brackets: (&'static str, &'static str)) -> Self {
        Self { time, parts, brackets, second: None, previous_ns: None }
    }

    /// The headings of a line.
    pub fn header(&self) -> String {
        let mut header = "TIME [CPU]".to_owned();
        for (is_there, part) in [(self.parts.context, " CONTEXT"), (self.parts.task, " COMM-TID")] {
            header.push_str(if is_there { part } else { "" });
        }
        header.push_str(if self.parts.location { " PROBE (LOCATION) FIELDS" } else { " PROBE FIELDS" });
        header
    }

    /// Appends the line of an event.
    pub fn push(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        self.push_time(buffer, row, row.wall_ns(), row.timestamp_ns());
        self.push_rest(buffer, row);
    }

    /// Appends the line of an event of one of several hosts, whose names are padded to `width`
    /// characters. Times are those of the clock that all hosts are compared with, except with
    /// [`TimeForm::Trace`].
    pub fn push_merged(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>, origin: Origin<'_>, width: usize) {
        self.push_origin(buffer, row, origin, width);
        self.push_rest(buffer, row);
    }

    /// Appends the line of a call. `origin`: of one of several hosts, with the width of their names.
    pub fn push_call(
        &mut self,
        buffer: &mut Vec<u8>,
        function: &str,
        call: &Call<'_>,
        origin: Option<(Origin<'_>, usize)>,
    ) {
        let last = call.last();
        match origin {
            None => self.push_time(buffer, &last, last.wall_ns(), last.timestamp_ns()),
            Some((origin, width)) => self.push_origin(buffer, &last, origin, width),
        }
        self.push_task(buffer, &last);
        buffer.extend_from_slice(self.brackets.0.as_bytes());
        push_escaped(buffer, function.as_bytes());
        buffer.extend_from_slice(self.brackets.1.as_bytes());
        let push_end = |buffer: &mut Vec<u8>, end: Option<Row<'_>>| match (end, call.incomplete()) {
            (Some(row), _) => push_fields(buffer, &row),
            (None, why) => {
                let why = why.map_or("", |why| why.name()).replace('_', " ");
                buffer.extend_from_slice(format!(" ({why})").as_bytes());
            }
        };
        push_end(buffer, call.entry());
        buffer.extend_from_slice(b" ->");
        push_end(buffer, call.exit());
        if let Some(duration_ns) = call.duration_ns() {
            buffer.push(b' ');
            push_duration(buffer, duration_ns);
        }
        buffer.push(b'\n');
    }

    /// The headings of the line of a call.
    pub fn call_header(&self) -> String {
        let header = self.header();
        let before = header.split(" PROBE").next().unwrap_or_default();
        format!("{before} FUNCTION FIELDS -> VALUE DURATION")
    }

    fn push_origin(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>, origin: Origin<'_>, width: usize) {
        push_escaped(buffer, origin.host.as_bytes());
        let missing = width.saturating_sub(origin.host.chars().count());
        buffer.extend(std::iter::repeat_n(b' ', missing + 1));
        self.push_time(buffer, row, origin.corrected_ns, origin.corrected_ns);
        if origin.late {
            buffer.extend_from_slice(b" late");
        }
    }

    fn push_task(&self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        buffer.extend_from_slice(b" [");
        push_cpu(buffer, row.cpu());
        buffer.extend_from_slice(b"] ");
        if self.parts.context {
            match row.context() {
                // Writing to memory cannot fail.
                Some(context) => write!(buffer, "{context} ").ok(),
                None => buffer.write_all(b"????? ").ok(),
            };
        }
        if self.parts.task {
            match row.comm() {
                Some(comm) => push_escaped(buffer, comm),
                None => buffer.extend_from_slice(b"<...>"),
            }
            buffer.push(b'-');
            match row.tid() {
                Some(tid) => push_signed(buffer, tid.into()),
                None => buffer.push(b'?'),
            }
            buffer.push(b' ');
        }
    }

    fn push_rest(&self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        self.push_task(buffer, row);
        buffer.extend_from_slice(self.brackets.0.as_bytes());
        buffer.extend_from_slice(row.probe().as_bytes());
        buffer.extend_from_slice(self.brackets.1.as_bytes());
        if self.parts.location
            && let Some(location) = row.location()
        {
            buffer.extend_from_slice(b" (");
            if let Some(to) = row.return_location() {
                push_address(buffer, to);
                buffer.extend_from_slice(b" <- ");
            }
            push_address(buffer, location);
            buffer.push(b')');
        }
        push_fields(buffer, row);
        buffer.push(b'\n');
    }

    #[inline]
    fn push_time(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>, wall_ns: u64, ns: u64) {
        match &self.time {
            TimeForm::Wall(text_of) => {
                let now = wall_ns / 1_000_000_000;
                match &self.second {
                    Some((known, text)) if *known == now => buffer.extend_from_slice(text.as_bytes()),
                    _ => {
                        let text = text_of(now);
                        buffer.extend_from_slice(text.as_bytes());
                        self.second = Some((now, text));
                    }
                }
                buffer.push(b'.');
                push_padded::<6>(buffer, wall_ns % 1_000_000_000 / 1_000);
            }
            TimeForm::Trace => push_seconds(buffer, row.timestamp_ns()),
            TimeForm::Delta => {
                let previous = self.previous_ns.replace(ns).unwrap_or(ns);
                // Batches of several CPUs alternate, so that time can go back from one batch to the
                // next.
                let (sign, delta) = if ns < previous { (b'-', previous - ns) } else { (b'+', ns - previous) };
                buffer.push(sign);
                push_seconds(buffer, delta);
            }
        }
    }
}

#[inline]
fn push_fields(buffer: &mut Vec<u8>, row: &Row<'_>) {
    for (field, (name, value)) in row.schema().fields().iter().zip(row.fields()) {
        buffer.push(b' ');
        buffer.extend_from_slice(name.as_bytes());
        buffer.push(b'=');
        push_value(buffer, &value);
        if !field.fault_detected {
            buffer.extend_from_slice(UNPROVEN);
        }
    }
}

/// Three digits or more, as in the kernel's own trace.
#[inline]
fn push_cpu(buffer: &mut Vec<u8>, cpu: u32) {
    if cpu < 1000 { push_padded::<3>(buffer, cpu.into()) } else { push_decimal(buffer, cpu.into()) }
}
