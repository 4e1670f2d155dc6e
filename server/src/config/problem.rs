//! A problem of the configuration: setting, message, hint, line and column.

use std::fmt;
use std::path::Path;

use kprobed_rights::RoleProblem;
use thiserror::Error;

/// Where in the file. Both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// Whether the daemon can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The daemon cannot start.
    Error,
    /// The daemon can start, and a setting will probably not do what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Problem {
    /// Whether it keeps the daemon from starting.
    pub severity: Severity,
    /// The setting, with its section: `tracing.buffer_kib`.
    pub setting: String,
    /// What is wrong with it and why. Names the setting, and its value if it has one.
    pub message: String,
    /// What to write instead.
    pub hint: String,
    /// Where it is in the file. Absent for a default.
    pub place: Option<Place>,
}

impl Problem {
    /// A value that a setting cannot have.
    pub(super) fn value(
        setting: &str,
        value: impl fmt::Display,
        why: impl fmt::Display,
        hint: impl Into<String>,
    ) -> Self {
        Self::error(setting, format!("`{setting}` cannot be `{value}`: {why}"), hint)
    }

    /// Something that is wrong with more than one value.
    pub(super) fn error(setting: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { severity: Severity::Error, ..Self::warning(setting, message, hint) }
    }

    /// Something that the daemon can live with.
    pub(super) fn warning(setting: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (setting, message, hint) = (setting.to_owned(), message.into(), hint.into());
        Self { severity: Severity::Warning, setting, message, hint, place: None }
    }
}

impl From<RoleProblem> for Problem {
    fn from(RoleProblem { line, column, message, hint }: RoleProblem) -> Self {
        Self { place: Some(Place { line, column }), ..Self::error("role", message, hint) }
    }
}

/// All problems as lines: the place, what is wrong, and below it what to do.
pub fn list(path: Option<&Path>, problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| {
        let kind = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let place = match (path, problem.place) {
            (Some(path), Some(Place { line, column })) => format!("{}:{line}:{column}: ", path.display()),
            (Some(path), None) => format!("{}: ", path.display()),
            (None, _) => "without a configuration file: ".to_owned(),
        };
        let hint = if problem.hint.is_empty() { String::new() } else { format!("\nhint: {}", problem.hint) };
        format!("{kind}: {place}{}{hint}", problem.message)
    });
    lines.collect::<Vec<_>>().join("\n")
}
