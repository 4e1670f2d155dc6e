//! Requests for changes of probes: what is done for each, all judged by one look at the kernel; and what would be done.
//!
//! Owns which changes are made together, and the audit entries of those that are refused. Never judges a definition
//! itself: [`super::create`], [`super::update`], [`super::remove`] and [`super::adopt`] do. Writes
//! nothing: [`super::change`] does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kprobed_audit::Entry;
use kprobed_rights::RuleName;

use super::audited::{self, refused};
use super::command::{Applied, Asked, Change, Changed, Removed, Unit};
use super::controller::Controller;
use super::job::Job;
use super::observed::Observed;
use super::plan::{KernelPlan, PlannedStep};
use super::remove::Room;
use super::step::Step;
use super::{Probe, ProbeState, Sight};
use crate::auth::Caller;
use crate::error::Error;
use crate::store::{Edit, RequestKey};
use kprobed_host::kernel::RecentFacts;
use kprobed_lang::model::{HitProfile, ProbeName, ProbeUid};

/// What is done for one change of a request.
pub(super) enum Judged {
    /// Nothing is left to do: an earlier request with the same key asked for it.
    Done(Changed),
    /// This, all of it or nothing.
    Work(Vec<Work>),
}

/// A change of one probe: what is stored of it before and after, and the steps in the kernel.
pub(super) struct Work {
    /// The change of the request that it is a part of.
    pub(super) asked: usize,
    /// All of a group are made, or none.
    pub(super) group: usize,
    /// The probe as it was. Absent for a new one.
    pub(super) before: Option<Arc<Probe>>,
    /// It did not record what was asked, so its ledger does not know what happened to its hits.
    pub(super) drifted: bool,
    /// The request was to enable a probe that was there.
    pub(super) is_to_record: bool,
    /// The probe as it is to be, and the steps that lead there.
    pub(super) job: Job,
    /// Nothing is stored of it any more.
    pub(super) forgets: bool,
    pub(super) request: Option<RequestKey>,
    /// What the audit log says of it.
    pub(super) entry: Option<Arc<Entry>>,
    /// The daemon does it by itself, at once and whatever the database says: it takes from the kernel what must not go
    /// on.
    pub(super) insists: bool,
    /// Its last hit counts, if it is taken out of the kernel.
    pub(super) profile: Option<HitProfile>,
    /// What its owner should know.
    pub(super) note: &'static str,
    /// The kernel was changed for it, or that was tried.
    pub(super) is_carried_out: bool,
    /// Why it was not made.
    pub(super) error: Option<Error>,
}

impl Work {
    pub(super) fn new(before: Option<Arc<Probe>>, job: Job) -> Self {
        Self {
            asked: 0,
            group: 0,
            before,
            drifted: false,
            is_to_record: false,
            job,
            forgets: false,
            request: None,
            entry: None,
            insists: false,
            profile: None,
            note: "",
            is_carried_out: false,
            error: None,
        }
    }

    /// Takes a probe out of the kernel, after which it is this; or nothing is stored of it any more.
    pub(super) fn taking_out(probe: &Arc<Probe>, after: Option<Probe>, profile: Option<HitProfile>) -> Self {
        let forgets = after.is_none();
        let job = Job::change(after.unwrap_or_else(|| Probe::clone(probe)), vec![Step::Delete]);
        Self { forgets, profile, ..Self::new(Some(Arc::clone(probe)), job) }
    }

    /// The same as what a caller asks for, whom this rule allows it.
    pub(super) fn asked(
        self,
        change: &'static str,
        by: (&Caller, Option<RuleName>),
        request: Option<RequestKey>,
    ) -> Self {
        let entry = audited::of_probe(change, by, request.as_ref(), &self.probe().record);
        Self { request, entry: Some(Arc::new(entry)), ..self }
    }

    /// Whether it makes a probe of an event that the kernel has.
    pub(super) const fn adopts(&self) -> bool {
        self.before.is_none() && self.job.probe.record.adopted
    }

    /// Whether the kernel may have what it makes. Steps that have failed are taken back.
    pub(super) const fn is_made(&self) -> bool {
        self.is_carried_out && self.job.outcome.is_ok()
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.job.probe
    }

    /// What is stored before and after it.
    pub(super) fn edit(&self) -> Edit {
        let before = self.before.as_ref().map(|before| &before.record);
        let after = (!self.forgets).then_some(&self.job.probe.record);
        let edit = Edit::new(before, after);
        Edit { request: self.request.clone(), entry: self.entry.clone(), ..edit }
    }

