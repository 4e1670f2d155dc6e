//! Documents of probes: problems with their place, results of `apply`, and diffs.

use std::io;

use kprobed_client::api::DeclarationProblem;
use serde_json::{Value, json};
use similar::TextDiff;

use super::data::one_line;
use super::terminal::Tone;
use super::{Cell, Column, Output, Row};
use crate::global::Format;

/// Result for the probe of a document.
#[derive(Clone, Debug)]
pub(crate) struct AppliedProbe {
    /// Its name.
    pub(crate) name: String,
    /// `created`, `configured`, `unchanged`, `deleted` or `failed`.
    pub(crate) action: &'static str,
}

impl Row for AppliedProbe {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |probe| Cell::text(&probe.name)),
        Column::new("ACTION", |probe| Cell::text(probe.action)),
    ];

    fn json(&self) -> io::Result<Value> {
        Ok(json!({ "name": self.name, "action": self.action }))
    }
}

/// How a probe differs from its document.
#[derive(Clone, Debug)]
pub(crate) struct ProbeDifference {
    pub(crate) name: String,
    /// `created`, `configured` or `deleted`.
    pub(crate) action: &'static str,
    /// The file of its document; empty for one without.
    pub(crate) file: String,
    /// Documents; empty for no probe.
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Row for ProbeDifference {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |probe| Cell::text(&probe.name)),
        Column::new("ACTION", |probe| Cell::text(probe.action)),
        Column::new("FILE", |probe| Cell::text(&probe.file)),
    ];

    fn json(&self) -> io::Result<Value> {
        let Self { name, action, file, .. } = self;
        Ok(json!({ "name": name, "action": action, "file": file, "diff": self.unified() }))
    }
}

impl ProbeDifference {
    fn unified(&self) -> String {
        let after = if self.file.is_empty() { "nothing" } else { self.file.as_str() };
        let before =
            if self.before.is_empty() { "nothing".to_owned() } else { format!("live/{}", self.name) };
        TextDiff::from_lines(&self.before, &self.after).unified_diff().header(&before, after).to_string()
    }
}

impl Output {
    /// Says which document or line the next message is about; nothing for none.
    pub(crate) fn document_place(&mut self, place: &str) {
        if !place.is_empty() {
            self.message(&format!("{place}:\n"));
        }
    }

    /// Prints in what probes differ from their documents.
    pub(crate) fn differences(&mut self, found: &[ProbeDifference]) -> io::Result<()> {
        if !matches!(self.format, Format::Table | Format::Wide) {
            return self.rows(found);
        }
        for one in found {
            for line in one.unified().lines() {
                let tone = match line.as_bytes().first() {
                    Some(b'+') => Tone::Good,
                    Some(b'-') => Tone::Bad,
                    _ => Tone::Plain,
                };
                let line = self.style.paint(tone, line);
                self.line(&line)?;
            }
        }
        Ok(())
    }

    /// Notes what is not as the daemon's files say.
    pub(crate) fn declaration_problems(&mut self, problems: &[DeclarationProblem]) {
        for DeclarationProblem { file, line, column, message, hint, .. } in problems {
            let place = match (file.as_str(), line) {
                ("", _) => String::new(),
                (file, 0) => format!("{file}: "),
                (file, line) => format!("{file}:{line}:{column}: "),
            };
            self.note(&format!("{}{}", one_line(&place), one_line(message)));
            if !hint.is_empty() {
                self.hint(hint);
            }
        }
    }
}
