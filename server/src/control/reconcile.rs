//! At start: bringing together what the database wants and what the kernel has.
//!
//! What clients saw acknowledged is put back; what was never acknowledged is taken out; what a client wanted gone goes. An event in the
//! kernel is ours only if the kernel lists it word for word as it did when we made it: everything else belongs to somebody else and stays
//! (see [`crate::tracefs::OwnEvent`]).

use std::collections::HashMap;
use std::sync::Arc;

use super::account::Account;
use super::controller::{Controller, ControllerParts, Live};
use super::create::{Defined, define, refuse, settled_state};
use super::source::{event_source, plan_options};
use super::{CheckOutcome, ControlError, own};
use super::{Probe, ProbeState, Trouble};
use crate::model::ProbeUid;
use crate::pipeline::{EventSource, SourceTable};
use crate::store::{Phase, StoredProbe, Undo};
use crate::tracefs::{KprobeList, OwnEvent};

/// A probe that was on its way out, or never acknowledged, when the daemon ended.
pub(super) struct Unfinished {
    probe: Arc<Probe>,
    phase: Phase,
}

/// Goes through all rows of the database. Answers what the kernel has of them, and what is still to be removed: see
/// [`Controller::finish_removals`].
pub(super) async fn reconcile(
    parts: &ControllerParts,
    sources: &SourceTable,
) -> Result<(HashMap<ProbeUid, Live>, Vec<Unfinished>), ControlError> {
    let (mut live, mut unfinished) = (HashMap::new(), Vec::new());
    let list = parts.mounted.tracefs.kprobe_list()?;
    for row in parts.store.probes().await? {
        let left =
            parts.mounted.tracefs.find_left(&list, &row.name, &row.kernel_listing, &row.kernel_definition)?;
        match row.phase {
            Phase::Pending | Phase::Removing => {
                if left.is_some()
                    && let Some(entry) = still_recorded(parts, sources, &row)
                {
                    live.insert(row.uid, entry);
                }
                let phase = row.phase;
                let probe = Probe { own: left, ..as_probe(parts, row, ProbeState::Pending) };
                unfinished.push(Unfinished { probe: Arc::new(probe), phase });
            }
            Phase::Settled => {
                let probe = match bring_back(parts, sources, &row, &list, left).await {
                    Ok((probe, entry)) => {
                        live.insert(probe.uid, entry);
                        probe
                    }
                    Err(error) => {
                        tracing::warn!(probe = %row.name, %error, "cannot bring a probe back");
                        as_probe(parts, row, ProbeState::Failed(Trouble::because(&error)))
                    }
                };
                parts.registry.put(probe);
            }
        }
    }
    Ok((live, unfinished))
}

impl Controller {
    /// Removes what was on its way out, or never acknowledged, when the daemon ended. What cannot be removed stays as it was.
    pub(super) async fn finish_removals(&mut self, unfinished: &[Unfinished]) {
        let probes: Vec<_> = unfinished.iter().map(|unfinished| Arc::clone(&unfinished.probe)).collect();
        let outcomes = self.take_all_out_of_kernel(&probes);
        for (Unfinished { probe, phase }, outcome) in unfinished.iter().zip(outcomes) {
            match outcome {
                Ok(found) => {
                    self.parts.store.undo(Undo::Probe(probe.uid)).await;
                    tracing::info!(probe = %probe.name, ?phase, ?found, "finished what a crash interrupted");
                }
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot remove what a crash has left of it");
                    self.parts.store.undo(Undo::Deletion(probe.uid)).await;
                    let state = if probe.enabled { ProbeState::Armed } else { ProbeState::Disabled };
                    let schema = self.live.get(&probe.uid).map(|live| Arc::clone(&live.source.origin.schema));
                    self.parts.registry.put(Probe { state, schema, ..Probe::clone(probe) });
                }
            }
        }
    }
}

/// Makes known what the buffers hold of a probe that is to be removed: it has recorded until now.
fn still_recorded(parts: &ControllerParts, sources: &SourceTable, row: &StoredProbe) -> Option<Live> {
    let definition = parts.checker.parse_probe(&row.definition).ok()?;
    match event_source(&parts.mounted.tracefs, row.uid, &row.name, &plan_options(&definition)) {
        Ok((id, source)) => {
            source.origin.set_labels(row.labels.clone());
            sources.insert(id, Arc::clone(&source));
            Some(Live { source, ever_enabled: true, account: Account::default() })
        }
        Err(error) => {
            tracing::warn!(probe = %row.name, %error, "what it has recorded cannot be read");
            None
        }
    }
}

