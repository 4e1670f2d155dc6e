//! Update of a probe: whether it can be changed, and by which steps.
//!
//! Owns that judgement, by what the kernel has now; also of another definition, and of the acceptance of a changed
//! meaning. Never compares meanings: that is [`super::guard`]. Writes nothing: [`super::change`] does.

use std::sync::Arc;
use std::time::SystemTime;

use super::command::{Changed, UpdateRequest};
use super::controller::Controller;
use super::create::{creation, refuse, require_stacks};
use super::guard::{Guarded, look};
use super::job::Job;
use super::judge::{Grounds, Judged, Work};
use super::observed::{ObservedEvent, lost};
use super::step::{self, Aim};
use super::{Probe, ProbeState};
use crate::auth::Caller;
use crate::error::{Error, Reason};
use crate::store::{ProbeSpec, Record};
use kprobed_host::tracefs::Presence;
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{KernelChange, ProbeName};
use kprobed_verdict::checker::DefinitionText;

impl Controller {
    pub(super) async fn judge_update(
        &self,
        caller: &Caller,
        request: UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        let probe = self.probe(caller, &request.name)?;
        self.require(caller, &probe)?;
        if let Some(key) = &request.request
            && self.parts.store.carried_out(key).await? == Some(probe.uid)
        {
            return Ok(Judged::Done(Changed::Probe(self.repeated(caller, key, probe.uid)?)));
        }
        check_etag(&probe, request.etag.as_deref())?;
        probe.require_readable()?;
        if request.accept {
            grounds.claim(&probe, false)?;
            return self.judge_acceptance(caller, probe, request, grounds);
        }
        // To arm it again after a trip changes nothing that a file declares.
        if !request.only_ends_trip(&probe) {
            probe.require_undeclared(request.take_over)?;
        }
        if let Some(lease) = &request.metadata.lease {
            self.require_lease(caller, &probe.name, lease.as_ref())?;
        }
        let metadata = self.with_hold(request.metadata.clone())?;
        let now = self.leases.now();
        let spec = &probe.spec;
        let labels =
            spec.labels.changed(&request.labels).map_err(|error| Error::labels("set_labels", &error))?;
        let spec_wanted = ProbeSpec {
            definition: Arc::clone(&spec.definition),
            enabled: request.enabled.unwrap_or(spec.enabled),
            filter: request.filter.clone().unwrap_or_else(|| spec.filter.clone()),
            stack: spec.stack,
            labels,
            metadata: spec.metadata.changed(metadata, &now),
        };
        grounds.claim(&probe, false)?;
        let is_other = |text: &Arc<DefinitionText>| text.as_str().trim() != spec.definition.as_str().trim();
        if let Some(definition) = request.definition.clone().filter(is_other) {
            if matches!(probe.state, ProbeState::Expired(_)) && request.metadata.lease.is_none() {
                return Err(Error::lease_ended(&probe.name));
            }
            return self.judge_replacement(caller, &probe, spec_wanted, &definition, request, grounds);
        }
        // A client that changes it wants it to be repaired again.
        let mut wanted = Probe { left_alone: None, ..Probe::clone(&probe) };
        wanted.record.spec = spec_wanted;
        if request.enabled.is_some() {
            // Whoever switches it has seen that it was disarmed for its cost.
            wanted.record.trip = None;
        }
        if request.metadata.lease.is_some() {
            wanted.record.lease_ended = None;
        }
        // Before the kernel is asked about a filter: its answer can tell what the filter may not.
        self.require(caller, &wanted)?;
        let state = grounds.observed.state(&probe);
        let drifted = probe.is_to_record() && state != ProbeState::Armed;
        let mut job = self.judge_change(&probe, wanted, &request, grounds)?;
        // With other labels, or resolved anew, it may be out of reach for the caller.
        let rule = self.require_changed(caller, &probe, &job.probe)?;
        let record = &mut job.probe.record;
        (record.revision, record.update_time) = (probe.revision + 1, now.wall);
        // An event that is defined anew has a new account.
        let drifted = drifted && job.basis.is_none();
        let is_to_record = request.enabled == Some(true);
        let work = Work { drifted, is_to_record, ..Work::new(Some(probe), job) };
        let work = work.asked(request.change(), (caller, rule), request.request);
        Ok(Judged::Work(vec![work]))
    }

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

    /// The kernel cannot change the fields of an event: the daemon deletes the old one, and defines a new one under its
    /// name. Either both happen, or the probe is what it was. `wanted` is what is wanted, but for the definition.
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

