//! The ledger: the account of every event.
//!
//! Owns its accounts (`tables`), and what it says of them together.

mod tables;
#[cfg(test)]
mod tests;

use std::io;

use kprobed_client::api::{ExporterLedger, GetLedgerResponse, ProbeLedger, RecordingProblem};
use kprobed_document::json::json;
use prost::Name;
use serde_json::Value;

pub(crate) use self::tables::exporter_state;
use self::tables::{account, exporter_closes, probe_closes, spool_closes, subscriber_closes};
use super::data::{counted, moment};
use super::terminal::Tone;
use super::{Column, Output, Row};

/// Whether every sum that is known adds up.
pub(crate) fn ledger_closes(ledger: &GetLedgerResponse) -> bool {
    ledger.probes.iter().all(|probe| probe_closes(probe) != Some(false))
        && ledger.subscribers.iter().all(subscriber_closes)
        && ledger.spool.iter().all(spool_closes)
        && ledger.exporters.iter().all(|exporter| exporter_closes(exporter) != Some(false))
}

impl Output {
    /// Prints the ledger, and says whether it closes.
    pub(crate) fn ledger(&mut self, ledger: &GetLedgerResponse) -> io::Result<bool> {
        let closes = ledger_closes(ledger);
        if self.is_structured() {
            self.structured(&ledger_json(ledger, closes)?)?;
            return Ok(closes);
        }
        self.account(&ledger.probes)?;
        for note in notes(ledger) {
            self.line(note)?;
        }
        self.line("")?;
        self.account(&ledger.buffers)?;
        self.line("")?;
        self.account(&ledger.subscribers)?;
        self.line("")?;
        if let Some(spool) = &ledger.spool {
            self.account(std::slice::from_ref(spool))?;
            if !spool.last_error.is_empty() {
                self.line(&format!("the last error of the history: {}", spool.last_error))?;
            }
            for damaged in &spool.damaged {
                self.line(&format!("events of the history are missing: {damaged}"))?;
            }
            self.line("")?;
        }
        if !ledger.exporters.is_empty() {
            self.account(&ledger.exporters)?;
            ledger.exporters.iter().try_for_each(|exporter| self.troubles(exporter))?;
            self.line("")?;
        }
        if !self.is_wide() {
            let legend = "columns that are 0 in all rows are left out: `-o wide` shows them";
            self.line(&self.paint(Tone::Faint, legend))?;
        }
        for RecordingProblem { probe, message, hint, .. } in &ledger.problems {
            self.line(&format!("`{probe}` does not record what was asked: {message}"))?;
            if !hint.is_empty() {
                self.line(&format!("  hint: {hint}"))?;
            }
        }
        self.line(conclusion(closes, ledger))?;
        Ok(closes)
    }

    /// What is wrong with an exporter, below the table.
    fn troubles(&mut self, exporter: &ExporterLedger) -> io::Result<()> {
        let ExporterLedger { name, error, refusal, place_error, unknown_gaps, .. } = exporter;
        if !error.is_empty() {
            let time = |time: Option<&_>, unknown: &str| moment(time).unwrap_or_else(|| unknown.to_owned());
            let since = time(exporter.failing_since.as_ref(), "a while ago");
            let retry = time(exporter.retry_time.as_ref(), "soon");
            self.line(&format!("`{name}` fails since {since}: {error}"))?;
            self.line(&format!("  its events wait in the history; the next attempt is at {retry}"))?;
        }
        if !refusal.is_empty() {
            self.line(&format!("the receiver of `{name}` refused events finally, the last time: {refusal}"))?;
        }
        if exporter.dropped_spans > 0 {
            self.line(&format!("`{name}`: {} calls have no span at the receiver", exporter.dropped_spans))?;
        }
        if !place_error.is_empty() {
            self.line(&format!("the place of `{name}` cannot be written down: {place_error}"))?;
            self.line("  events would be sent again after a restart of the daemon")?;
        }
        if *unknown_gaps > 0 {
            let gaps = counted(*unknown_gaps, "gap");
            self.line(&format!("`{name}` met {gaps} with an unknown number of missing events"))?;
        }
        Ok(())
    }

    /// Prints a table with the meaning of its columns under it.
    fn account<T: Row>(&mut self, rows: &[T]) -> io::Result<()> {
        self.rows(rows)?;
        let shown = T::COLUMNS.iter().filter(|column| self.is_wide() || column.says_something(rows));
        let legend: Vec<_> = shown.filter_map(Column::legend).collect();
        if legend.is_empty() { Ok(()) } else { self.line(&self.paint(Tone::Faint, &legend.join("; "))) }
    }
}

/// The message of the API, and whether every sum closes, and each of them.
fn ledger_json(ledger: &GetLedgerResponse, closes: bool) -> io::Result<Value> {
    let mut value = json(ledger)?;
    value["closes"] = closes.into();
    value["probes"] = list(&ledger.probes, probe_closes)?;
    value["subscribers"] = list(&ledger.subscribers, |subscriber| Some(subscriber_closes(subscriber)))?;
    value["exporters"] = list(&ledger.exporters, exporter_closes)?;
    if let Some(spool) = &ledger.spool {
        value["spool"] = account(spool, Some(spool_closes(spool)))?;
    }
    Ok(value)
}

fn list<T: Name>(accounts: &[T], closes: impl Fn(&T) -> Option<bool>) -> io::Result<Value> {
    accounts.iter().map(|one| account(one, closes(one))).collect()
}

/// Whether it adds up, in one line.
fn conclusion(closes: bool, ledger: &GetLedgerResponse) -> &'static str {
    match (closes, ledger.settled) {
        (true, _) if !ledger.problems.is_empty() => {
            "the ledger closes for what was recorded, but not every probe that is on records"
        }
        (true, _) if ledger.probes.iter().any(is_unexplained) => {
            "the ledger closes, but not every hit is explained: another program has changed what is recorded"
        }
        (true, true) => "the ledger closes, and it is settled",
        (true, false) => "the ledger closes, but it is not settled: events were recorded while it was read",
        (false, true) => "the ledger DOES NOT CLOSE, although it is settled: please report this",
        (false, false) => {
            "the ledger does not close, and it is not settled: events were recorded while it was read"
        }
    }
}

/// Whether hits of a probe may be lost, and nothing tells how many.
pub(crate) fn is_unexplained(probe: &ProbeLedger) -> bool {
    probe.unexplained > Some(0)
}

/// Why terms are not known.
fn notes(ledger: &GetLedgerResponse) -> Vec<&'static str> {
    let probes = || ledger.probes.iter().filter(|probe| probe.hits.is_some());
    let mut notes = Vec::new();
    if probes().any(|probe| probe.lost.is_none()) {
        notes.push(if ledger.buffers.iter().any(|buffer| buffer.resets > 0) {
            "`?`: another program emptied a buffer: how many events were lost in it is counted nowhere"
        } else {
            "`?`: several probes recorded while buffers lost events, and the kernel counts losses for all probes together"
        });
    }
    if probes().any(|probe| probe.lost.is_some() && probe.filtered.is_some() && probe.own.is_none()) {
        notes.push(
            "`?` under OWN alone: the probe had a filter, and FILTERED includes kprobed's own hits (derived: what is left)",
        );
    }
    if probes().any(|probe| probe.lost.is_some() && probe.filtered.is_none()) {
        notes.push(
            "`?` under FILTERED and OWN: another program has changed what is recorded, and the kernel counted on: \
             UNEXPLAINED has these and what was lost",
        );
    }
    notes
}
