//! Making a probe.

use std::sync::Arc;
use std::time::SystemTime;

use super::Taken;
use super::account::{Account, Sample};
use super::checker::{Against, CheckOutcome};
use super::command::CreateRequest;
use super::controller::{Controller, Live};
use super::source::{event_source, plan_options};
use super::{ControlError, doctor};
use super::{Probe, ProbeState};
use crate::definition::{ProbeDefinition, ProbeKind};
use crate::model::{ProbeName, ProbeUid};
use crate::pipeline::EventSource;
use crate::store::NewProbe;
use crate::tracefs::Tracefs;
use crate::validate::{Arming, Report};

impl Controller {
    pub(super) async fn create(&mut self, request: CreateRequest) -> Result<Arc<Probe>, ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
        {
            // Carried out before. If the probe has gone since, the outcome is gone with it.
            let gone = || ControlError::NotFound { name: key.id.clone(), foreign: false };
            return self.parts.registry.by_uid(uid).ok_or_else(gone);
        }
        let outcome = self.parts.checker.check(&request.definition)?;
        let taken = self.parts.checker.taken(&outcome);
        refuse(&request.definition, &outcome, taken.as_ref())?;
        let line = self.parts.checker.new_line(&outcome.definition);
        let CheckOutcome { definition, text, report, .. } = outcome;
        if request.enabled {
            self.require_firing(&report)?;
        }
        let name = ProbeName::new(&line.group, &line.event)
            .map_err(|error| ControlError::BadArgument { field: "definition", message: error.to_string() })?;

        let now = SystemTime::now();
        let mut probe = Probe {
            uid: ProbeUid(0),
            name,
            definition: text,
            kernel_definition: line.text,
            kind: definition.kind,
            enabled: request.enabled,
            filter: request.filter,
            labels: request.labels,
            state: ProbeState::Pending,
            revision: 1,
            create_time: now,
            update_time: now,
            schema: None,
            warnings: definition.warnings.clone(),
            location: report.location.clone(),
        };
        if request.validate_only {
            return Ok(Arc::new(probe));
        }
        probe.uid = self.parts.store.begin_create(&new_row(&probe)).await?;
        if let Err(error) = self.put_into_kernel(&mut probe, &definition, &report) {
            self.parts.store.forget(probe.uid).await?;
            return Err(error);
        }
        let listing = listed_line(self.tracefs(), &probe.name)?;
        self.parts.store.settle_create(probe.uid, &listing, request.request.as_ref()).await?;
        tracing::info!(probe = %probe.name, uid = %probe.uid, state = ?probe.state, "created");
        let probe = self.parts.registry.put(probe);
        self.note_sharing();
        Ok(probe)
    }

    /// Defines, filters and enables a probe; undoes what was done when a step fails.
    fn put_into_kernel(
        &mut self,
        probe: &mut Probe,
        definition: &ProbeDefinition,
        report: &Report,
    ) -> Result<(), ControlError> {
        let tracefs = self.tracefs().clone();
        let source = define(&tracefs, probe, definition, report)?;
        let steps = || {
            let (id, source) = source?;
            if !probe.filter.is_empty() {
                self.filter_in_kernel(&probe.name, &probe.filter, source.schema())?;
            }
            source.origin.set_labels(probe.labels.clone());
            self.sources.insert(id, Arc::clone(&source));
            if probe.enabled {
                self.parts.instance.set_enabled(&probe.name, true)?;
            }
            Ok(source)
        };
        let outcome: Result<Arc<EventSource>, ControlError> = steps();
        let source = match outcome {
            Ok(source) => source,
            Err(error) => {
                self.take_unused_out_of_kernel(probe)?;
                return Err(error);
            }
        };
        let baseline = Sample { losses: self.losses(), ..Sample::default() };
        let account = Account::begin(baseline, probe.enabled, !probe.filter.is_empty());
        probe.schema = Some(Arc::clone(&source.origin.schema));
        self.live.insert(probe.uid, Live { source, ever_enabled: probe.enabled, account });
        probe.state = settled_state(probe.enabled, report);
        Ok(())
    }

    /// A probe that would be armed through ftrace never fires while ftrace is switched off.
    pub(super) fn require_firing(&self, report: &Report) -> Result<(), ControlError> {
        if report.arming == Some(Arming::Ftrace) && !doctor::ftrace_enabled(&self.parts.procfs) {
            return Err(ControlError::FtraceDisabled);
        }
        Ok(())
    }
}

/// Turns a verdict into an error.
pub(super) fn refuse(text: &str, outcome: &CheckOutcome, taken: Option<&Taken>) -> Result<(), ControlError> {
    let text = text.to_owned();
    Err(match outcome.against(taken) {
        None => return Ok(()),
        Some(Against::Place(refusal)) => {
            let refusal = refusal.clone().or_hint(|| outcome.nearest().hint());
            ControlError::Refused { text, refusal: Box::new(refusal), further: outcome.unread.clone() }
        }
        Some(Against::Text(problem)) => ControlError::Definition { text, diagnostics: vec![problem.clone()] },
        Some(Against::Name(taken)) => ControlError::Taken { text, taken: Box::new(taken.clone()) },
    })
}

fn new_row(probe: &Probe) -> NewProbe {
    NewProbe {
        name: probe.name.clone(),
        definition: probe.definition.clone(),
        kernel_definition: probe.kernel_definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.clone(),
        time: probe.create_time,
    }
}

/// The state of a probe that the kernel has.
pub(super) fn settled_state(enabled: bool, report: &Report) -> ProbeState {
    match (&report.absent_module, enabled) {
        (Some(_), _) => ProbeState::Waiting,
        (None, true) => ProbeState::Armed,
        (None, false) => ProbeState::Disabled,
    }
}

/// The line that the kernel lists for an event.
pub(super) fn listed_line(tracefs: &Tracefs, name: &ProbeName) -> Result<String, ControlError> {
    let listed = tracefs.list_kprobes()?.into_iter().find(|listed| listed.name.as_ref() == Some(name));
    Ok(listed.map(|listed| listed.line).unwrap_or_default())
}

/// An event id and what is known of its events; or why that could not be read.
type Described = Result<(u16, Arc<EventSource>), ControlError>;

/// Writes the definition and proves that the kernel has registered the probe. What comes back inside of `Ok` can still be an error: then
/// the event exists and has to be removed.
pub(super) fn define(
    tracefs: &Tracefs,
    probe: &Probe,
    definition: &ProbeDefinition,
    report: &Report,
) -> Result<Described, ControlError> {
    let count = || count_registered(tracefs, definition.kind, report);
    let before = count();
    tracefs.define_kprobe(&probe.kernel_definition).map_err(|error| ControlError::Kernel(Box::new(error)))?;
    if report.absent_module.is_none()
        && let (Some(before), Some(after)) = (before, count())
        && after <= before
    {
        return Ok(Err(ControlError::Unregistered { name: probe.name.clone() }));
    }
    Ok(event_source(tracefs, probe.uid, &probe.name, &plan_options(definition)))
}

/// Probes of that kind that are registered in the function of the report. Absent when that cannot be known: no debugfs.
fn count_registered(tracefs: &Tracefs, kind: ProbeKind, report: &Report) -> Option<usize> {
    let registered = tracefs.registered().ok()?;
    let here = |address: u64| {
        address == 0 || report.code_range.as_ref().is_some_and(|range| range.contains(&address))
    };
    Some(
        registered
            .into_iter()
            .filter(|probe| probe.kind == kind && !probe.gone && here(probe.address))
            .count(),
    )
}