    /// Whether a probe can be changed as requested, and what must be done in the kernel. Judged by
    /// what the kernel has now, and not by what was done before: to enable a probe that another
    /// program has switched off, filtered or removed is to repair it.
    pub(super) fn judge_change(
        &self,
        probe: &Arc<Probe>,
        wanted: Probe,
        request: &UpdateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Job, Error> {
        if matches!(probe.state, ProbeState::Expired(_)) {
            return self.judge_expired(probe, wanted, request, grounds);
        }
        let new_filter = request.filter.as_ref().filter(|filter| **filter != probe.spec.filter);
        if matches!(probe.state, ProbeState::HeldBack(_))
            && probe.spec.enabled
            && request.metadata.on_kernel_change == Some(KernelChange::ArmAnyway)
        {
            // That was all that kept it from being armed.
            return self.define_anew(wanted, grounds);
        }
        if request.is_about_the_row_alone() {
            // The kernel knows of none of these fields, and need not even have the probe.
            return Ok(Job::change(wanted, Vec::new()));
        }
        let Grounds { observed, facts, .. } = grounds;
        let event = observed.events.get(&probe.uid);
        match (event, &probe.own) {
            (Some(ObservedEvent::There { seen, module_is_absent, .. }), Some(own)) => {
                if request.enabled == Some(true) {
                    let arming = match probe.arming {
                        // Its module was not loaded when it was looked at.
                        None if !module_is_absent && probe.kind != ProbeKind::Event => {
                            self.parts.checker.check_text(&probe.spec.definition, facts)?.report.arming
                        }
                        known => known,
                    };
                    observed.switches.require_firing(probe.kind, arming)?;
                }
                if let Some(filter) = new_filter.filter(|filter| !filter.is_empty()) {
                    self.executor().judge_filter(own, filter, probe.schema.as_ref())?;
                }
                let spec = &wanted.spec;
                let aim = Aim { enabled: request.enabled, filter: &spec.filter, stack: spec.stack };
                let steps = step::change(seen, aim);
                Ok(Job::change(Probe { state: wanted.settled(), ..wanted }, steps))
            }
            // It is recorded as it is wanted when it appears.
            (Some(ObservedEvent::Lost(Presence::Absent)), _) if probe.kind == ProbeKind::Event => {
                Ok(Job::change(Probe { state: wanted.settled(), ..wanted }, Vec::new()))
            }
            (Some(ObservedEvent::Lost(_)), _) if probe.kind == ProbeKind::Event => {
                self.define_anew(wanted, grounds)
            }
            // An event that does not exist is off, and a request may ask for that.
            (Some(ObservedEvent::Lost(_)), _) if request.enabled == Some(false) && new_filter.is_none() => {
                Ok(Job::change(wanted, Vec::new()))
            }
            (Some(ObservedEvent::Lost(_)), _) if request.enabled == Some(true) => {
                self.define_anew(wanted, grounds)
            }
            // The kernel judges its filter when it is defined.
            (Some(ObservedEvent::Lost(_)), _) if probe.waits_for_module() => {
                Ok(Job::change(wanted, Vec::new()))
            }
            (event, _) => {
                let trouble = match (&probe.state, event) {
                    (ProbeState::Failed(trouble) | ProbeState::HeldBack(trouble), _) => trouble.clone(),
                    (_, Some(event)) => lost(event),
                    (_, None) => lost(&ObservedEvent::Unknown("it was not looked at".to_owned())),
                };
                Err(Error::not_in_kernel(&probe.name, &trouble.reason, &trouble.hint))
            }
        }
    }

    /// The steps that define a probe again that the kernel has lost, or that record its event of the host again.
    pub(super) fn define_anew(&self, probe: Probe, grounds: &mut Grounds<'_>) -> Result<Job, Error> {
        if probe.kind != ProbeKind::Event && self.tracefs().has_event(probe.name.group(), probe.name.event())
        {
            return Err(Error::exists_foreign(&probe.name));
        }
        let guarded = match look(&self.parts.checker, &self.parts.rights, &probe, &mut grounds.facts) {
            Ok(guarded) => guarded,
            Err(held) if held.trouble.waits_for_module() => held.guarded,
            Err(held) => {
                return Err(Error::held_back(&probe.name, &held.trouble.reason, &held.trouble.hint));
            }
        };
        let definition = Arc::clone(&probe.spec.definition);
        let outcome = self.parts.checker.check_text(&definition, &mut grounds.facts)?;
        refuse(definition.as_str(), &outcome, None)?;
        if probe.is_to_record() {
            grounds.observed.switches.require_firing(outcome.definition.kind, outcome.report.arming)?;
        }
        let mut probe = Probe { state: probe.settled(), ..probe }.guarded(guarded).resolved(&outcome);
        let line = self.parts.checker.kernel_line(&outcome.definition, probe.name.parts());
        probe.record.kernel_definition = line.text;
        let steps = step::define(&probe.kernel_definition, Aim::of(&probe));
        let job = Job::define(probe, outcome, steps);
        self.judge_host_event_filter(&job)?;
        Ok(job)
    }
}

impl UpdateRequest {
    /// What the audit log calls it.
    pub(super) fn change(&self) -> &'static str {
        let is_label = self.is_about_the_row_alone() && self.definition.is_none() && self.metadata.is_empty();
        match (self.accept, is_label) {
            (true, _) => "accept",
            (false, true) => "label",
            (false, false) => "update",
        }
    }

    /// Whether it changes something, and only in the row.
    pub(super) fn is_about_the_row_alone(&self) -> bool {
        // A definition equal to the present one is not a change.
        let of_row = !self.labels.is_empty() || !self.metadata.is_empty() || self.definition.is_some();
        self.enabled.is_none() && self.filter.is_none() && of_row
    }

    /// Whether it only arms a probe again that was disarmed for its cost.
    fn only_ends_trip(&self, probe: &Probe) -> bool {
        let is_to_arm = probe.trip.is_some() && probe.spec.enabled && self.enabled == Some(true);
        is_to_arm
            && self.filter.is_none()
            && self.definition.is_none()
            && self.labels.is_empty()
            && self.metadata.is_empty()
    }
}

/// Refuses if the probe is not as the caller last read it.
pub(super) fn check_etag(probe: &Probe, etag: Option<&str>) -> Result<(), Error> {
    match etag {
        Some(etag) if etag != probe.etag() => {
            let message = format!("`{}` has changed: its etag is `{}` now", probe.name, probe.etag());
            Err(Error::of_probe(Reason::ETAG_MISMATCH, &probe.name, message).with("etag", &probe.etag()))
        }
        _ => Ok(()),
    }
}

/// The refusal of a definition that is of another probe, `found`.
pub(super) fn of_another(found: &str, name: &ProbeName) -> Error {
    let message = format!(
        "the definition is of `{found}`, and the probe is `{name}`: write `{name}` in it, or make another probe of it"
    );
    Error::bad_argument("definition", message)
}
