//! Text lines: events for people.
//!
//! Owns the layout of a line. Never knows a time zone: the caller formats the time of day.

use std::fmt;
use std::io::Write as _;

use super::digits::{push_decimal, push_duration, push_padded, push_seconds, push_signed};
use super::value::{is_error, push_address, push_escaped, push_shown};
use super::{Call, Origin};
use crate::{Address, Row, Value};

/// Mark after a value whose fault the daemon cannot detect.
const UNPROVEN: &[u8] = b"(?)";

/// Most characters to which the name of a task, and that of a probe, are padded.
const PADDED_MAX: usize = 32;

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
    pub location: LocationForm,
}

/// Which addresses of probes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationForm {
    /// None.
    Hidden,
    /// Where a function returned to, and addresses inside of functions: that of an entry is always the same.
    Telling,
    /// All.
    All,
}

/// Escape sequences before and after parts of a line: colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextColours {
    /// The name and id of the task.
    pub task: (&'static str, &'static str),
    /// The name of the probe.
    pub probe: (&'static str, &'static str),
    /// The name of a field, with the equals sign.
    pub field: (&'static str, &'static str),
    /// A negative number or an error.
    pub error: (&'static str, &'static str),
}

/// Writer of text lines, with its state from one line to the next.
#[derive(Debug)]
pub struct TextLines {
    time: TimeForm,
    parts: TextParts,
    colours: TextColours,
    /// Characters of the longest name and id of a task so far, at most [`PADDED_MAX`].
    task_width: usize,
    /// The same of the name of a probe.
    probe_width: usize,
    /// The last second that was shown, and its text.
    second: Option<(u64, String)>,
    previous_ns: Option<u64>,
}

impl TextLines {
    /// Lines with these parts in these colours.
    pub fn new(time: TimeForm, parts: TextParts, colours: TextColours) -> Self {
        Self { time, parts, colours, task_width: 0, probe_width: 0, second: None, previous_ns: None }
    }

    /// The headings of a line.
    pub fn header(&self) -> String {
        let mut header = "TIME [CPU]".to_owned();
        for (is_there, part) in [(self.parts.context, " CONTEXT"), (self.parts.task, " COMM-TID")] {
            header.push_str(if is_there { part } else { "" });
        }
        let has_location = self.parts.location != LocationForm::Hidden;
        header.push_str(if has_location { " PROBE (LOCATION) FIELDS" } else { " PROBE FIELDS" });
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
        let colours = self.colours;
        let missing = in_colour(buffer, colours.probe, |buffer| {
            push_escaped(buffer, function.as_bytes());
            missing(&mut self.probe_width, function.as_bytes())
        });
        push_blanks(buffer, missing);
        let push_end = |buffer: &mut Vec<u8>, end: Option<Row<'_>>| match (end, call.incomplete()) {
            (Some(row), _) => push_fields(buffer, &row, colours),
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

    fn push_task(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
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
        let colours = self.colours;
        if self.parts.task {
            let missing = in_colour(buffer, colours.task, |buffer| {
                let start = buffer.len();
                match row.comm() {
                    Some(comm) => push_escaped(buffer, comm),
                    None => buffer.extend_from_slice(b"<...>"),
                }
                buffer.push(b'-');
                match row.tid() {
                    Some(tid) => push_signed(buffer, tid.into()),
                    None => buffer.push(b'?'),
                }
                missing(&mut self.task_width, buffer.get(start..).unwrap_or_default())
            });
            push_blanks(buffer, missing + 1);
        }
    }

    fn push_rest(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        self.push_task(buffer, row);
        let colours = self.colours;
        let missing = in_colour(buffer, colours.probe, |buffer| {
            buffer.extend_from_slice(row.probe().as_bytes());
            missing(&mut self.probe_width, row.probe().as_bytes())
        });
        let location = row.location().filter(|location| match self.parts.location {
            LocationForm::Hidden => false,
            LocationForm::Telling => row.return_location().is_some() || !is_entry(*location),
            LocationForm::All => true,
        });
        let stack = row.schema().stack();
        if location.is_some() || row.schema().fields().len() > usize::from(stack.is_some()) {
            push_blanks(buffer, missing);
        }
        if let Some(location) = location {
            buffer.extend_from_slice(b" (");
            if let Some(to) = row.return_location() {
                push_address(buffer, to);
                buffer.extend_from_slice(b" <- ");
            }
            push_address(buffer, location);
            buffer.push(b')');
        }
        push_fields(buffer, row, colours);
        buffer.push(b'\n');
        if let Some(stack) = stack {
            push_stack(buffer, row.value(stack));
        }
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
fn push_fields(buffer: &mut Vec<u8>, row: &Row<'_>, colours: TextColours) {
    let before_stack = row.schema().stack().unwrap_or(usize::MAX);
    for (field, (name, value)) in row.schema().fields().iter().zip(row.fields()).take(before_stack) {
        buffer.push(b' ');
        in_colour(buffer, colours.field, |buffer| {
            buffer.extend_from_slice(name.as_bytes());
            buffer.push(b'=');
        });
        let colour = if is_error(field, &value) { colours.error } else { ("", "") };
        in_colour(buffer, colour, |buffer| push_shown(buffer, field, &value));
        if !field.fault_detected {
            buffer.extend_from_slice(UNPROVEN);
        }
    }
}

/// The frames of a call stack, one a line.
#[cold]
fn push_stack(buffer: &mut Vec<u8>, stack: Option<Value<'_>>) {
    let Some(Value::Bytes(frames)) = stack else {
        return buffer.extend_from_slice(b"    (the stack is lost)\n");
    };
    for frame in frames.split(|byte| *byte == b'\n') {
        push_blanks(buffer, 4);
        push_escaped(buffer, frame);
        buffer.push(b'\n');
    }
}

#[inline]
fn in_colour<T>(buffer: &mut Vec<u8>, (begin, end): (&str, &str), push: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    buffer.extend_from_slice(begin.as_bytes());
    let pushed = push(buffer);
    buffer.extend_from_slice(end.as_bytes());
    pushed
}

/// How many characters a text has less than the longest one so far, which it may be itself.
#[inline]
fn missing(longest: &mut usize, text: &[u8]) -> usize {
    // All bytes of a character but its first are of this form.
    let length = text.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    *longest = (*longest).max(length.min(PADDED_MAX));
    longest.saturating_sub(length)
}

#[inline]
fn push_blanks(buffer: &mut Vec<u8>, count: usize) {
    buffer.extend(std::iter::repeat_n(b' ', count));
}

/// Whether an address is that of the entry of a function. Behind the `endbr64` of 4 bytes that a function begins with
/// if the kernel is built with IBT, it is the same place; the call to ftrace that begins all others has 5.
fn is_entry(address: Address<'_>) -> bool {
    address.text.is_some_and(|text| text.contains("+0x0/") || text.contains("+0x4/"))
}

/// Three digits or more, as in the kernel's own trace.
#[inline]
fn push_cpu(buffer: &mut Vec<u8>, cpu: u32) {
    if cpu < 1000 { push_padded::<3>(buffer, cpu.into()) } else { push_decimal(buffer, cpu.into()) }
}
