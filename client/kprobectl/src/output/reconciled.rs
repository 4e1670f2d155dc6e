//! Results of `kprobectl doctor --repair`.

use std::io;

use kprobed_client::api::{ReconcileOutcome, ReconciledProbe};
use kprobed_document::json::Json;

use super::Output;
use super::probe::state_name;
use super::style::Tone;
use super::table::{Cell, Table};

const fn outcome(outcome: ReconcileOutcome) -> (&'static str, Tone) {
    match outcome {
        ReconcileOutcome::AsWanted => ("as-wanted", Tone::Good),
        ReconcileOutcome::Repaired => ("repaired", Tone::Doubtful),
        ReconcileOutcome::NotRepaired => ("not-repaired", Tone::Bad),
        ReconcileOutcome::NotDue => ("not-due", Tone::Doubtful),
        ReconcileOutcome::LeftAlone => ("left-alone", Tone::Bad),
        ReconcileOutcome::WouldRepair => ("would-repair", Tone::Doubtful),
        ReconcileOutcome::Unspecified => ("unknown", Tone::Plain),
    }
}

impl Output {
    /// Prints probes that were looked at.
    pub(crate) fn reconciled(&mut self, probes: &[ReconciledProbe]) -> io::Result<()> {
        if self.structured(&probes.iter().map(Json::full).collect::<Vec<_>>())? {
            return Ok(());
        }
        let mut table = Table::new(&["NAME", "FOUND", "OUTCOME", "STATE"]);
        for probe in probes {
            let cell = |(text, tone)| Cell::toned(text, tone);
            table.row(vec![
                Cell::text(&probe.name),
                cell(state_name(probe.found())),
                cell(outcome(probe.outcome())),
                cell(state_name(probe.state())),
            ]);
        }
        self.table(&table)?;
        for probe in probes {
            if !probe.found_message.is_empty() {
                self.note(&format!(
                    "`{}` was {}: {}",
                    probe.name,
                    state_name(probe.found()).0,
                    probe.found_message
                ));
            }
            if !probe.message.is_empty() {
                self.note(&format!("`{}` was not repaired: {}", probe.name, probe.message));
            }
        }
        Ok(())
    }
}
