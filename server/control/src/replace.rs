//! Replacement of a probe's definition: whether it can be made, and by which steps.
//!
//! Owns that judgement. The kernel cannot change the fields of an event: the daemon deletes the old
//! one, and defines a new one under its name. Either both happen, or the probe is what it was: see
//! [`super::change`]. Writes nothing.

use std::sync::Arc;
use std::time::SystemTime;

use super::Probe;
use super::command::UpdateRequest;
use super::controller::Controller;
use super::create::{creation, refuse, require_stacks};
use super::judge::{Grounds, Judged, Work};
use super::observed::ObservedEvent;
use crate::auth::Caller;
use crate::error::Error;
use crate::store::{ProbeSpec, Record};
use kprobed_host::tracefs::Presence;
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::DefinitionText;

impl Controller {
    /// `wanted` is what is wanted, but for the definition.
    pub(super) fn judge_replacement(
        &self,
        caller: &Caller,
        probe: &Arc<Probe>,
        wanted: ProbeSpec,
        definition: &Arc<DefinitionText>,
        request: UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        self.require_uncounted(caller, &probe.name)?;
        // A definition under this name would become a part of another program's event.
        if let Some(
            ObservedEvent::There { shared: true, .. }
            | ObservedEvent::Lost(Presence::Foreign | Presence::Shared),
        ) = grounds.observed.events.get(&probe.uid)
            && probe.kind != ProbeKind::Event
        {
            return Err(Error::exists_foreign(&probe.name));
        }
        self.require_place(caller, definition)?;
        let outcome = self.parts.checker.check_text(definition, &mut grounds.facts)?;
        refuse(definition.as_str(), &outcome, None)?;
        let outcome = outcome.named(&probe.name).map_err(|found| of_another(&found, &probe.name))?;
        if outcome.definition.is_of_host_event() != (probe.kind == ProbeKind::Event) {
            let message = format!(
                "`{}` cannot become an event of the host, and a probe of one cannot become another: delete it first",
                probe.name
            );
            return Err(Error::bad_argument("definition", message));
        }
        if wanted.stack {
            require_stacks(&outcome, grounds)?;
        }
        if wanted.enabled {
            grounds.observed.switches.require_firing(outcome.definition.kind, outcome.report.arming)?;
        }
        let line = self.parts.checker.kernel_line(&outcome.definition, probe.name.parts()).text;
        let spec = ProbeSpec { definition: Arc::clone(&outcome.text), ..wanted };
        // It counts for who made the first one.
        let (creator, creator_names) = (probe.creator.clone(), probe.creator_names.clone());
        let record = Record::new(probe.name.clone(), spec, line, SystemTime::now());
        let record = Record { creator, creator_names, ..record };
        let job = creation(record, outcome);
        self.judge_host_event_filter(&job)?;
        let rule = self.require(caller, &job.probe)?;
        let profile = self.profiles_by_uid().ok().and_then(|mut profiles| profiles.remove(&probe.uid));
        let old = Work::taking_out(probe, None, profile);
        let new = Work::new(None, job).asked("update", (caller, rule), request.request);
        Ok(Judged::Work(vec![old, new]))
    }
}

/// The refusal of a definition that is of another probe, `found`.
pub(super) fn of_another(found: &str, name: &ProbeName) -> Error {
    let message = format!(
        "the definition is of `{found}`, and the probe is `{name}`: write `{name}` in it, or make another probe of it"
    );
    Error::bad_argument("definition", message)
}
