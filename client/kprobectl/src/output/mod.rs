//! Output of all commands.
//!
//! Owns stdout and stderr, and the forms of output. What the API says is printed for programs as
//! the API's own JSON ([`kprobed_document::json`]), a list by the columns of its rows ([`Row`]); the
//! structures here that are serialised are what this command adds: sums, and what several messages say
//! together. Data goes to stdout; errors, warnings and notes go to stderr. No other module writes to them.

mod aggregation;
mod check;
mod contrast;
mod cost;
mod data;
mod diagnostic;
mod document;
mod event;
mod fleet;
mod image;
mod ledger;
mod meaning;
mod page;
mod probe;
mod rates;
mod rollout;
mod rows;
mod table;
mod terminal;

#[cfg(test)]
pub(crate) use aggregation::key_notation;
pub(crate) use aggregation::{CountOrder, CountPrinter, CountView, LATENCY_COLUMN, LatencyUnit, context_key};
pub(crate) use contrast::{Contrast, Judged};
pub(crate) use cost::{ProbeCost, hits_of_others, own_hits};
pub(crate) use data::{arming, check_status, counted, covers, hex, instant, moment, one_line, to_proto_time};
pub(crate) use document::{AppliedProbe, ProbeDifference};
pub(crate) use event::{EventPrinter, EventStyle, Recorded, SkippedRuns, TimeForm};
pub(crate) use fleet::HostRecord;
pub(crate) use image::{ImageVerdict, JunitReport, PlacedDefinition};
pub(crate) use ledger::{exporter_state, is_unexplained, ledger_closes};
pub(crate) use page::ProbePast;
pub(crate) use probe::{can_be_hit, kind_name, labels_text, lease, state_name, state_of, waits_for_module};
pub(crate) use rates::{Chart, Interval, totals};
pub(crate) use rows::{Column, MessageRow, Row};
pub(crate) use table::{Cell, Table};
pub(crate) use terminal::Tone;

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal as _, Stdout, Write as _};
use std::path::Path;

use kprobed_client::RpcError;
use kprobed_client::api::PlannedStep;
use kprobed_document::json::json;
use prost::Name;
use serde::Serialize;
use serde_json::Value;
use tonic::Code;

use crate::progress::Progress;

use self::table::Page;
use self::terminal::Style;
use crate::global::{ColorChoice, Format, Global};

/// Large enough for a batch of events, so that a busy stream costs few system calls.
const BUFFER_BYTES: usize = 256 << 10;

/// The two ways out of the process.
pub(crate) struct Output {
    format: Format,
    has_headings: bool,
    /// Whether progress is shown, on a terminal.
    has_progress: bool,
    stdout: BufWriter<Stdout>,
    /// What is kept instead of printed, because several hosts are asked.
    kept: Option<HostOutput>,
    /// What is kept of verdicts, to compare hosts.
    judged: Vec<Judged>,
    style: Style,
    error_style: Style,
}

/// What a command prints for one of several hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostOutput {
    /// Data as text.
    pub(crate) data: String,
    /// Data as JSON and YAML.
    pub(crate) answer: Value,
    pub(crate) messages: String,
}

