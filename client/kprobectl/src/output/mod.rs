//! Output of all commands.
//!
//! Owns stdout and stderr, and the forms of output. What the API says is printed for programs as
//! the API's own JSON ([`kprobed_document::json`]); the structures here that are serialised are
//! what this command adds to it: sums, and what several messages say together. Data goes to stdout;
//! errors, warnings and notes go to stderr. No other module prints.

mod access;
mod aggregation;
mod attached;
mod audit;
mod check;
mod code;
mod config;
mod contrast;
mod cost;
mod csv;
mod data;
mod describe;
mod diagnostic;
mod document;
mod event;
mod fleet;
mod foreign;
mod hits;
mod host;
mod lease;
mod ledger;
mod meaning;
mod past;
mod probe;
mod rates;
mod reconciled;
mod rollout;
mod status;
mod style;
mod table;
mod terminal;
mod time;
mod watch;
mod width;

pub(crate) use access::Answer;
#[cfg(test)]
pub(crate) use aggregation::key_notation;
pub(crate) use aggregation::{CountOrder, CountPrinter, CountView, LATENCY_COLUMN, LatencyUnit};
pub(crate) use audit::Verified;
pub(crate) use contrast::{Contrast, Judged};
pub(crate) use document::{AppliedProbe, ProbeDifference};
pub(crate) use event::{EventPrinter, EventStyle, TimeForm};
pub(crate) use fleet::{HostRecord, Said};
pub(crate) use past::ProbePast;
pub(crate) use rates::Chart;
pub(crate) use status::Status;
pub(crate) use time::to_proto_time;

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write};
use std::path::Path;

use kprobed_client::RpcError;
use kprobed_client::api::PlannedStep;
use serde::Serialize;

use self::style::Style;
use self::table::Table;
use crate::global::{ColorChoice, Format};

/// Large enough for a batch of events, so that a busy stream costs few system calls.
const BUFFER_BYTES: usize = 256 << 10;

/// The two ways out of the process.
pub(crate) struct Output {
    format: Format,
    stdout: BufWriter<Way>,
    /// Where messages go instead of stderr, if they are kept.
    messages: Option<String>,
    /// What is kept of verdicts, to compare hosts.
    judged: Vec<Judged>,
    style: Style,
    error_style: Style,
}

/// Where data goes.
enum Way {
    Process(Stdout),
    Kept(Vec<u8>),
}

impl Write for Way {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Process(stdout) => stdout.write(bytes),
            Self::Kept(kept) => kept.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Process(stdout) => stdout.flush(),
            Self::Kept(_) => Ok(()),
        }
    }
}