    /// The outcome, if it was only checked.
    fn expected(self) -> Changed {
        if self.forgets {
            let name = self.probe().name.clone();
            return Changed::Removed(Removed { name, profile: self.profile, note: "" });
        }
        // The kernel decides which state a new one will have.
        let is_new = self.before.is_none() && !self.adopts();
        let probe = self.job.probe;
        let state = if is_new { ProbeState::Pending } else { probe.state.clone() };
        Changed::Probe(Arc::new(Probe { state, ..probe }))
    }
}

/// Each of these works is a group of its own.
pub(super) fn each(mut works: Vec<Work>) -> Vec<Work> {
    for (index, work) in works.iter_mut().enumerate() {
        (work.asked, work.group) = (index, index);
    }
    works
}

/// The order in which works are carried out: what makes room for another one of its name, then what changes, and then
/// what only goes, when nothing else can fail any more. Returns the indexes of each.
pub(super) fn stages(works: &[Work]) -> [Vec<usize>; 3] {
    let makes: HashSet<_> = works
        .iter()
        .filter(|work| work.before.is_none())
        .map(|work| (work.group, &work.probe().name))
        .collect();
    let mut stages = [Vec::new(), Vec::new(), Vec::new()];
    for (index, work) in works.iter().enumerate() {
        let [replaced, changed, deleted] = &mut stages;
        if !work.job.takes_out() {
            changed.push(index);
        } else if makes.contains(&(work.group, &work.probe().name)) {
            replaced.push(index);
        } else {
            deleted.push(index);
        }
    }
    stages
}

/// What the changes of one request are judged by: read once for all of them.
pub(super) struct Grounds<'a> {
    pub(super) facts: RecentFacts<'a>,
    /// The probes that are to be changed as the kernel has them, and what keeps probes from firing
    /// on the whole host.
    pub(super) observed: Observed,
    /// Names that this request gives to new probes.
    pub(super) claimed: HashSet<ProbeName>,
    /// How many probes each account has, with those that this request makes.
    pub(super) made_by: HashMap<String, u64>,
    /// The last hit counts of all probes, if some are deleted; or why they cannot be read.
    pub(super) profiles: Result<HashMap<ProbeUid, HitProfile>, Error>,
    /// Probes that it changes, and whether it deletes them.
    changed: HashMap<ProbeUid, bool>,
}

impl<'a> Grounds<'a> {
    pub(super) fn new(facts: RecentFacts<'a>, observed: Observed) -> Self {
        Self {
            facts,
            observed,
            claimed: HashSet::new(),
            made_by: HashMap::new(),
            profiles: Ok(HashMap::new()),
            changed: HashMap::new(),
        }
    }

    /// Refuses a second change of a probe. A probe that another change deletes counts as not found.
    pub(super) fn claim(&mut self, probe: &Probe, deletes: bool) -> Result<(), Error> {
        match self.changed.insert(probe.uid, deletes) {
            None => Ok(()),
            Some(true) => Err(Error::no_probe(&probe.name)),
            Some(false) => Err(Error::twice(&probe.name)),
        }
    }
}

impl Controller {
    /// Carries out the changes of a request at the cost of one.
    pub(super) async fn apply(&mut self, changes: Vec<Asked>, unit: Unit) -> Applied {
        let judged = self.judge(&changes).await;
        for (asked, judged) in changes.iter().zip(&judged) {
            if let Some(entry) = judged.as_ref().err().and_then(|error| refused(asked, error)) {
                self.parts.rights.audit().note(entry);
            }
        }
        let refusal = judged.iter().find_map(|judged| judged.as_ref().err().map(ToString::to_string));
        let (mut to_do, mut to_check) = (Vec::new(), Vec::new());
        let mut outcomes = Vec::with_capacity(changes.len());
        for (index, (asked, judged)) in changes.iter().zip(judged).enumerate() {
            let batch_refusal = refusal.as_deref().filter(|_| unit == Unit::All);
            outcomes.push(match (judged, batch_refusal) {
                (Err(error), _) => Err(error),
                (Ok(Judged::Done(changed)), _) => Ok(changed),
                (Ok(Judged::Work(_)), Some(cause)) => Err(Error::batch_failed(cause)),
                (Ok(Judged::Work(works)), None) => {
                    let group = if unit == Unit::All { 0 } else { index };
                    let works = works.into_iter().map(|work| Work { asked: index, group, ..work });
                    let to = if asked.change.validate_only() { &mut to_check } else { &mut to_do };
                    to.extend(works);
                    Err(Error::stopping())
                }
            });
        }
        let mut plan = self.plan(&to_check);
        if let Some(Asked { caller, .. }) = changes.first() {
            // What else is recorded is in it too.
            let sight = Sight::new(&self.parts.rights, caller.clone());
            plan.retain(|step| sight.shows_step(&self.parts.registry, step));
        }
        let asked: Vec<_> = to_do.iter().map(|work| work.asked).collect();
        let done = asked.into_iter().zip(self.change(to_do).await);
        let checked = to_check.into_iter().map(|work| (work.asked, Ok(work.expected())));
        for (index, outcome) in done.chain(checked) {
            // What was deleted to be replaced is not the outcome.
            let is_whole = |place: &Result<Changed, Error>| matches!(place, Ok(Changed::Probe(_)));
            if let Some(place) = outcomes.get_mut(index).filter(|place| !is_whole(place)) {
                *place = outcome;
            }
        }
        Applied { outcomes, plan }
    }