impl HostOutput {
    /// Messages, and no data.
    pub(crate) fn messages(messages: String) -> Self {
        Self { messages, ..Self::default() }
    }
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let (format, color) = (global.output, global.color);
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
            has_headings: !global.no_headers,
            has_progress: io::stderr().is_terminal(),
            stdout: BufWriter::with_capacity(BUFFER_BYTES, io::stdout()),
            kept: None,
            judged: Vec::new(),
            style: style(io::stdout().is_terminal()),
            error_style: style(io::stderr().is_terminal()),
        }
    }

    /// An output that keeps what is printed to it, in the same form.
    pub(crate) fn keeping(&self) -> Self {
        Self {
            format: self.format,
            has_headings: self.has_headings,
            has_progress: false,
            stdout: BufWriter::with_capacity(0, io::stdout()),
            kept: Some(HostOutput::default()),
            judged: Vec::new(),
            style: self.style,
            error_style: self.error_style,
        }
    }

    /// Whether what is printed is kept, because several hosts are asked.
    pub(crate) fn is_keeping(&self) -> bool {
        self.kept.is_some()
    }

    /// Takes what was kept of verdicts.
    pub(crate) fn take_judged(&mut self) -> Vec<Judged> {
        std::mem::take(&mut self.judged)
    }

    /// What was kept.
    pub(crate) fn into_kept(self) -> HostOutput {
        self.kept.unwrap_or_default()
    }

    /// Writes out everything that was printed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.is_keeping() { Ok(()) } else { self.stdout.flush() }
    }

    /// Prints bytes as they are: no character is in two parts.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.kept {
            Some(kept) => kept.data.push_str(&String::from_utf8_lossy(bytes)),
            None => self.stdout.write_all(bytes)?,
        }
        Ok(())
    }

    /// Prints what is asked for in a form for programs, and says whether it did.
    pub(crate) fn structured(&mut self, value: &impl Serialize) -> io::Result<bool> {
        self.for_programs(value, false)
    }

    /// The same for one of many values: one line or one document each.
    pub(crate) fn structured_stream(&mut self, value: &impl Serialize) -> io::Result<bool> {
        self.for_programs(value, true)
    }

    fn for_programs(&mut self, value: &impl Serialize, is_item: bool) -> io::Result<bool> {
        match self.format {
            Format::Table | Format::Wide | Format::Name | Format::Csv => return Ok(false),
            _ if self.is_keeping() => self.keep(value, is_item)?,
            Format::Json if is_item => {
                serde_json::to_writer(&mut self.stdout, value)?;
                self.raw(b"\n")?;
            }
            Format::Json => {
                serde_json::to_writer_pretty(&mut self.stdout, value)?;
                self.raw(b"\n")?;
            }
            Format::Yaml => {
                if is_item {
                    self.raw(b"---\n")?;
                }
                self.yaml(value)?;
            }
        }
        Ok(true)
    }

    /// Prints a message of the API for programs, if that is asked for, and says whether it did.
    pub(crate) fn message_structured(&mut self, message: &impl Name) -> io::Result<bool> {
        Ok(self.is_structured() && self.structured(&json(message)?)?)
    }

    /// Keeps a list as one, even if nothing is in it.
    fn begin_list(&mut self) {
        if let Some(HostOutput { answer: answer @ Value::Null, .. }) = &mut self.kept {
            *answer = Value::Array(Vec::new());
        }
    }

    /// Keeps a value for programs: one, or one of a list.
    fn keep(&mut self, value: &impl Serialize, is_item: bool) -> io::Result<()> {
        let value = serde_json::to_value(value)?;
        if let Some(HostOutput { answer, .. }) = &mut self.kept {
            match answer {
                Value::Array(items) if is_item => items.push(value),
                answer if is_item => *answer = Value::Array(vec![value]),
                answer => *answer = value,
            }
        }
        Ok(())
    }

    /// By way of a text: the writer of the library hides which I/O error it met, and a closed pipe
    /// is none for us.
    pub(crate) fn yaml(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = kprobed_document::yaml(value).map_err(io::Error::other)?;
        self.raw(text.as_bytes())
    }

    pub(crate) fn is_structured(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// What a table is printed on.
    fn page(&self) -> Page {
        let room = if self.is_wide() { None } else { terminal::known_columns() };
        Page { style: self.style, room, has_headings: self.has_headings, is_whole: self.is_wide() }
    }

    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        self.table_part(table, true)
    }

    fn table_part(&mut self, table: &Table, is_first: bool) -> io::Result<()> {
        let page = self.page();
        let page = Page { has_headings: page.has_headings && is_first, ..page };
        let (text, left_out) = table.render(page);
        self.text(&text)?;
        if is_first && !left_out.is_empty() {
            self.note(&format!("no room for {}: `-o wide` shows all columns", left_out.join(", ")));
        }
        Ok(())
    }

    /// Prints names and values below each other.
    pub(crate) fn properties(&mut self, properties: &[(&str, String)]) -> io::Result<()> {
        let text = table::properties(self.style, properties);
        self.text(&text)
    }

    /// The text with a colour, if stdout has colours.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        self.style.paint(tone, text)
    }

    /// Shows no progress, for a command without notes.
    pub(crate) fn without_progress(&mut self) {
        self.has_progress = false;
    }

    /// Begins to show how much of a whole is done. Needs a runtime.
    pub(crate) fn progress(&self, what: &'static str, whole: usize) -> Progress {
        if self.has_progress { Progress::shown(what, whole) } else { Progress::hidden() }
    }

    /// Text for people.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.raw(terminal::safe(text).as_bytes())
    }

    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(text)?;
        self.raw(b"\n")
    }

    /// Prints the name of a file that was written.
    pub(crate) fn path(&mut self, path: &Path) -> io::Result<()> {
        let path = path.display().to_string();
        if self.structured(&serde_json::json!({ "path": path }))? { Ok(()) } else { self.line(&path) }
    }

    /// Prints a failure and what can be done about it: with `-o json` one object, else text, with the spans that a
    /// refusal of the daemon is about.
    pub(crate) fn failure(&mut self, exit: u8, message: &str, hints: &[String], refusal: Option<&RpcError>) {
        if self.format == Format::Json && !self.is_keeping() {
            let findings = refusal.and_then(|refusal| refusal.diagnostics.as_ref());
            let findings =
                findings.into_iter().flat_map(|found| &found.diagnostics).map(|finding| &finding.hint);
            let text = serde_json::json!({
                "exit": exit,
                "code": refusal.map(|refusal| code_name(refusal.code)),
                "reason": refusal.map(|refusal| &refusal.reason).filter(|reason| !reason.is_empty()),
                "message": message,
                "hints": findings.filter(|hint| !hint.is_empty()).chain(hints).collect::<Vec<_>>(),
            });
            return self.message(&format!("{text}\n"));
        }
        let mut text = match refusal {
            Some(refusal) => diagnostic::refusal(refusal, self.error_style),
            None => format!("{} {message}\n", self.error_style.error("error:")),
        };
        self.push_hints(&mut text, hints);
        self.message(&text);
    }

    /// Prints a remark that is neither data nor an error.
    pub(crate) fn note(&mut self, message: &str) {
        let text = format!("{} {message}\n", self.error_style.note("note:"));
        self.message(&text);
    }

    /// Prints what a user can do about a remark.
    pub(crate) fn hint(&mut self, hint: &str) {
        let text = format!("{} {hint}\n", self.error_style.hint("hint:"));
        self.message(&text);
    }

    /// Prints a remark on what is printed, which JSON and YAML say themselves.
    pub(crate) fn remark(&mut self, message: &str) {
        if !self.is_structured() {
            self.note(message);
        }
    }

    fn push_hints(&self, text: &mut String, hints: &[String]) {
        for hint in hints {
            writeln!(text, "{} {hint}", self.error_style.hint("hint:")).ok();
        }
    }

    /// Shows what a dry run would have done: commands for a shell in the tracing directory.
    pub(crate) fn planned(&mut self, steps: &[PlannedStep]) {
        if !steps.is_empty() {
            self.note("this would be done, in the tracing directory:");
            for step in steps {
                self.message(&format!("  {}\n", step.command));
            }
        }
        self.note("nothing was changed");
    }

    /// Writes to stderr, after all data that was printed before. A failure to write there cannot be
    /// reported.
    fn message(&mut self, text: &str) {
        let text = &*terminal::safe(text);
        if let Some(kept) = &mut self.kept {
            kept.messages.push_str(text);
            return;
        }
        self.flush().ok();
        io::stderr().write_all(text.as_bytes()).ok();
    }
}

/// The name of a status code in the API, such as `NOT_FOUND`.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for character in format!("{code:?}").chars() {
        if character.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(character.to_uppercase());
    }
    name
}
