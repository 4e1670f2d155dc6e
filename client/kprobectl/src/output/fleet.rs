//! Answers of many hosts: one record each as JSON and YAML, equal answers once as text, and the
//! ledger.

use std::io;

use kprobed_client::fleet::{HostLedger, Outcome, names};
use serde_json::{Value, json};

use super::data::{counted, grouped};
use super::terminal::Tone;
use super::{Contrast, HostOutput, Output};

/// One host, and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct HostRecord {
    pub(crate) host: String,
    pub(crate) outcome: Outcome,
    /// Release of its kernel; empty if it is not known.
    pub(crate) kernel: String,
    pub(crate) said: HostOutput,
}

/// The ledger of the hosts, for programs: targeted = the sum of the outcomes, if it closes.
pub(super) fn ledger_object(ledger: &HostLedger) -> Value {
    let mut terms = json!({ "targeted": ledger.targeted() });
    for outcome in Outcome::ALL {
        terms[outcome.name()] = ledger.count(outcome).into();
    }
    terms["closes"] = ledger.closes().into();
    terms
}

/// A text, unless it is empty.
pub(super) fn known(text: &str) -> Option<&str> {
    (!text.trim().is_empty()).then(|| text.trim_end())
}

impl Output {
    /// Prints what one host said, for programs. People get the whole at the end.
    pub(crate) fn host_record(&mut self, record: &HostRecord) -> io::Result<()> {
        if !self.is_structured() {
            return Ok(());
        }
        // What the command prints for one daemon: a list if that is several values, null if there is none.
        self.structured_stream(&json!({
            "host": record.host,
            "outcome": record.outcome.name(),
            "kernel": known(&record.kernel),
            "answer": record.said.answer,
            "messages": known(&record.said.messages),
        }))?;
        self.flush()
    }

    /// Prints the ledger, and as text equal answers once.
    pub(crate) fn hosts(
        &mut self,
        records: &[HostRecord],
        contrasts: &[Contrast],
        ledger: &HostLedger,
    ) -> io::Result<()> {
        self.contrast_records(contrasts)?;
        if self.structured_stream(&json!({ "ledger": ledger_object(ledger) }))? {
            return self.flush();
        }
        for (outcome, kernel, said, hosts) in folded(records) {
            let head = head(kernel, &hosts);
            let has_answered = outcome == Outcome::Answered;
            // Of a host that refused or failed: what it did before.
            if has_answered || !said.data.is_empty() {
                let head = self.style.paint(Tone::Strong, &format!("{head}:"));
                self.line(&head)?;
                self.raw(said.data.as_bytes())?;
            }
            if has_answered {
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
    let count = counted(hosts.len(), "host");
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

type Group<'a> = (Outcome, &'a str, &'a HostOutput, Vec<&'a str>);

/// Hosts with the same kernel and the same answer, the largest group of each outcome first.
fn folded(records: &[HostRecord]) -> Vec<Group<'_>> {
    let alike = grouped(records, |record| (record.outcome, record.kernel.as_str(), &record.said));
    let groups = alike.into_iter().map(|((outcome, kernel, said), records)| {
        let mut hosts: Vec<_> = records.into_iter().map(|record| record.host.as_str()).collect();
        hosts.sort_unstable();
        (outcome, kernel, said, hosts)
    });
    let mut groups: Vec<Group<'_>> = groups.collect();
    groups.sort_by(|a, b| a.0.cmp(&b.0).then(b.3.len().cmp(&a.3.len())).then_with(|| a.3.cmp(&b.3)));
    groups
}
