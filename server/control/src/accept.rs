//! Acceptance of a changed meaning: what a held-back definition records on the running kernel
//! becomes what the probe is for.
//!
//! Owns the judgement of an update with `accept`. Never compares meanings: that is
//! [`super::guard`]. Writes nothing: [`super::change`] does.

use std::sync::Arc;
use std::time::SystemTime;

use super::command::UpdateRequest;
use super::controller::Controller;
use super::create::refuse;
use super::guard::Guarded;
use super::job::Job;
use super::judge::{Grounds, Judged, Work};
use super::{Probe, ProbeState};
use crate::auth::Caller;
use crate::error::{Error, Reason};

impl Controller {
    /// What is stored and done to accept a probe as it is, and to arm it. If it cannot be armed,
    /// nothing has changed.
    pub(super) fn judge_acceptance(
        &self,
        caller: &Caller,
        probe: Arc<Probe>,
        request: UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        let is_held = matches!(probe.state, ProbeState::HeldBack(_));
        if !is_held && probe.guarded.change.is_none() {
            let message = format!("`{}` is not held back: it records what it was made for", probe.name);
            return Err(Error::of_probe(Reason::NOT_HELD_BACK, &probe.name, message));
        }
        let definition = &probe.spec.definition;
        let outcome = self.parts.checker.check_text(definition, &mut grounds.facts)?;
        refuse(definition.as_str(), &outcome, None)?;
        if let Some(module) = &outcome.report.absent_module {
            let reason = format!("its module `{module}` is not loaded, so that there is nothing to accept");
            let hint = format!("`modprobe {module}`");
            return Err(Error::held_back(&probe.name, &reason, &hint));
        }
        let guarded = Guarded::new(outcome.meaning());
        let mut wanted = Probe { left_alone: None, ..Probe::clone(&probe) }.guarded(guarded);
        wanted.record.revision += 1;
        wanted.record.update_time = SystemTime::now();
        // It was accepted on this kernel: nothing holds it back any more.
        let job = if is_held { self.define_anew(wanted, grounds)? } else { Job::change(wanted, Vec::new()) };
        let rule = self.require_changed(caller, &probe, &job.probe)?;
        let is_to_record = probe.is_to_record();
        let work = Work { is_to_record, ..Work::new(Some(probe), job) };
        let work = work.asked(request.change(), (caller, rule), request.request);
        Ok(Judged::Work(vec![work]))
    }
}
