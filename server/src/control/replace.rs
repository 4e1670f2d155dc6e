//! Whether a probe can be given another definition, and how.
//!
//! The kernel cannot change the fields of an event: the one there was is deleted, and another one is defined under its name. Either both happen,
//! or the probe is what it was: see [`super::together`].

use std::sync::Arc;
use std::time::SystemTime;

use super::apply::{Before, Grounds, Judged, Work};
use super::command::UpdateRequest;
use super::controller::Controller;
use super::create::{new_row, refuse, settled_state};
use super::guard::Guarded;
use super::job::{Basis, Job};
use super::observed::ObservedEvent;
use super::remove::Doomed;
use super::step::{self, Wanted};
use super::{ControlError, Probe};
use crate::store::Intent;
use kprobed_host::tracefs::Presence;
use kprobed_lang::definition::ProbeDefinition;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_verdict::checker::CheckOutcome;

/// A probe that takes the place of another one.
pub(super) struct Replacement {
    pub(super) doomed: Doomed,
    pub(super) work: Work,
}

impl Controller {
    /// `wanted` is the probe with everything that the request changes but the definition.
    pub(super) fn judge_replacement(
        &self,
        probe: &Arc<Probe>,
        wanted: Probe,
        text: &str,
        request: UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, ControlError> {
        self.require_uncounted(&probe.name)?;
        // What is defined under this name would become a part of another program's event.
        if let Some(
            ObservedEvent::There { shared: true, .. }
            | ObservedEvent::Lost(Presence::Foreign | Presence::Shared),
        ) = grounds.observed.events.get(&probe.uid)
        {
            return Err(ControlError::ExistsForeign { name: probe.name.clone() });
        }
        let outcome = self.parts.checker.check_with(text, &mut grounds.facts)?;
        refuse(text, &outcome, None)?;
        let guarded = Guarded::new(outcome.meaning());
        let CheckOutcome { definition, text, report, .. } = outcome;
        require_name(&definition, &probe.name)?;
        if wanted.enabled {
            grounds.observed.switches.require_firing(report.arming)?;
        }
        let line = self.parts.checker.kernel_line(&definition, probe.name.event().to_owned()).text;
        let now = SystemTime::now();
        let next = Probe {
            uid: ProbeUid(0),
            definition: text,
            kernel_definition: line,
            kind: definition.kind,
            state: settled_state(wanted.enabled, &report),
            state_time: None,
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
            ..wanted
        };
        let wanted = Wanted { enabled: Some(next.enabled), filter: &next.filter };
        let steps = step::define(&next.kernel_definition, wanted);
        let profile = self.hit_profiles().ok().into_iter().flatten().find(|found| found.uid == probe.uid);
        let doomed = Doomed { probe: Arc::clone(probe), profile, request: None };
        let intent = Some(Intent::Create(new_row(&next)));
        let job = Job::define(next, Basis { definition, report }, steps);
        let work = Work { intent, request: request.request, before: None::<Before>, job };
        Ok(Judged::Replace(Box::new(Replacement { doomed, work })))
    }
}

/// Refuses a definition that is of another probe.
fn require_name(definition: &ProbeDefinition, name: &ProbeName) -> Result<(), ControlError> {
    let group = kprobed_verdict::checker::group_of(definition);
    let event = definition.event.as_ref().map(|event| event.text.as_str());
    if group == name.group() && event.is_none_or(|event| event == name.event()) {
        return Ok(());
    }
    let event = event.unwrap_or_else(|| name.event());
    let message = format!(
        "the definition is of `{group}/{event}`, and the probe is `{name}`: write `{name}` in it, or make another probe of it"
    );
    Err(ControlError::BadArgument { field: "definition", message })
}