    /// Judges each change. Writes nothing.
    async fn judge(&mut self, changes: &[Asked]) -> Vec<Result<Judged, Error>> {
        let checker = Arc::clone(&self.parts.checker);
        let targets = changes.iter().filter_map(|one| match &one.change {
            Change::Update(request) => self.probe(&one.caller, &request.name).ok(),
            _ => None,
        });
        let observed = self.observer.observe(&targets.collect::<Vec<_>>());
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        if changes.iter().any(|one| matches!(one.change, Change::Remove(_))) {
            grounds.profiles = self.profiles_by_uid();
        }
        let mut judged = Vec::with_capacity(changes.len());
        for Asked { caller, change } in changes {
            judged.push(match change.clone() {
                Change::Create(request) => self.judge_creation(caller, request, &mut grounds).await,
                Change::Update(request) => self.judge_update(caller, request, &mut grounds).await,
                Change::Remove(request) => self.judge_removal(caller, request, &mut grounds).await,
                Change::Adopt(request) => self.judge_adoption(caller, request, &mut grounds).await,
            });
        }
        judged
    }

    /// The answer to a request that was carried out before: its probe as it is now, if the caller may look at it.
    pub(super) fn repeated(
        &self,
        caller: &Caller,
        request: &RequestKey,
        uid: ProbeUid,
    ) -> Result<Arc<Probe>, Error> {
        // If the probe has gone since, the outcome is gone with it.
        let probe = self.parts.registry.by_uid(uid).ok_or_else(|| Error::no_probe(&request.id))?;
        Sight::new(&self.parts.rights, caller.clone()).require(&probe)?;
        let observed = self.observer.observe(std::slice::from_ref(&probe));
        Ok(self.parts.registry.seen(observed.shown(&probe)))
    }

    /// What would be done, in the order in which [`Self::change`] does it.
    pub(super) fn plan(&self, works: &[Work]) -> Vec<PlannedStep> {
        let options = &self.parts.instance_options;
        let other = self.parts.instance.next_name(options);
        let mut plan = KernelPlan::new(self.parts.instance.name(), &other, options.buffer_kib);
        let [replaced, changed, deleted] = stages(works);
        let of = |stage: &[usize]| stage.iter().filter_map(|index| works.get(*index)).collect::<Vec<_>>();
        self.plan_deletions(&mut plan, &of(&replaced));
        plan.change(&of(&changed).iter().map(|work| &work.job).collect::<Vec<_>>());
        if works.iter().any(|work| work.is_to_record)
            && let Ok(switches) = self.observer.switches(&self.parts.instance)
        {
            plan.restore(switches.harmful());
        }
        self.plan_deletions(&mut plan, &of(&deleted));
        plan.steps
    }

    fn plan_deletions(&self, plan: &mut KernelPlan, works: &[&Work]) {
        let there = works.iter().filter_map(|work| work.before.as_ref());
        let there: Vec<_> = there.filter(|probe| probe.own.is_some()).collect();
        let room = there.iter().any(|probe| self.is_wiping(probe)).then(|| {
            let doomed: HashSet<_> = there.iter().map(|probe| probe.uid).collect();
            Room::beside(plan.recorded(self.recorded_besides(&doomed)), there.len())
        });
        let doomed: Vec<_> = there.iter().filter_map(|probe| probe.own.as_ref()).collect();
        plan.delete(&doomed, room.as_ref());
    }
}
