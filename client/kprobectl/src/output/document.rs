//! Documents of probes: YAML, problems with their place, results of `apply`, and diffs.

use std::io;

use kprobed_client::api::{DeclarationProblem, Probe};
use kprobed_document::{Problem, document_of};
use serde::Serialize;
use similar::TextDiff;

use super::Output;
use super::data::one_line;
use super::style::Tone;
use crate::global::Format;

/// Result for the probe of a document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AppliedProbe {
    /// Its name.
    pub(crate) name: String,
    /// `created`, `configured`, `unchanged`, `deleted` or `failed`.
    pub(crate) action: &'static str,
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

/// The same, as JSON and YAML.
#[derive(Serialize)]
struct DifferenceView<'a> {
    name: &'a str,
    action: &'static str,
    file: &'a str,
    diff: String,
}

impl<'a> DifferenceView<'a> {
    fn new(found: &'a ProbeDifference) -> Self {
        Self { name: &found.name, action: found.action, file: &found.file, diff: found.unified() }
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
    /// Prints the documents of probes, if that is what is requested, and says whether it did.
    pub(super) fn documents(&mut self, probes: &[Probe]) -> io::Result<bool> {
        if self.format != Format::Yaml {
            return Ok(false);
        }
        let documents: Vec<_> = probes.iter().map(document_of).collect();
        let text = kprobed_document::write(&documents).map_err(io::Error::other)?;
        self.text(&text)?;
        Ok(true)
    }

    /// Prints what is wrong with a file of documents.
    pub(crate) fn document_problem(&mut self, file: &str, problem: &Problem) {
        let head = format!("{file}:{}: {}", problem.place, one_line(&problem.message));
        let mut text = format!("{} {head}\n", self.error_style.error("error:"));
        let shown = problem.shown();
        if !shown.is_empty() {
            text.push_str(&shown);
            text.push('\n');
        }
        let hint = (!problem.hint.is_empty()).then(|| problem.hint.clone());
        self.push_hints(&mut text, hint.as_slice());
        self.message(&text);
    }

    /// Says which document or line the next message is about; nothing for none.
    pub(crate) fn document_place(&mut self, place: &str) {
        if !place.is_empty() {
            self.message(&format!("{place}:\n"));
        }
    }

    /// Prints the results for the probes of documents.
    pub(crate) fn applied(&mut self, applied: &[AppliedProbe]) -> io::Result<()> {
        if self.structured(&applied)? {
            return Ok(());
        }
        applied.iter().try_for_each(|one| self.line(&format!("{} {}", one.name, one.action)))
    }

    /// Prints in what probes differ from their documents.
    pub(crate) fn differences(&mut self, found: &[ProbeDifference]) -> io::Result<()> {
        if self.structured(&found.iter().map(DifferenceView::new).collect::<Vec<_>>())? {
            return Ok(());
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
                self.note(&format!("hint: {hint}"));
            }
        }
    }
}
