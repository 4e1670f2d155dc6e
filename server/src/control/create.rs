//! Whether a probe can be made, and how.

use std::time::SystemTime;

use super::apply::{Grounds, Judged, Work};
use super::command::{Changed, CreateRequest};
use super::controller::Controller;
use super::guard::Guarded;
use super::job::{Basis, Job};
use super::observed::Switches;
use super::step::{self, Wanted};
use super::{ControlError, Probe, ProbeState};
use crate::store::{Intent, NewProbe};
use kprobed_lang::model::{Metadata, ProbeName, ProbeUid};
use kprobed_verdict::checker::Taken;
use kprobed_verdict::checker::{Against, CheckOutcome};
use kprobed_verdict::validate::{Arming, Report};

impl Controller {
    pub(super) async fn judge_creation(
        &self,
        request: CreateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, ControlError> {
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
        {
            // Carried out before. If the probe has gone since, the outcome is gone with it.
            let gone = || ControlError::NotFound { name: key.id.clone(), foreign: false };
            let probe = self.parts.registry.by_uid(uid).ok_or_else(gone)?;
            return Ok(Judged::Done(Changed::Probe(self.shown(&probe))));
        }
        let outcome = self.parts.checker.check_with(&request.definition, &mut grounds.facts)?;
        let taken = self.parts.checker.taken(&outcome);
        refuse(&request.definition, &outcome, taken.as_ref())?;
        let line = self.parts.checker.new_line(&outcome.definition, &grounds.claimed);
        let guarded = Guarded::new(outcome.meaning());
        let CheckOutcome { definition, text, report, .. } = outcome;
        if request.enabled {
            grounds.observed.switches.require_firing(report.arming)?;
        }
        let name = ProbeName::new(&line.group, &line.event)
            .map_err(|error| ControlError::BadArgument { field: "definition", message: error.to_string() })?;
        if !grounds.claimed.insert(name.clone()) {
            return Err(ControlError::Twice { name });
        }
        let now = SystemTime::now();
        let probe = Probe {
            uid: ProbeUid(0),
            name,
            definition: text,
            kernel_definition: line.text,
            kind: definition.kind,
            enabled: request.enabled,
            filter: request.filter,
            labels: request.labels,
            metadata: Metadata::default().changed(self.with_hold(request.metadata)?, now),
            state: ProbeState::Pending,
            revision: 1,
            create_time: now,
            update_time: now,
            schema: None,
            warnings: definition.warnings.clone(),
            location: report.location.clone(),
            arming: report.arming,
            own: None,
            left_alone: None,
            guarded,
            state_time: None,
        };
        let wanted = Wanted { enabled: Some(probe.enabled), filter: &probe.filter };
        let steps = step::define(&probe.kernel_definition, wanted);
        let intent = Some(Intent::Create(new_row(&probe)));
        let state = settled_state(probe.enabled, &report);
        let job = Job::define(Probe { state, ..probe }, Basis { definition, report }, steps);
        Ok(Judged::Work(Box::new(Work { intent, request: request.request, before: None, job })))
    }
}

impl Switches {
    /// Refuses to enable what would not fire. A probe that is armed through ftrace never fires while ftrace is switched off, and none does while
    /// kprobes are. One that is enabled then stays dead when kprobes are switched on again (kernel/kprobes.c: enable_kprobe clears its mark only
    /// while they are on, and arm_all_kprobes passes by what is marked).
    pub(super) fn require_firing(&self, arming: Option<Arming>) -> Result<(), ControlError> {
        if !self.kprobes {
            return Err(ControlError::KprobesDisabled);
        }
        if arming == Some(Arming::Ftrace) && !self.ftrace {
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

pub(super) fn new_row(probe: &Probe) -> NewProbe {
    NewProbe {
        name: probe.name.clone(),
        definition: probe.definition.clone(),
        kernel_definition: probe.kernel_definition.clone(),
        enabled: probe.enabled,
        filter: probe.filter.clone(),
        labels: probe.labels.clone(),
        metadata: probe.metadata.clone(),
        meaning: probe.guarded.to_json(),
        time: probe.create_time,
    }
}

/// The state of a probe that the kernel has.
pub(super) fn settled_state(enabled: bool, report: &Report) -> ProbeState {
    match (&report.absent_module, enabled) {
        (Some(_), _) => ProbeState::PendingModule,
        (None, true) => ProbeState::Armed,
        (None, false) => ProbeState::Disabled,
    }
}