/// Finds a probe in the kernel, or defines it anew, and lets it record as it should.
async fn bring_back(
    parts: &ControllerParts,
    sources: &SourceTable,
    row: &StoredProbe,
    list: &KprobeList,
    left: Option<OwnEvent>,
) -> Result<(Probe, Live), ControlError> {
    let outcome = parts.checker.check(&row.definition)?;
    // Its name is its own, or is looked at below.
    refuse(&row.definition, &outcome, None)?;
    let CheckOutcome { definition, report, .. } = outcome;
    let tracefs = &parts.mounted.tracefs;
    let mut probe = as_probe(parts, row.clone(), ProbeState::Pending);
    let adopted = left.is_some();
    let Defined { own: event, source } = match left {
        Some(own) => {
            Defined { own, source: event_source(tracefs, row.uid, &row.name, &plan_options(&definition)) }
        }
        None if list.lines_of(&row.name).next().is_some() => {
            return Err(ControlError::ExistsForeign { name: row.name.clone() });
        }
        None => {
            // The definition is rendered anew: another kernel may know other arguments.
            probe.kernel_definition =
                parts.checker.kernel_line(&definition, row.name.event().to_owned()).text;
            let mut defined = define(tracefs, &probe, &definition, &report)?;
            if let Err(error) =
                store_redefined(parts, row, &probe.kernel_definition, &defined.own.listing).await
            {
                // It is taken out again below.
                defined.source = Err(error);
            }
            defined
        }
    };
    let source = match source.and_then(|(id, source)| switch(parts, sources, row, &event, id, source)) {
        Ok(source) => source,
        Err(error) => {
            // What is not brought back whole is taken out again: a failed probe is not in the kernel.
            own::switch(tracefs, &parts.instance, &event, false)?;
            tracefs.delete_own(&event)?;
            return Err(error);
        }
    };
    probe.own = Some(event);
    probe.state = settled_state(row.enabled, &report);
    probe.schema = Some(Arc::clone(&source.origin.schema));
    probe.warnings.clone_from(&definition.warnings);
    probe.location.clone_from(&report.location);
    probe.arming = report.arming;
    tracing::info!(probe = %row.name, state = ?probe.state, adopted, "brought back");
    // Whoever was here before may have had it enabled: its removal is to be treated so.
    Ok((probe, Live { source, ever_enabled: true, account: Account::default() }))
}

/// Writes down how the kernel lists a probe that was defined anew, if that is not what it was before.
async fn store_redefined(
    parts: &ControllerParts,
    row: &StoredProbe,
    kernel_definition: &str,
    listing: &str,
) -> Result<(), ControlError> {
    if row.kernel_definition != kernel_definition || row.kernel_listing != listing {
        parts.store.redefined(row.uid, kernel_definition, listing).await?;
    }
    Ok(())
}

/// Filters an event and switches it as its row says.
fn switch(
    parts: &ControllerParts,
    sources: &SourceTable,
    row: &StoredProbe,
    event: &OwnEvent,
    id: u16,
    source: Arc<EventSource>,
) -> Result<Arc<EventSource>, ControlError> {
    let (tracefs, instance) = (&parts.mounted.tracefs, &parts.instance);
    if instance.filter(&row.name)? != row.filter {
        own::require(own::set_filter(tracefs, instance, event, &row.filter)?, &row.name)?;
    }
    source.origin.set_labels(row.labels.clone());
    sources.insert(id, Arc::clone(&source));
    if row.enabled && tracefs.kprobes_enabled() == Some(false) {
        // One that is switched on now would stay dead when kprobes are switched on again. It is off instead, and its state says why.
        tracing::warn!(probe = %row.name, "left a probe switched off: kprobes are switched off on this host");
        return Ok(source);
    }
    let switched = own::switch(tracefs, instance, event, row.enabled)
        .map_err(ControlError::from)
        .and_then(|found| own::require(found, &row.name));
    if let Err(error) = switched {
        sources.remove(row.uid);
        return Err(error);
    }
    Ok(source)
}

/// A row as clients see it.
fn as_probe(parts: &ControllerParts, row: StoredProbe, state: ProbeState) -> Probe {
    let definition = parts.checker.parse_probe(&row.definition).ok();
    Probe {
        uid: row.uid,
        name: row.name,
        definition: row.definition,
        kernel_definition: row.kernel_definition,
        kind: definition.map_or(crate::definition::ProbeKind::Entry, |definition| definition.kind),
        enabled: row.enabled,
        filter: row.filter,
        labels: row.labels,
        state,
        revision: row.revision,
        create_time: row.create_time,
        update_time: row.update_time,
        schema: None,
        warnings: Vec::new(),
        location: String::new(),
        arming: None,
        own: None,
    }
}
