//! Acceptance of a changed meaning: what a held-back definition records on the running kernel
//! becomes what the probe is for.
//!
//! Stores the new meaning and arms the probe. Never compares meanings: that is [`super::guard`].

use std::sync::Arc;
use std::time::SystemTime;

use super::apply::{Before, Grounds, Work};
use super::audited::Allowed;
use super::controller::Controller;
use super::create::refuse;
use super::guard::Guarded;
use super::job::Job;
use super::update::check_etag;
use super::{ControlError, Probe, ProbeState};
use crate::auth::Caller;
use crate::store::{Accepted, Intent, RequestKey};

/// Accept what a probe records on this kernel as what it is meant to record.
#[derive(Clone, Debug)]
pub struct AcceptRequest {
    /// `GROUP/EVENT` or `EVENT`.
    pub name: String,
    /// Only if the probe still has this etag.
    pub etag: Option<String>,
    /// Makes the request safe to repeat.
    pub request: Option<RequestKey>,
}

impl Controller {
    /// Stores what the definition means on this kernel, and arms the probe. If it cannot be armed,
    /// nothing has changed.
    pub(super) async fn accept(
        &mut self,
        caller: &Caller,
        request: AcceptRequest,
    ) -> Result<Arc<Probe>, ControlError> {
        let probe = self.probe(&request.name)?;
        self.require(caller, &probe)?;
        if let Some(key) = &request.request
            && self.parts.store.carried_out(key).await? == Some(probe.uid)
        {
            return Ok(self.shown(&probe));
        }
        check_etag(&probe, request.etag.as_deref())?;
        let is_held = matches!(probe.state, ProbeState::HeldBack(_));
        if !is_held && probe.guarded.change.is_none() {
            return Err(ControlError::NotHeldBack { name: probe.name.clone() });
        }
        let judged = self.judge_acceptance(caller, &probe, request);
        let work = self.noted(caller, "accept", &probe.name.to_string(), judged)?;
        let outcome = self.intend_and_do(vec![work], Vec::new()).await.pop();
        outcome.unwrap_or(Err(ControlError::Stopping))?.probe()
    }

    /// What is stored and done to accept a probe as it is. Writes nothing.
    fn judge_acceptance(
        &self,
        caller: &Caller,
        probe: &Arc<Probe>,
        request: AcceptRequest,
    ) -> Result<Work, ControlError> {
        let is_held = matches!(probe.state, ProbeState::HeldBack(_));
        let checker = Arc::clone(&self.parts.checker);
        let observed = self.observer.observe(std::slice::from_ref(probe));
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        let definition = &probe.spec.definition;
        let outcome = checker.check_text(definition, &mut grounds.facts)?;
        refuse(definition.as_str(), &outcome, None)?;
        if let Some(module) = &outcome.report.absent_module {
            let reason = format!("its module `{module}` is not loaded, so that there is nothing to accept");
            let hint = format!("`modprobe {module}`");
            return Err(ControlError::HeldBack { name: probe.name.clone(), reason, hint });
        }
        let guarded = Guarded::new(outcome.meaning());
        let meaning = Accepted { before: probe.guarded.to_json(), now: guarded.to_json() };
        let mut wanted = Probe { guarded, left_alone: None, ..Probe::clone(probe) };
        wanted.record.revision += 1;
        wanted.record.update_time = SystemTime::now();
        // It was accepted on this kernel: nothing holds it back any more.
        let job =
            if is_held { self.define_anew(wanted, &mut grounds)? } else { Job::change(wanted, Vec::new()) };
        let rule = self.require(caller, &job.probe)?;
        let allowed = Allowed { caller, rule, request: request.request.as_ref() };
        let entry = Some(Arc::new(allowed.change("accept", &job.probe.record)));
        let (before, wanted) = (Box::new(probe.record.clone()), Box::new(job.probe.record.clone()));
        let intent = Intent::Update { before, wanted, meaning: Some(meaning) };
        let is_to_record = probe.is_to_record();
        let before = Before { probe: Arc::clone(probe), drifted: false, is_to_record };
        Ok(Work { intent: Some(intent), request: request.request, entry, before: Some(before), job })
    }
}
