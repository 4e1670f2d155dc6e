//! Printer of event streams.
//!
//! Owns one buffer for all rows, and writes it in large chunks: a row costs no allocation and no
//! system call.

mod merged;
mod summary;
mod text;

pub(crate) use summary::{Recorded, SkippedRuns};
pub(crate) use text::TimeForm;

use std::io::{self, IsTerminal as _};

use kprobed_client::event::format::{Call, JsonLines, Origin, TextColours, TextLines, TextParts};
use kprobed_client::event::{Cursor, Epoch, Interruption, Loss, Row};
use serde_json::{Value, json};

use self::summary::Summary;
use self::text::LocalTime;
use super::Output;
use super::terminal::Tone;
use crate::global::Format;

/// Large enough for a batch of events, so that a busy stream costs few system calls.
const PIECE_BYTES: usize = 256 << 10;

/// Prints a stream of events, and keeps count.
pub(crate) struct EventPrinter<'o> {
    output: &'o mut Output,
    local_time: LocalTime,
    text: TextLines,
    json: JsonLines,
    buffer: Vec<u8>,
    header: bool,
    is_terminal: bool,
    style: EventStyle,
    pub(crate) summary: Summary,
}

/// How to print a stream.
pub(crate) struct EventStyle {
    pub(crate) time: TimeForm,
    /// With the date.
    pub(crate) wide: bool,
    pub(crate) parts: TextParts,
    /// Without notes and summary.
    pub(crate) quiet: bool,
    /// Characters of the longest name of a host. None: events of one host, which is not named.
    pub(crate) host_width: Option<usize>,
    /// Calls are shown, and nothing else.
    pub(crate) are_calls: bool,
    /// Events that are shown at most.
    pub(crate) limit: Option<u64>,
}

impl<'o> EventPrinter<'o> {
    pub(crate) fn new(output: &'o mut Output, style: EventStyle) -> Self {
        let local_time = LocalTime::new(style.wide);
        let colours = TextColours {
            task: output.style.brackets(Tone::Task),
            probe: output.style.brackets(Tone::Strong),
            field: output.style.brackets(Tone::Faint),
            error: output.style.brackets(Tone::Bad),
        };
        let header = output.has_headings;
        let text = TextLines::new(local_time.time(style.time), style.parts, colours);
        Self {
            output,
            local_time,
            text,
            json: JsonLines::new(),
            buffer: Vec::with_capacity(PIECE_BYTES + (PIECE_BYTES >> 2)),
            header,
            is_terminal: io::stdout().is_terminal(),
            style,
            summary: Summary::default(),
        }
    }

    /// Whether as many events are shown as were asked for.
    pub(crate) fn is_full(&self) -> bool {
        self.style.limit.is_some_and(|limit| self.summary.shown >= limit)
    }

