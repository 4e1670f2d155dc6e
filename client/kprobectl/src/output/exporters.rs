//! Exporters: their state and their account.

use std::io;

use kprobed_client::api::{Exporter, ExporterLedger, ExporterState};
use kprobed_client::event::Cursor;
use kprobed_document::json::Json;
use serde::Serialize;

use super::Output;
use super::ledger::{Account, exporter_closes};
use super::style::Tone;
use super::table::{Cell, Table};
use super::time::rfc3339;

/// The account of an exporter, as JSON and YAML.
pub(super) fn account(ledger: &ExporterLedger) -> Account {
    Account::new(ledger, exporter_closes(ledger))
}

/// The sum, and the counters that are not part of it.
pub(super) fn terms(ledger: &ExporterLedger) -> [Cell; 8] {
    [
        Cell::maybe(ledger.read),
        Cell::number(ledger.acknowledged),
        Cell::maybe(ledger.queued),
        Cell::number(ledger.dropped),
        Cell::number(ledger.expired),
        Cell::number(ledger.not_selected),
        Cell::mark(exporter_closes(ledger)),
        Cell::number(ledger.failures),
    ]
}

/// Headings of [`terms`].
pub(super) const TERMS: [&str; 8] =
    ["READ", "= ACKNOWLEDGED", "+ QUEUED", "+ DROPPED", "+ EXPIRED", "+ NOT SELECTED", "CLOSES", "FAILURES"];

/// An exporter, as JSON and YAML.
#[derive(Serialize)]
struct ExporterView {
    #[serde(flatten)]
    exporter: Json,
    ledger: Option<Account>,
}

impl ExporterView {
    fn new(exporter: &Exporter) -> Self {
        Self {
            exporter: Json::full(exporter).without(&["ledger"]),
            ledger: exporter.ledger.as_ref().map(account),
        }
    }
}

fn state(exporter: &Exporter) -> (&'static str, Tone) {
    match exporter.state() {
        ExporterState::Starting => ("starting", Tone::Doubtful),
        ExporterState::Running => ("running", Tone::Good),
        ExporterState::Failing => ("failing", Tone::Bad),
        ExporterState::Unspecified => ("unknown", Tone::Plain),
    }
}

impl Output {
    /// Prints exporters, and says whether the terms of all of them add up.
    pub(crate) fn exporters(&mut self, exporters: &[Exporter]) -> io::Result<bool> {
        let ledgers = exporters.iter().filter_map(|exporter| exporter.ledger.as_ref());
        let closes = ledgers.map(exporter_closes).all(|closes| closes != Some(false));
        let views: Vec<_> = exporters.iter().map(ExporterView::new).collect();
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
        for exporter in exporters {
            let (state, tone) = state(exporter);
            let mut cells =
                vec![Cell::text(&exporter.name), Cell::text(&exporter.destination), Cell::toned(state, tone)];
            cells.extend(exporter.ledger.as_ref().map(terms).into_iter().flatten());
            if wide {
                let cursor = exporter.cursor.clone().map(|cursor| Cursor::from(cursor).to_string());
                cells.push(Cell::text(rfc3339(exporter.acknowledged_time.as_ref()).unwrap_or_default()));
                cells.push(Cell::text(cursor.unwrap_or_default()));
            }
            table.row(cells);
        }
        self.table(&table)?;
        exporters.iter().try_for_each(|exporter| self.troubles(exporter))?;
        Ok(closes)
    }

    /// What is wrong with an exporter, below the table.
    fn troubles(&mut self, exporter: &Exporter) -> io::Result<()> {
        let Exporter { name, error, refusal, place_error, .. } = exporter;
        if !error.is_empty() {
            let time = |time: Option<&_>, unknown: &str| rfc3339(time).unwrap_or_else(|| unknown.to_owned());
            let since = time(exporter.failing_since.as_ref(), "a while ago");
            let retry = time(exporter.retry_time.as_ref(), "soon");
            self.line(&format!("`{name}` fails since {since}: {error}"))?;
            self.line(&format!("  its events wait in the history; the next attempt is at {retry}"))?;
        }
        if !refusal.is_empty() {
            self.line(&format!("the receiver of `{name}` refused events finally, the last time: {refusal}"))?;
        }
        if !place_error.is_empty() {
            self.line(&format!("the place of `{name}` cannot be written down: {place_error}"))?;
            self.line("  events would be sent again after a restart of the daemon")?;
        }
        let gaps = exporter.ledger.as_ref().map_or(0, |ledger| ledger.unknown_gaps);
        if gaps > 0 {
            self.line(&format!("`{name}` met {gaps} gaps with an unknown number of missing events"))?;
        }
        Ok(())
    }
}
