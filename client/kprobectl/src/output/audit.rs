//! Entries of the audit log, and the outcome of its verification.

use std::fmt::Write as _;
use std::io;

use kprobed_audit::{Broken, Head};
use kprobed_client::api::{AuditAction, AuditEntry};
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::data::one_line;
use super::style::Tone;
use super::time::rfc3339;

/// The outcome of a verification.
#[derive(Debug)]
pub(crate) struct Verified {
    /// How many entries there are.
    pub(crate) entries: u64,
    /// The entry before the first of them.
    pub(crate) after: Head,
    /// The last one that is as it was written.
    pub(crate) head: Head,
    /// Why that is the last one.
    pub(crate) broken: Option<Broken>,
    /// A head that was noted, if the log does not reach it or no longer does.
    pub(crate) missing: Option<Head>,
}

/// The outcome, as JSON and YAML.
#[derive(Serialize)]
struct VerifiedView {
    holds: bool,
    entries: String,
    first_entry: String,
    head: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The method, and what it changed if that is not in its name.
fn call(entry: &AuditEntry) -> String {
    match (entry.method.as_str(), entry.change.as_str()) {
        ("", "") => "-".to_owned(),
        (method, "") => one_line(method),
        (method, change) if method.to_lowercase().starts_with(change) => one_line(method),
        (method, change) => format!("{}:{}", one_line(method), one_line(change)),
    }
}

impl Output {
    /// Prints an entry on a line.
    pub(crate) fn audit_entry(&mut self, entry: &AuditEntry) -> io::Result<()> {
        if self.structured_stream(&Json::full(entry))? {
            return Ok(());
        }
        let (action, tone) = match entry.action() {
            AuditAction::Changed => ("changed", Tone::Good),
            AuditAction::Failed => ("failed", Tone::Doubtful),
            AuditAction::Refused => ("refused", Tone::Bad),
            AuditAction::Read => ("read", Tone::Plain),
            AuditAction::Ended => ("ended", Tone::Plain),
            AuditAction::Rotated => ("rotated", Tone::Faint),
            AuditAction::Unspecified => ("unknown", Tone::Plain),
        };
        let time = rfc3339(entry.time.as_ref()).unwrap_or_else(|| "-".to_owned());
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { one_line(text) };
        let mut line = format!(
            "{time}  {}  {}  {}  {}  {}",
            entry.sequence,
            self.style.paint(tone, &format!("{action:<7}")),
            one_line(&entry.principal),
            call(entry),
            or_dash(&entry.probe),
        );
        if entry.times > 1 {
            _ = write!(line, "  ({} times)", entry.times);
        }
        if entry.enabled == Some(false) {
            line.push_str("  (disabled)");
        }
        if !entry.reason.is_empty() {
            line.push_str("  ");
            line.push_str(&one_line(&entry.reason));
        }
        if self.is_wide() {
            for (name, text) in [
                ("rule", &entry.rule),
                ("request", &entry.request_id),
                ("operation", &entry.operation),
                ("definition", &entry.definition),
                ("filter", &entry.filter),
            ] {
                if !text.is_empty() {
                    _ = write!(line, "  {name}: {}", one_line(text));
                }
            }
        }
        self.line(&line)
    }

    /// Prints whether the log is as it was written.
    pub(crate) fn audit_verified(&mut self, verified: &Verified) -> io::Result<()> {
        let Verified { entries, after, head, broken, missing } = verified;
        let missing = missing.as_ref().map(|noted| {
            if noted.sequence <= after.sequence {
                format!("entry {} was deleted to keep the log within its limit: compare with a later head", noted.sequence)
            } else {
                format!(
                    "the log ends with entry {}, and entry {} was noted: its end was cut off, or the log was begun anew",
                    head.sequence, noted.sequence
                )
            }
        });
        let problem = broken.as_ref().map(ToString::to_string).or(missing);
        let view = VerifiedView {
            holds: problem.is_none(),
            entries: entries.to_string(),
            first_entry: (after.sequence + 1).to_string(),
            head: head.to_string(),
            problem,
        };
        if self.structured(&view)? {
            return Ok(());
        }
        match view.problem {
            Some(problem) => {
                self.error(&problem, &[]);
                self.line(&format!("verified: {entries} entries, up to {head}"))
            }
            None => self.line(&format!("all {entries} entries are as they were written; the head is {head}")),
        }
    }
}