    /// Whether people watch.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Prints the headings, once.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        if self.is_for_people() && std::mem::take(&mut self.header) {
            let header = if self.style.are_calls { self.text.call_header() } else { self.text.header() };
            match self.style.host_width {
                Some(width) => self.output.line(&format!("{:width$} {header}", "HOST"))?,
                None => self.output.line(&header)?,
            }
        }
        Ok(())
    }

    /// The daemons have subscribed this command: prints what is observed, on stderr. Every event that is recorded
    /// after that line is delivered or reported as lost, so that scripts wait for it instead of sleeping.
    pub(crate) fn observing(&mut self, what: &str) -> io::Result<()> {
        if !self.style.quiet {
            self.flush()?;
            self.output.message(&format!("observing {what}\n"));
        }
        Ok(())
    }

    /// Whether people read it, and not programs.
    fn is_for_people(&self) -> bool {
        !self.output.is_structured()
    }

    /// Prints an event; of one of several hosts, with its origin.
    pub(crate) fn row(&mut self, row: &Row<'_>, origin: Option<Origin<'_>>) -> io::Result<()> {
        self.summary.shown += 1;
        match (self.is_for_people(), origin) {
            (true, None) => self.text.push(&mut self.buffer, row),
            (true, Some(origin)) => {
                let width = self.style.host_width.unwrap_or_default();
                self.text.push_merged(&mut self.buffer, row, origin, width);
            }
            (false, None) => self.json.push(&mut self.buffer, row),
            (false, Some(origin)) => self.json.push_merged(&mut self.buffer, row, origin),
        }
        self.end_item()
    }

    /// Prints a call; of one of several hosts, with its origin.
    pub(crate) fn call(
        &mut self,
        function: &str,
        call: &Call<'_>,
        origin: Option<Origin<'_>>,
    ) -> io::Result<()> {
        self.summary.shown += 1;
        self.summary.shown_calls += 1;
        if self.is_for_people() {
            let origin = origin.map(|origin| (origin, self.style.host_width.unwrap_or_default()));
            self.text.push_call(&mut self.buffer, function, call, origin);
        } else {
            self.json.push_call(&mut self.buffer, function, call, origin);
        }
        self.end_item()
    }

    /// Prints a gap: among the objects for programs, and on stderr for people. `host`: whose, if there are several.
    pub(crate) fn loss(&mut self, host: Option<&str>, loss: &Loss) -> io::Result<()> {
        self.summary.lose(loss);
        if self.is_for_people() {
            let text = self.local_time.loss(loss);
            return self.warn(host, "lost:", &text);
        }
        host.map_or_else(JsonLines::new, JsonLines::of_host).push_loss(&mut self.buffer, loss);
        self.end_item()
    }

    /// Prints that a run of the daemon begins here, if it is another one than before (`is_restart`), or if the one
    /// before did not stop cleanly. What happened in between may be missing.
    pub(crate) fn new_run(&mut self, host: Option<&str>, run: &Epoch, is_restart: bool) -> io::Result<()> {
        let Epoch { cursor, may_miss } = run;
        if !self.is_for_people() {
            host.map_or_else(JsonLines::new, JsonLines::of_host).push_epoch(
                &mut self.buffer,
                cursor,
                *may_miss,
            );
            return self.end_item();
        }
        if is_restart {
            let began = self.local_time.second(cursor.epoch / 1_000_000_000);
            // A start takes time: the probes are armed at its end.
            let text = format!(
                "what happened from the end of the daemon's run before until it had armed the probes again, after its \
                 start at {began}"
            );
            self.warn(host, "maybe not recorded:", &text)?;
        }
        if *may_miss {
            let why = "the daemon did not stop cleanly, so the history may lack the last events of that run";
            self.warn(host, "maybe lost:", why)?;
        }
        Ok(())
    }

    /// Prints on stderr what people should know about a host, or the one host.
    fn warn(&mut self, host: Option<&str>, what: &str, text: &str) -> io::Result<()> {
        self.write()?;
        let what = self.output.error_style.warning(what);
        let of = host.map(|host| format!("{host}: ")).unwrap_or_default();
        self.output.message(&format!("{of}{what} {text}\n"));
        Ok(())
    }

    /// What had happened when the stream began is printed.
    pub(crate) fn caught_up(&mut self, cursor: &Cursor) -> io::Result<()> {
        if self.is_for_people() {
            return Ok(());
        }
        self.json.push_caught_up(&mut self.buffer, cursor);
        self.end_item()
    }

    /// Prints that the connection was lost; in text, only the first of several failures in a row.
    pub(crate) fn interrupted(&mut self, interruption: &Interruption) -> io::Result<()> {
        let failures = interruption.failures;
        let why = text::why(interruption);
        if !self.is_for_people() {
            return self.object(&json!({ "type": "interruption", "error": why, "failures": failures }));
        }
        self.write()?;
        if failures == 1 {
            self.note(&format!("{why}; connecting again"));
        }
        Ok(())
    }

    /// Prints a note, unless notes are switched off.
    pub(crate) fn note(&mut self, message: &str) {
        if !self.style.quiet {
            self.output.note(message);
        }
    }

    fn object(&mut self, object: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, object)?;
        self.buffer.push(b'\n');
        self.end_item()
    }

    /// Makes a document of an object, if the form is YAML, and writes a buffer that is full.
    fn end_item(&mut self) -> io::Result<()> {
        if self.output.format == Format::Yaml {
            self.output.raw(b"---\n")?;
            let object: Value = serde_json::from_slice(&self.buffer)?;
            self.output.yaml(&object)?;
            self.buffer.clear();
        }
        if self.buffer.len() >= PIECE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.output.raw(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes out everything that was printed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.write()?;
        self.output.flush()
    }

    /// Prints the summary of the stream on stderr.
    pub(crate) fn print_summary(&mut self) {
        if !self.style.quiet {
            let text = format!("{}\n", self.summary);
            self.output.message(&text);
        }
    }
}

#[cfg(test)]
mod tests;
