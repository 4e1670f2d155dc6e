//! Printer of event streams.
//!
//! Owns one buffer for all rows, and writes it in large chunks: a row costs no allocation and no
//! system call.

mod json;
mod merged;
mod summary;
mod text;

pub(crate) use text::TimeForm;

use std::io::{self, IsTerminal as _};

use kprobed_client::event::format::{JsonLines, TextLines, TextParts};
use kprobed_client::event::{Cursor, Interruption, Loss, Row};

use self::json::{CaughtUpView, EpochView, EventView, InterruptionView, LossView};
use self::summary::Summary;
use self::text::LocalTime;
use super::Output;
use super::style::Tone;
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
    observing: Option<String>,
    is_terminal: bool,
    quiet: bool,
    /// Characters of the longest name of a host. None: events of one host, which is not named.
    host_width: Option<usize>,
    pub(crate) summary: Summary,
}

/// How to print a stream.
pub(crate) struct EventStyle {
    pub(crate) time: TimeForm,
    /// With the date.
    pub(crate) wide: bool,
    pub(crate) parts: TextParts,
    /// With a line of headings.
    pub(crate) header: bool,
    /// Description of what is observed. Absent if the stream does not follow new events, or with
    /// `--quiet`.
    pub(crate) observing: Option<String>,
    /// Without notes and summary.
    pub(crate) quiet: bool,
    /// Characters of the longest name of a host, if events are of several.
    pub(crate) host_width: Option<usize>,
}

impl<'o> EventPrinter<'o> {
    pub(crate) fn new(output: &'o mut Output, style: EventStyle) -> Self {
        let local_time = LocalTime::new(style.wide);
        let brackets = output.style.brackets(Tone::Strong);
        let text = TextLines::new(local_time.time(style.time), style.parts, brackets);
        Self {
            output,
            local_time,
            text,
            json: JsonLines::new(),
            buffer: Vec::with_capacity(PIECE_BYTES + (PIECE_BYTES >> 2)),
            header: style.header,
            observing: style.observing,
            is_terminal: io::stdout().is_terminal(),
            quiet: style.quiet,
            host_width: style.host_width,
            summary: Summary::default(),
        }
    }

    /// Whether people watch.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The daemon has subscribed this command: prints the headings, and on stderr what is observed,
    /// each once. Every event that is recorded after that line is delivered or reported as lost, so
    /// that scripts wait for it instead of sleeping.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        if matches!(
            self.output.format,
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv
        ) && std::mem::take(&mut self.header)
        {
            let header = self.text.header();
            match self.host_width {
                Some(width) => self.output.line(&format!("{:width$} {header}", "HOST"))?,
                None => self.output.line(&header)?,
            }
        }
        match self.observing.take() {
            Some(what) => self.observing(&what),
            None => Ok(()),
        }
    }

    /// Prints what is observed from now on, on stderr.
    pub(crate) fn observing(&mut self, what: &str) -> io::Result<()> {
        if !self.quiet {
            self.flush()?;
            self.output.message(&format!("observing {what}\n"));
        }
        Ok(())
    }

    /// Prints an event.
    pub(crate) fn row(&mut self, row: &Row<'_>) -> io::Result<()> {
        match self.output.format {
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv => {
                self.text.push(&mut self.buffer, row);
            }
            Format::Json => self.json.push(&mut self.buffer, row),
            Format::Yaml => self.yaml(&EventView(row, None))?,
        }
        self.summary.shown += 1;
        if self.buffer.len() >= PIECE_BYTES { self.write() } else { Ok(()) }
    }

    /// Prints a gap: among the objects for programs, and on stderr for people.
    pub(crate) fn loss(&mut self, loss: &Loss) -> io::Result<()> {
        self.loss_of(None, loss)
    }

    fn loss_of(&mut self, host: Option<&str>, loss: &Loss) -> io::Result<()> {
        self.summary.lose(loss);
        match self.output.format {
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv => {
                self.write()?;
                let lost = self.output.error_style.warning("lost:");
                let text = self.local_time.loss(loss);
                let of = host.map(|host| format!("{host}: ")).unwrap_or_default();
                self.output.message(&format!("{of}{lost} {text}\n"));
                Ok(())
            }
            _ => self.object(&LossView::new(host, loss)),
        }
    }

    /// Prints that a run of the daemon did not stop cleanly: whether events are missing after it is
    /// not known.
    pub(crate) fn may_miss(&mut self, cursor: &Cursor) -> io::Result<()> {
        self.may_miss_of(None, cursor)
    }

    fn may_miss_of(&mut self, host: Option<&str>, cursor: &Cursor) -> io::Result<()> {
        match self.output.format {
            Format::Table | Format::Wide => {
                self.write()?;
                let warning = self.output.error_style.warning("maybe lost:");
                let why =
                    "the daemon did not stop cleanly, so the history may lack the last events of that run";
                let of = host.map(|host| format!("{host}: ")).unwrap_or_default();
                self.output.message(&format!("{of}{warning} {why}\n"));
                Ok(())
            }
            _ => self.object(&EpochView::new(host, cursor)),
        }
    }

    /// What had happened when the stream began is printed.
    pub(crate) fn caught_up(&mut self, cursor: &Cursor) -> io::Result<()> {
        match self.output.format {
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv => Ok(()),
            _ => self.object(&CaughtUpView::new(cursor)),
        }
    }

    /// Prints that the connection was lost; in text, only the first of several failures in a row.
    pub(crate) fn interrupted(&mut self, interruption: &Interruption) -> io::Result<()> {
        if interruption.failures == 1 {
            self.summary.reconnects += 1;
        }
        match self.output.format {
            Format::Table | Format::Wide | Format::Name | Format::Folded | Format::Csv => {
                self.write()?;
                if interruption.failures == 1 {
                    self.note(&format!("{}; connecting again", text::why(interruption)));
                }
                Ok(())
            }
            _ => self.object(&InterruptionView::new(interruption)),
        }
    }

    /// Prints a note, unless notes are switched off.
    pub(crate) fn note(&mut self, message: &str) {
        if !self.quiet {
            self.output.note(message);
        }
    }

    fn object(&mut self, view: &impl serde::Serialize) -> io::Result<()> {
        if self.output.format == Format::Yaml {
            return self.yaml(view);
        }
        serde_json::to_writer(&mut self.buffer, view)?;
        self.buffer.push(b'\n');
        Ok(())
    }

    fn yaml(&mut self, view: &impl serde::Serialize) -> io::Result<()> {
        self.output.raw(b"---\n")?;
        self.output.yaml(view)
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
        if !self.quiet {
            let text = format!("{}\n", self.summary);
            self.output.message(&text);
        }
    }
}

#[cfg(test)]
mod tests;
