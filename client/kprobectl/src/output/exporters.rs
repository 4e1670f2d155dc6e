//! Exporters: their state and their account.

use std::io;

use kprobed_client::api::{Exporter, ExporterLedger, ExporterState};
use kprobed_client::event::Cursor;
use serde::Serialize;

use super::Output;
use super::ledger::exporter_closes;
use super::style::Tone;
use super::table::{Cell, Table};
use super::time::rfc3339;

/// The terms of an exporter, as JSON and YAML.
#[derive(Serialize)]
pub(super) struct ExporterTerms<'a> {
    pub(super) name: &'a str,
    pub(super) start_time: Option<String>,
    /// `null`: not known, as `queued`.
    pub(super) read: Option<u64>,
    pub(super) acknowledged: u64,
    pub(super) queued: Option<u64>,
    pub(super) dropped: u64,
    pub(super) expired: u64,
    pub(super) not_selected: u64,
    pub(super) unknown_gaps: u64,
    pub(super) failures: u64,
    /// `null` if a term is not known.
    pub(super) closes: Option<bool>,
}

impl<'a> ExporterTerms<'a> {
    pub(super) fn new(ledger: &'a ExporterLedger) -> Self {
        Self {
            name: &ledger.name,
            start_time: rfc3339(ledger.start_time.as_ref()),
            read: ledger.read,
            acknowledged: ledger.acknowledged,
            queued: ledger.queued,
            dropped: ledger.dropped,
            expired: ledger.expired,
            not_selected: ledger.not_selected,
            unknown_gaps: ledger.unknown_gaps,
            failures: ledger.failures,
            closes: exporter_closes(ledger),
        }
    }

    /// The sum, and the counters that are not part of it.
    pub(super) fn cells(&self) -> [Cell; 8] {
        [
            Cell::maybe(self.read),
            Cell::number(self.acknowledged),
            Cell::maybe(self.queued),
            Cell::number(self.dropped),
            Cell::number(self.expired),
            Cell::number(self.not_selected),
            Cell::mark(self.closes),
            Cell::number(self.failures),
        ]
    }
}

/// Headings of [`ExporterTerms::cells`].
pub(super) const TERMS: [&str; 8] =
    ["READ", "= ACKNOWLEDGED", "+ QUEUED", "+ DROPPED", "+ EXPIRED", "+ NOT SELECTED", "CLOSES", "FAILURES"];

/// An exporter, as JSON and YAML.
#[derive(Serialize)]
struct ExporterView<'a> {
    name: &'a str,
    destination: &'a str,
    state: &'static str,
    /// Absent values are `null`.
    error: Option<&'a str>,
    failing_since: Option<String>,
    failures_in_a_row: u64,
    retry_time: Option<String>,
    acknowledged_time: Option<String>,
    cursor: Option<String>,
    refusal: Option<&'a str>,
    place_error: Option<&'a str>,
    /// What is published besides events; `null` for nothing.
    beside: Option<BesideView<'a>>,
    ledger: Option<ExporterTerms<'a>>,
}

/// What is published besides events, as JSON and YAML.
#[derive(Serialize)]
struct BesideView<'a> {
    states: u64,
    profiles: u64,
    error: Option<&'a str>,
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn state(exporter: &Exporter) -> (&'static str, Tone) {
    match exporter.state() {
        ExporterState::Starting => ("starting", Tone::Doubtful),
        ExporterState::Running => ("running", Tone::Good),
        ExporterState::Failing => ("failing", Tone::Bad),
        ExporterState::Unspecified => ("unknown", Tone::Plain),
    }
}

impl<'a> ExporterView<'a> {
    fn new(exporter: &'a Exporter) -> Self {
        Self {
            name: &exporter.name,
            destination: &exporter.destination,
            state: state(exporter).0,
            error: some(&exporter.error),
            failing_since: rfc3339(exporter.failing_since.as_ref()),
            failures_in_a_row: exporter.failures_in_a_row,
            retry_time: rfc3339(exporter.retry_time.as_ref()),
            acknowledged_time: rfc3339(exporter.acknowledged_time.as_ref()),
            cursor: exporter.cursor.clone().map(|cursor| Cursor::from(cursor).to_string()),
            refusal: some(&exporter.refusal),
            place_error: some(&exporter.place_error),
            beside: exporter.beside.as_ref().map(|beside| BesideView {
                states: beside.states,
                profiles: beside.profiles,
                error: some(&beside.error),
            }),
            ledger: exporter.ledger.as_ref().map(ExporterTerms::new),
        }
    }
}

impl Output {
    /// Prints exporters, and says whether the terms of all of them add up.
    pub(crate) fn exporters(&mut self, exporters: &[Exporter]) -> io::Result<bool> {
        let views: Vec<_> = exporters.iter().map(ExporterView::new).collect();
        let closes =
            |view: &ExporterView<'_>| view.ledger.as_ref().is_none_or(|ledger| ledger.closes != Some(false));
        let closes = views.iter().all(closes);
        if self.structured(&views)? || exporters.is_empty() {
            return Ok(closes);
        }
        let wide = self.is_wide();
        let mut headings = vec!["NAME", "DESTINATION", "STATE"];
        headings.extend(TERMS);
        if wide {
            headings.extend(["ACKNOWLEDGED AT", "CURSOR"]);
        }
        let mut table = Table::new(&headings);
        for (exporter, view) in exporters.iter().zip(&views) {
            let (state, tone) = state(exporter);
            let mut cells =
                vec![Cell::text(view.name), Cell::text(view.destination), Cell::toned(state, tone)];
            cells.extend(view.ledger.as_ref().map(ExporterTerms::cells).into_iter().flatten());
            if wide {
                cells.push(Cell::text(view.acknowledged_time.as_deref().unwrap_or_default()));
                cells.push(Cell::text(view.cursor.as_deref().unwrap_or_default()));
            }
            table.row(cells);
        }
        self.table(&table)?;
        for view in &views {
            self.troubles(view)?;
        }
        Ok(closes)
    }

    /// What is wrong with an exporter, below the table.
    fn troubles(&mut self, view: &ExporterView<'_>) -> io::Result<()> {
        let name = view.name;
        if let Some(error) = view.error {
            let since = view.failing_since.as_deref().unwrap_or("a while ago");
            let retry = view.retry_time.as_deref().unwrap_or("soon");
            self.line(&format!("`{name}` fails since {since}: {error}"))?;
            self.line(&format!("  its events wait in the history; the next attempt is at {retry}"))?;
        }
        if let Some(refusal) = view.refusal {
            self.line(&format!(
                "the other side of `{name}` refused events for good, the last time: {refusal}"
            ))?;
        }
        if let Some(error) = view.place_error {
            self.line(&format!("the place of `{name}` cannot be written down: {error}"))?;
            self.line("  events would be sent again after a restart of the daemon")?;
        }
        if let Some(error) = view.beside.as_ref().and_then(|beside| beside.error) {
            self.line(&format!("states and hits of probes are not published by `{name}`: {error}"))?;
        }
        let gaps = view.ledger.as_ref().map_or(0, |ledger| ledger.unknown_gaps);
        if gaps > 0 {
            self.line(&format!("`{name}` met {gaps} gaps with an unknown number of missing events"))?;
        }
        Ok(())
    }
}
