//! Creation of a probe: whether it can be made, and by which steps.
//!
//! Owns the judgement of a new definition and its state once the kernel has it. Writes nothing:
//! [`super::change`] does.

use std::sync::Arc;

use super::command::{Changed, CreateRequest};
use super::controller::Controller;
use super::guard::Guarded;
use super::job::Job;
use super::judge::{Grounds, Judged, Work};
use super::observed::{KPROBES_ON, Switches};
use super::source::host_event_fields;
use super::step::{self, Aim};
use super::update::of_another;
use super::{Probe, Sight};
use crate::auth::Caller;
use crate::error::{Error, Reason};
use crate::store::{ProbeSpec, Record};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{Metadata, Moment, ProbeName};
use kprobed_verdict::checker::{Against, CheckOutcome, Checker, Taken};
use kprobed_verdict::validate::Arming;

impl Controller {
    /// Whether a caller can have a probe made that stays.
    pub(super) async fn judge_creation(
        &self,
        caller: &Caller,
        request: CreateRequest,
        grounds: &mut Grounds<'_>,
    ) -> Result<Judged, Error> {
        self.require_text(caller, &request.definition, request.name.as_ref(), &request.labels)?;
        if let Some(key) = &request.request
            && let Some(uid) = self.parts.store.carried_out(key).await?
        {
            return Ok(Judged::Done(Changed::Probe(self.repeated(caller, key, uid)?)));
        }
        let lease = request.metadata.lease.clone().flatten();
        let request = CreateRequest { metadata: self.with_hold(request.metadata)?, ..request };
        let told = |taken| Sight::new(&self.parts.rights, caller.clone()).told(&self.parts.registry, taken);
        let key = request.request.clone();
        let job = new_probe(&self.parts.checker, (caller, &told), request, grounds, &|| self.leases.now())?;
        self.judge_host_event_filter(&job)?;
        let rule = self.require(caller, &job.probe)?;
        self.require_lease(caller, &job.probe.name, lease.as_ref())?;
        self.require_room(caller, &job.probe.name, &mut grounds.made_by)?;
        Ok(Judged::Work(vec![Work::new(None, job).asked("create", (caller, rule), key)]))
    }

    /// Has the kernel judge the filter of an event of the host that is to be recorded. That of a new definition can be
    /// judged only once the kernel has it.
    pub(super) fn judge_host_event_filter(&self, job: &Job) -> Result<(), Error> {
        let Probe { record, .. } = &job.probe;
        if !job.begins_host_event() || record.spec.filter.is_empty() {
            return Ok(());
        }
        let found = self.tracefs().host_event(&record.name)?;
        let event = found.ok_or_else(|| Error::no_event(&record.name))?;
        let shown = host_event_fields(self.tracefs(), &self.parts.checker, &record.name).ok();
        self.executor().judge_filter(&event, &record.spec.filter, shown.as_ref())
    }
}

/// Judges a probe that is to be made. Writes nothing. `told` is what its caller may know about a name that is taken. A
/// lease begins when the definition was checked: for the first one, the daemon reads the whole kernel.
pub(super) fn new_probe(
    checker: &Checker,
    (caller, told): (&Caller, &dyn Fn(Taken) -> Taken),
    request: CreateRequest,
    grounds: &mut Grounds<'_>,
    now: &dyn Fn() -> Moment,
) -> Result<Job, Error> {
    let mut outcome = checker.check_text(&request.definition, &mut grounds.facts)?;
    if let Some(name) = &request.name {
        outcome = outcome.named(name).map_err(|found| of_another(&found, name))?;
    }
    let taken = checker.taken(&outcome).map(told);
    refuse(request.definition.as_str(), &outcome, taken.as_ref())?;
    // A short form is kept as its line: the places of the warnings are in that one.
    if outcome.text != request.definition && !outcome.definition.warnings.is_empty() {
        let kept = checker.check_text(&outcome.text, &mut grounds.facts)?;
        outcome.definition.warnings = kept.definition.warnings;
    }
    if request.enabled {
        grounds.observed.switches.require_firing(outcome.definition.kind, outcome.report.arming)?;
    }
    if request.stack {
        require_stacks(&outcome, grounds)?;
    }
    let line = checker.new_line(&outcome.definition, &grounds.claimed);
    let now = now();
    let metadata = Metadata::default().changed(request.metadata, &now);
    let CreateRequest { enabled, filter, stack, labels, .. } = request;
    let spec = ProbeSpec { definition: Arc::clone(&outcome.text), enabled, filter, stack, labels, metadata };
    let name = ProbeName::new(&line.group, &line.event)
        .map_err(|error| Error::bad_argument("definition", error.to_string()))?;
    if !grounds.claimed.insert(name.clone()) {
        return Err(Error::twice(name));
    }
    let record = Record::new(name, spec, line.text, now.wall).by(&caller.principal);
    Ok(creation(record, outcome))
}