impl Output {
    pub(crate) fn new(format: Format, color: ColorChoice) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let style = |is_terminal| {
            Style::new(match color {
                ColorChoice::Always => true,
                ColorChoice::Never => false,
                ColorChoice::Auto => is_terminal && !no_color,
            })
        };
        Self {
            format,
            stdout: BufWriter::with_capacity(BUFFER_BYTES, Way::Process(io::stdout())),
            messages: None,
            judged: Vec::new(),
            style: style(io::stdout().is_terminal()),
            error_style: style(io::stderr().is_terminal()),
        }
    }

    /// An output that keeps what is printed to it, in the same form.
    pub(crate) fn keeping(&self) -> Self {
        Self {
            format: self.format,
            stdout: BufWriter::new(Way::Kept(Vec::new())),
            messages: Some(String::new()),
            judged: Vec::new(),
            style: self.style,
            error_style: self.error_style,
        }
    }

    /// Whether what is printed is kept, because several hosts are asked.
    pub(crate) fn is_keeping(&self) -> bool {
        self.messages.is_some()
    }

    /// Takes what was kept of verdicts.
    pub(crate) fn take_judged(&mut self) -> Vec<Judged> {
        std::mem::take(&mut self.judged)
    }

    /// What was kept: data and messages.
    pub(crate) fn into_kept(self) -> (String, String) {
        let data = match self.stdout.into_inner() {
            Ok(Way::Kept(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(Way::Process(_)) | Err(_) => String::new(),
        };
        (data, self.messages.unwrap_or_default())
    }

    /// Writes out everything that was printed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// Prints bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)
    }

    /// Prints what is asked for in a form for programs, and says whether it did.
    fn structured(&mut self, value: &impl Serialize) -> io::Result<bool> {
        match self.format {
            Format::Table | Format::Wide | Format::Folded | Format::Csv => return Ok(false),
            Format::Json => {
                serde_json::to_writer_pretty(&mut self.stdout, value)?;
                self.stdout.write_all(b"\n")?;
            }
            Format::Yaml => self.yaml(value)?,
        }
        Ok(true)
    }

    /// The same for one of many values: one line or one document each.
    fn structured_stream(&mut self, value: &impl Serialize) -> io::Result<bool> {
        match self.format {
            Format::Table | Format::Wide | Format::Folded | Format::Csv => return Ok(false),
            Format::Json => {
                serde_json::to_writer(&mut self.stdout, value)?;
                self.stdout.write_all(b"\n")?;
            }
            Format::Yaml => {
                self.raw(b"---\n")?;
                self.yaml(value)?;
            }
        }
        Ok(true)
    }

    /// By way of a text: the writer of the library hides which I/O error it met, and a closed pipe
    /// is none for us.
    fn yaml(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_yaml_ng::to_string(value).map_err(io::Error::other)?;
        self.raw(text.as_bytes())
    }

    pub(crate) fn is_structured(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    fn table(&mut self, table: &Table) -> io::Result<()> {
        self.text(&table.render(self.style))
    }

    /// Text for people.
    fn text(&mut self, text: &str) -> io::Result<()> {
        self.raw(terminal::safe(text).as_bytes())
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(text)?;
        self.raw(b"\n")
    }

    /// Prints the name of a file that was written.
    pub(crate) fn path(&mut self, path: &Path) -> io::Result<()> {
        self.line(&path.display().to_string())
    }

    /// Prints an error and what can be done about it.
    pub(crate) fn error(&mut self, message: &str, hints: &[String]) {
        let mut text = format!("{} {message}\n", self.error_style.error("error:"));
        self.push_hints(&mut text, hints);
        self.message(&text);
    }

    /// Prints a refusal of the daemon, with the spans that it is about.
    pub(crate) fn refusal(&mut self, refusal: &RpcError, hints: &[String]) {
        let mut text = diagnostic::refusal(refusal, self.error_style);
        self.push_hints(&mut text, hints);
        self.message(&text);
    }

    /// Prints a remark that is neither data nor an error.
    pub(crate) fn note(&mut self, message: &str) {
        let text = format!("{} {message}\n", self.error_style.note("note:"));
        self.message(&text);
    }

    /// Prints why a table has no rows. Programs see an empty list.
    pub(crate) fn empty(&mut self, message: &str) {
        if !self.is_structured() {
            self.note(message);
        }
    }

    fn push_hints(&self, text: &mut String, hints: &[String]) {
        for hint in hints {
            writeln!(text, "{} {hint}", self.error_style.hint("hint:")).ok();
        }
    }

    /// Shows what would be done: commands for a shell in the tracing directory.
    pub(crate) fn plan(&mut self, steps: &[PlannedStep]) {
        if !steps.is_empty() {
            self.note("this would be done, in the tracing directory:");
            let mut commands = String::new();
            for step in steps {
                writeln!(commands, "  {}", step.command).ok();
            }
            self.message(&commands);
        }
    }

    /// Writes to stderr, after all data that was printed before. A failure to write there cannot be
    /// reported.
    fn message(&mut self, text: &str) {
        let text = &*terminal::safe(text);
        if let Some(kept) = &mut self.messages {
            kept.push_str(text);
            return;
        }
        self.flush().ok();
        io::stderr().write_all(text.as_bytes()).ok();
    }
}
