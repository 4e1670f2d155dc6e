//! Events as they come.
//!
//! Owns one buffer that all rows are written into: a row costs no allocation.

mod json;
mod summary;
mod text;

pub(crate) use text::TimeForm;

use std::io::{self, IsTerminal as _};

use kprobed_client::event::{Loss, Row};

use self::json::{EventView, LossView};
use self::summary::Summary;
use self::text::TextForm;
use super::Output;
use crate::cli::Format;

/// Prints a stream of events, and keeps count.
pub(crate) struct EventPrinter<'o> {
    output: &'o mut Output,
    text: TextForm,
    line: String,
    header: bool,
    is_terminal: bool,
    summary: Summary,
}

impl<'o> EventPrinter<'o> {
    pub(crate) fn new(output: &'o mut Output, time: TimeForm, wide: bool, header: bool) -> Self {
        let text = TextForm::new(time, wide, output.style);
        Self {
            output,
            text,
            line: String::new(),
            header,
            is_terminal: io::stdout().is_terminal(),
            summary: Summary::default(),
        }
    }

    /// Whether people watch.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Number of events that were printed.
    pub(crate) fn shown(&self) -> u64 {
        self.summary.shown
    }

    /// Counts events that arrived.
    pub(crate) fn delivered(&mut self, events: usize) {
        self.summary.delivered += events as u64;
    }

    /// The stream has begun: prints the headings.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        match self.output.format {
            Format::Table | Format::Wide if self.header => self.output.line(self.text.header()),
            _ => Ok(()),
        }
    }

    /// Prints an event.
    pub(crate) fn row(&mut self, row: &Row<'_>) -> io::Result<()> {
        match self.output.format {
            Format::Table | Format::Wide => {
                self.line.clear();
                self.text.push_row(&mut self.line, row);
                self.output.raw(self.line.as_bytes())?;
            }
            Format::Json => self.json(&EventView(row))?,
            Format::Yaml => self.yaml(&EventView(row))?,
        }
        self.summary.shown += 1;
        Ok(())
    }

    /// Prints a gap: among the objects for programs, and on stderr for people.
    pub(crate) fn loss(&mut self, loss: &Loss) -> io::Result<()> {
        self.summary.lose(loss);
        match self.output.format {
            Format::Table | Format::Wide => {
                let text = format!("{} {}\n", self.output.error_style.warning("lost:"), self.text.loss(loss));
                self.output.message(&text);
                Ok(())
            }
            Format::Json => self.json(&LossView::new(loss)),
            Format::Yaml => self.yaml(&LossView::new(loss)),
        }
    }

    fn json(&mut self, view: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.output.stdout, view)?;
        self.output.raw(b"\n")
    }

    fn yaml(&mut self, view: &impl serde::Serialize) -> io::Result<()> {
        self.output.raw(b"---\n")?;
        self.output.yaml(view)
    }

    /// Lets go of everything that was printed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Prints what became of all events, on stderr.
    pub(crate) fn summary(&mut self) {
        let text = format!("{}\n", self.summary);
        self.output.message(&text);
    }
}

#[cfg(test)]
mod tests;