/// Refuses a probe whose call stacks the kernel would not record, or not whole.
pub(super) fn require_stacks(outcome: &CheckOutcome, grounds: &mut Grounds<'_>) -> Result<(), Error> {
    if !grounds.facts.get()?.behaviour.has_stacks_in_instances {
        let message =
            "this kernel writes the call stacks of all instances to one buffer, which is not the daemon's";
        let fix = "a kernel from 5.18 on; or `kprobectl stacks`, on a kernel with `CONFIG_HIST_TRIGGERS`";
        return Err(Error::new(Reason::NOT_BUILT, message).fix(fix));
    }
    if outcome.predicted_arming() == Some(Arming::Optimised) {
        let message = "the kernel arms this probe by a jump, and cannot follow the call stack from there";
        let fix = "a probe at the entry of the function; or `sysctl debug.kprobes-optimization=0`";
        return Err(Error::bad_argument("stack", message).fix(fix));
    }
    let fields = outcome.definition.args.iter().filter_map(|argument| argument.name.as_ref());
    let fields: Vec<_> = fields.map(|name| name.text.as_str()).collect();
    if ["COMM", "comm"].iter().all(|name| fields.contains(name)) {
        let message = "the fields `COMM` and `comm` hide the name of the thread, so that the stacks of kprobed's own \
                       threads cannot be left out";
        return Err(Error::bad_argument("stack", message).fix("rename one of the fields"));
    }
    Ok(())
}

/// The steps that make a probe whose definition was checked.
pub(super) fn creation(record: Record, outcome: CheckOutcome) -> Job {
    let mut probe = Probe::checked(record, &outcome);
    if outcome.definition.is_of_host_event() {
        // Its name is what it means.
        probe = probe.guarded(Guarded::default());
    }
    let steps = step::define(&probe.kernel_definition, Aim::of(&probe));
    Job::define(probe, outcome, steps)
}

impl Switches {
    /// Refuses to enable a probe that would not fire. A probe that is armed through ftrace never
    /// fires while ftrace is switched off, and no probe does while kprobes are, but that of an event of the
    /// host. If it is enabled then, it does not fire even after kprobes are switched on again (kernel/kprobes.c:
    /// enable_kprobe clears its mark only while they are on, and arm_all_kprobes skips what is
    /// marked).
    pub(super) fn require_firing(&self, kind: ProbeKind, arming: Option<Arming>) -> Result<(), Error> {
        if kind == ProbeKind::Event {
            return Ok(());
        }
        if !self.kprobes {
            let message =
                "no probe fires while kprobes are switched off (`/sys/kernel/debug/kprobes/enabled` is 0)";
            return Err(Error::new(Reason::KPROBES_DISABLED, message).fix(KPROBES_ON));
        }
        if arming == Some(Arming::Ftrace) && !self.ftrace {
            let message = "probes at function entries do not fire while `kernel.ftrace_enabled` is 0";
            return Err(Error::new(Reason::FTRACE_DISABLED, message).fix("sysctl kernel.ftrace_enabled=1"));
        }
        Ok(())
    }
}

/// Turns a verdict into an error.
pub(super) fn refuse(text: &str, outcome: &CheckOutcome, taken: Option<&Taken>) -> Result<(), Error> {
    Err(match outcome.against(taken) {
        None => return Ok(()),
        Some(Against::Place(refusal)) => {
            let mut found = vec![refusal.clone().or_hint(|| outcome.nearest().hint())];
            found.extend_from_slice(&outcome.unread);
            Error::definition(text, &found)
        }
        Some(Against::Text(problem)) => Error::definition(text, std::slice::from_ref(problem)),
        Some(Against::Name(taken)) => Error::taken(text, taken),
    })
}
