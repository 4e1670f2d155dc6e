//! Answers of many hosts: one record each as JSON and YAML, equal answers once as text, and the
//! ledger.

use std::io;

use kprobed_client::fleet::{HostLedger, Outcome, names};
use serde::Serialize;
use serde_json::Value;

use super::style::Tone;
use super::{Contrast, Output};

/// What a command printed on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) data: String,
    pub(crate) messages: String,
}

/// One host, and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct HostRecord {
    pub(crate) host: String,
    pub(crate) outcome: Outcome,
    /// Release of its kernel; empty if it is not known.
    pub(crate) kernel: String,
    pub(crate) said: Said,
}

/// The same, as JSON and YAML.
#[derive(Serialize)]
struct HostView<'a> {
    host: &'a str,
    outcome: &'static str,
    kernel: Option<&'a str>,
    /// What the command prints for one daemon; a list if that is several values, null if there is
    /// no answer.
    answer: Value,
    /// Notes and errors, as one daemon's command prints them.
    messages: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct LedgerView {
    ledger: TermsView,
}

/// targeted = the six others, if it closes.
#[derive(Serialize)]
struct TermsView {
    targeted: u64,
    answered: u64,
    refused: u64,
    failed: u64,
    timed_out: u64,
    unreachable: u64,
    not_tried: u64,
    closes: bool,
}

impl LedgerView {
    pub(super) fn new(ledger: &HostLedger) -> Self {
        let ledger = TermsView {
            targeted: ledger.targeted(),
            answered: ledger.count(Outcome::Answered),
            refused: ledger.count(Outcome::Refused),
            failed: ledger.count(Outcome::Failed),
            timed_out: ledger.count(Outcome::TimedOut),
            unreachable: ledger.count(Outcome::Unreachable),
            not_tried: ledger.count(Outcome::NotTried),
            closes: ledger.closes(),
        };
        Self { ledger }
    }
}

fn known(text: &str) -> Option<&str> {
    (!text.trim().is_empty()).then(|| text.trim_end())
}

impl Output {
    /// Prints what one host said, for programs. People get the whole at the end.
    pub(crate) fn host_record(&mut self, record: &HostRecord) -> io::Result<()> {
        if !self.is_structured() {
            return Ok(());
        }
        self.structured_stream(&HostView {
            host: &record.host,
            outcome: record.outcome.name(),
            kernel: known(&record.kernel),
            answer: self.answer(&record.said.data)?,
            messages: known(&record.said.messages),
        })?;
        self.flush()
    }

    /// Reads back what a command printed in a form for programs.
    fn answer(&self, data: &str) -> io::Result<Value> {
        let mut values = if self.format == crate::global::Format::Json {
            serde_json::Deserializer::from_str(data)
                .into_iter()
                .collect::<Result<Vec<Value>, _>>()
                .map_err(io::Error::other)?
        } else if data.trim().is_empty() {
            Vec::new()
        } else {
            serde_yaml_ng::Deserializer::from_str(data)
                .map(serde::Deserialize::deserialize)
                .collect::<Result<Vec<Value>, _>>()
                .map_err(io::Error::other)?
        };
        // A stream of YAML begins with a mark, before which there is nothing.
        values.retain(|value| !value.is_null());
        Ok(match values.len() {
            0 => Value::Null,
            1 => values.swap_remove(0),
            _ => Value::Array(values),
        })
    }

    /// Prints the ledger, and as text equal answers once.
    pub(crate) fn hosts(
        &mut self,
        records: &[HostRecord],
        contrasts: &[Contrast],
        ledger: &HostLedger,
    ) -> io::Result<()> {
        self.contrast_records(contrasts)?;
        if self.structured_stream(&LedgerView::new(ledger))? {
            return self.flush();
        }
        for (outcome, kernel, said, hosts) in folded(records) {
            let head = head(kernel, &hosts);
            if outcome == Outcome::Answered {
                let head = self.style.paint(Tone::Strong, &format!("{head}:"));
                self.line(&head)?;
                self.raw(said.data.as_bytes())?;
                if !said.messages.is_empty() {
                    self.message(&said.messages);
                }
            } else {
                let what = self.error_style.error(&outcome.name().replace('_', " "));
                self.message(&told(&format!("{head}: {what}"), &said.messages));
            }
        }
        self.contrast_warnings(contrasts);
        self.message(&format!("hosts: {ledger}\n"));
        Ok(())
    }

    /// Prints messages of hosts on stderr, equal ones once.
    pub(crate) fn host_messages(&mut self, records: &[HostRecord]) {
        for (outcome, kernel, said, hosts) in folded(records) {
            if known(&said.messages).is_none() {
                continue;
            }
            let head = head(kernel, &hosts);
            let head = match outcome {
                Outcome::Answered => head,
                _ => format!("{head}: {}", self.error_style.error(&outcome.name().replace('_', " "))),
            };
            self.message(&told(&head, &said.messages));
        }
    }
}

/// Hosts in short, and their kernel.
fn head(kernel: &str, hosts: &[&str]) -> String {
    let count = match hosts.len() {
        1 => "1 host".to_owned(),
        hosts => format!("{hosts} hosts"),
    };
    let kernel = if kernel.is_empty() { String::new() } else { format!(", kernel {kernel}") };
    format!("{} ({count}{kernel})", names::fold(hosts.iter().copied()))
}

/// A head with its messages: on its line if there is only one.
fn told(head: &str, messages: &str) -> String {
    match known(messages) {
        Some(messages) if messages.contains('\n') => format!("{head}\n{messages}\n"),
        Some(messages) => format!("{head}: {messages}\n"),
        None => format!("{head}\n"),
    }
}

type Group<'a> = (Outcome, &'a str, &'a Said, Vec<&'a str>);

/// Hosts with the same kernel and the same answer, the largest group of each outcome first.
fn folded(records: &[HostRecord]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for record in records {
        let same = groups.iter_mut().find(|(outcome, kernel, said, _)| {
            *outcome == record.outcome && *kernel == record.kernel && **said == record.said
        });
        match same {
            Some((.., hosts)) => hosts.push(&record.host),
            None => groups.push((record.outcome, &record.kernel, &record.said, vec![&record.host])),
        }
    }
    for (.., hosts) in &mut groups {
        hosts.sort_unstable();
    }
    groups.sort_by(|a, b| a.0.cmp(&b.0).then(b.3.len().cmp(&a.3.len())).then_with(|| a.3.cmp(&b.3)));
    groups
}
