//! Making a probe.

use std::sync::Arc;
use std::time::SystemTime;

use super::Taken;
use super::account::{Account, Sample};
use super::checker::{Against, CheckOutcome};
use super::command::CreateRequest;
use super::controller::{Controller, Live};
use super::source::{event_source, plan_options};
use super::{ControlError, doctor, own};
use super::{Probe, ProbeState};
use crate::definition::{ProbeDefinition, ProbeKind};
use crate::model::{ProbeName, ProbeUid};
use crate::pipeline::EventSource;
use crate::store::{NewProbe, Undo};
use crate::tracefs::{OwnEvent, Presence, Tracefs};
use crate::validate::{Arming, Report};

impl Controller {
    pub(super) async fn create(&mut self, request: CreateRequest) -> Result<Arc<Probe>, ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
        {
            // Carried out before. If the probe has gone since, the outcome is gone with it.
            let gone = || ControlError::NotFound { name: key.id.clone(), foreign: false };
            let probe = self.parts.registry.by_uid(uid).ok_or_else(gone)?;
            return Ok(self.shown(&probe));
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
            arming: report.arming,
            own: None,
        };
        if request.validate_only {
            return Ok(Arc::new(probe));
        }
        probe.uid = self.parts.store.begin_create(&new_row(&probe)).await?;
        if let Err(error) = self.put_into_kernel(&mut probe, &definition, &report) {
            self.parts.store.undo(Undo::Probe(probe.uid)).await;
            return Err(error);
        }
        let listing = probe.own.as_ref().map(|own| own.listing.clone()).unwrap_or_default();
        let settled = self.parts.store.settle_create(probe.uid, &listing, request.request.as_ref()).await;
        if let Err(error) = settled {
            let uid = probe.uid;
            if self.take_back(probe) {
                self.parts.store.undo(Undo::Probe(uid)).await;
            }
            return Err(error.into());
        }
        tracing::info!(probe = %probe.name, uid = %probe.uid, state = ?probe.state, "created");
        let probe = self.parts.registry.put(probe);
        self.note_sharing();
        Ok(self.shown(&probe))
    }

    /// Takes a probe out of the kernel that could not be stored. Answers whether it is out; otherwise the database still says that it is to
    /// go, and the next start removes it.
    pub(super) fn take_back(&mut self, probe: Probe) -> bool {
        let probe = Arc::new(probe);
        let mut is_out = true;
        for outcome in self.take_all_out_of_kernel(&[Arc::clone(&probe)]) {
            if let Err(error) = outcome {
                is_out = false;
                tracing::error!(probe = %probe.name, %error, "cannot remove a probe that could not be stored");
                if let Some(own) = &probe.own
                    && let Err(error) = own::switch(self.tracefs(), &self.parts.instance, own, false)
                {
                    tracing::error!(probe = %probe.name, %error, "cannot switch it off either");
                }
            }
        }
        is_out
    }

    /// Defines, filters and enables a probe; undoes what was done when a step fails.
    pub(super) fn put_into_kernel(
        &mut self,
        probe: &mut Probe,
        definition: &ProbeDefinition,
        report: &Report,
    ) -> Result<(), ControlError> {
        let tracefs = self.tracefs().clone();
        let Defined { own, source } = define(&tracefs, probe, definition, report)?;
        probe.own = Some(own.clone());
        let steps = || {
            let (id, source) = source?;
            if !probe.filter.is_empty() {
                self.filter_in_kernel(&own, &probe.filter, source.schema())?;
            }
            source.origin.set_labels(probe.labels.clone());
            self.sources.insert(id, Arc::clone(&source));
            if probe.enabled {
                own::require(own::switch(&tracefs, &self.parts.instance, &own, true)?, &own.name)?;
            }
            Ok(source)
        };
        let outcome: Result<Arc<EventSource>, ControlError> = steps();
        let source = match outcome {
            Ok(source) => source,
            Err(error) => {
                self.take_unused_out_of_kernel(probe)?;
                probe.own = None;
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

    /// A probe that would be armed through ftrace never fires while ftrace is switched off, and none does while kprobes are. One that is enabled
    /// then stays dead when kprobes are switched on again (kernel/kprobes.c: enable_kprobe clears its mark only while they are on, and
    /// arm_all_kprobes passes by what is marked).
    pub(super) fn require_firing(&self, report: &Report) -> Result<(), ControlError> {
        if self.tracefs().kprobes_enabled() == Some(false) {
            return Err(ControlError::KprobesDisabled);
        }
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

/// What was defined.
pub(super) struct Defined {
    /// Our event.
    pub(super) own: OwnEvent,
    /// An event id and what is known of its events; or why it cannot be used. Then it must be removed.
    pub(super) source: Result<(u16, Arc<EventSource>), ControlError>,
}

/// Writes the definition, finds what the kernel made of it, and proves that the kernel has registered the probe.
pub(super) fn define(
    tracefs: &Tracefs,
    probe: &Probe,
    definition: &ProbeDefinition,
    report: &Report,
) -> Result<Defined, ControlError> {
    let count = || count_registered(tracefs, definition.kind, report);
    let before = count();
    tracefs.define_kprobe(&probe.kernel_definition).map_err(|error| ControlError::Kernel(Box::new(error)))?;
    let Some(own) = tracefs.find_own(&probe.name, &probe.kernel_definition)? else {
        // It is gone again, or cannot be told from what somebody else has defined at the same time.
        let is_taken = tracefs.has_event(probe.name.group(), probe.name.event());
        let presence = if is_taken { Presence::Foreign } else { Presence::Absent };
        own::require(presence, &probe.name)?;
        return Err(ControlError::Unregistered { name: probe.name.clone() });
    };
    if report.absent_module.is_none()
        && let (Some(before), Some(after)) = (before, count())
        && after <= before
    {
        return Ok(Defined { own, source: Err(ControlError::Unregistered { name: probe.name.clone() }) });
    }
    let source = event_source(tracefs, probe.uid, &probe.name, &plan_options(definition));
    Ok(Defined { own, source })
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
