//! Application of changes to probes: judge a change, store the intent, carry it out, store the
//! outcome, answer.
//!
//! Owns that order, for one change and for many. Never judges a change itself: [`super::create`],
//! [`super::update`] and [`super::remove`] do, which write nothing for that. [`super::execute`]
//! writes to the kernel, and for deletions [`super::remove`] does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kprobed_audit::Entry;

use super::Probe;
use super::account::{Account, Sample};
use super::audited::{failed, refused};
use super::batch::Batch;
use super::command::{Applied, Asked, Change, Changed, Unit};
use super::controller::{Controller, LiveProbe};
use super::execute::Executor;
use super::job::Job;
use super::observed::Observed;
use super::remove::Doomed;
use super::replace::Replacement;
use crate::error::{Error, Reason};
use crate::store::{Begun, Intended, Intent, ProbeSpec, Record, RequestKey, Settled, StoreError, Undo};
use kprobed_host::kernel::RecentFacts;
use kprobed_lang::model::{Lease, ProbeName, ProbeUid};

/// What is done for one change.
pub(super) enum Judged {
    /// Nothing is left to do: an earlier request with the same key asked for it.
    Done(Changed),
    /// To make a probe, or to change one.
    Work(Box<Work>),
    /// To delete one.
    Delete(Box<Doomed>),
    /// To put another one in its place.
    Replace(Box<Replacement>),
}

/// A probe that is to be made or changed.
pub(super) struct Work {
    /// The intent to store first. Absent for a repair: what is wanted does not change.
    pub(super) intent: Option<Intent>,
    pub(super) request: Option<RequestKey>,
    /// What the audit log says of it, with the intent.
    pub(super) entry: Option<Arc<Entry>>,
    /// The probe as it was. Absent for a new one.
    pub(super) before: Option<Before>,
    pub(super) job: Job,
}

impl Work {
    fn ends_trip(&self) -> bool {
        ends_trip(self.intent.as_ref(), self.before.as_ref(), &self.job)
    }
}

/// Whether a client has switched a probe that was disarmed for its cost.
pub(super) fn ends_trip(intent: Option<&Intent>, before: Option<&Before>, job: &Job) -> bool {
    let was_tripped = before.is_some_and(|before| before.probe.tripped.is_some());
    intent.is_some() && was_tripped && job.probe.tripped.is_none()
}

/// A probe before its change.
pub(super) struct Before {
    pub(super) probe: Arc<Probe>,
    /// It did not record what was asked, so its ledger does not know what happened to its hits.
    pub(super) drifted: bool,
    /// The request was to enable it.
    pub(super) is_to_record: bool,
}

/// What the changes of one batch are judged by: read once for all of them.
pub(super) struct Grounds<'a> {
    pub(super) facts: RecentFacts<'a>,
    /// The probes that are to be changed as the kernel has them, and what keeps probes from firing
    /// on the whole host.
    pub(super) observed: Observed,
    /// Names that this batch gives to new probes.
    pub(super) claimed: HashSet<ProbeName>,
    /// How many probes each account has, with those that this batch makes.
    pub(super) made_by: HashMap<String, u64>,
    /// Requests that are known not to be carried out yet, each by its principal and its id.
    pub(super) new_requests: HashSet<(String, String)>,
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
            new_requests: HashSet::new(),
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
    /// Carries out changes at the cost of one: one transaction before and one after, and each list
    /// of the kernel is read once.
    pub(super) async fn apply(&mut self, changes: Vec<Asked>, unit: Unit) -> Applied {
        let checked: Vec<_> = changes.iter().map(|one| one.change.validate_only()).collect();
        let judged = self.judge(&changes).await;
        for (asked, judged) in changes.iter().zip(&judged) {
            if let Some(entry) = judged.as_ref().err().and_then(|error| refused(asked, error)) {
                self.parts.rights.audit().note(entry);
            }
        }
        let refusal = judged.iter().find_map(|judged| judged.as_ref().err().map(ToString::to_string));
        let mut outcomes = Vec::new();
        let (mut to_do, mut to_check) = (Batch::default(), Batch::default());
        for (index, (judged, is_checked)) in judged.into_iter().zip(checked).enumerate() {
            outcomes.push(match (judged, unit) {
                (Err(error), _) => Some(Err(error)),
                (Ok(Judged::Done(changed)), _) => Some(Ok(changed)),
                (Ok(_), Unit::All) if let Some(cause) = &refusal => Some(Err(Error::batch_failed(cause))),
                (Ok(judged), _) => {
                    let batch = if is_checked { &mut to_check } else { &mut to_do };
                    batch.add(index, judged, unit);
                    None
                }
            });
        }
        let plan = self.plan(&to_check);
        let done = self.carry_out_batch(to_do).await;
        let checked = to_check.into_expected().into_iter().map(|(index, changed)| (index, Ok(changed)));
        for (index, outcome) in checked.chain(done) {
            if let Some(place) = outcomes.get_mut(index) {
                *place = Some(outcome);
            }
        }
        let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(Error::stopping())));
        Applied { outcomes: outcomes.collect(), plan }
    }

    /// Outcomes, each with the index of its change in the request.
    async fn carry_out_batch(&mut self, batch: Batch) -> Vec<(usize, Result<Changed, Error>)> {
        let Batch { work, doomed, together } = batch;
        let (changes, work): (Vec<_>, Vec<_>) = work.into_iter().unzip();
        let (deletions, doomed): (Vec<_>, Vec<_>) = doomed.into_iter().unzip();
        let (members, together): (Vec<_>, Vec<_>) = together.into_iter().unzip();
        let mut ended = self.intend_and_do(work, doomed).await;
        ended.extend(self.change_together(together).await);
        changes.into_iter().chain(deletions).chain(members).zip(ended).collect()
    }

    /// Stores the intents, and carries them out. The outcomes of the work come first.
    pub(super) async fn intend_and_do(
        &mut self,
        mut work: Vec<Work>,
        doomed: Vec<Doomed>,
    ) -> Vec<Result<Changed, Error>> {
        if work.is_empty() && doomed.is_empty() {
            return Vec::new();
        }
        let intents = work.iter().filter_map(|one| {
            let intent = one.intent.clone()?;
            // That of a creation is remembered when it is settled.
            let request = one.request.clone().filter(|_| !matches!(intent, Intent::Create { .. }));
            let (entry, ends_trip) = (one.entry.clone(), one.ends_trip());
            Some(Intended { intent, request, reversal: None, entry, ends_trip })
        });
        let intents = intents.chain(doomed.iter().map(|doomed| Intended {
            intent: Intent::Remove(doomed.probe.uid),
            request: doomed.request.clone(),
            reversal: None,
            entry: doomed.entry.clone(),
            ends_trip: false,
        }));
        let intents = intents.collect::<Vec<_>>();
        let ending: Vec<_> = work.iter().filter(|one| one.ends_trip()).map(|one| one.job.probe.uid).collect();
        let is_held = |probe: &Probe| matches!(probe.spec.metadata.lease, Some(Lease::Held { .. }));
        let of_work = work.iter().map(|one| is_held(&one.job.probe));
        let is_held: Vec<_> = of_work.chain(doomed.iter().map(|doomed| is_held(&doomed.probe))).collect();
        let Begun { uids, not_durable } = match self.parts.store.begin(&intents).await {
            Ok(begun) => begun,
            Err(error) => {
                self.end_trips(&ending);
                let error = Error::from(error);
                return vec![Err(error); work.len() + doomed.len()];
            }
        };
        for (one, uid) in work.iter_mut().zip(uids) {
            one.job.probe.record.uid = uid;
            self.repairs.forget(uid);
        }
        let mut outcomes = self.change(work).await;
        self.end_trips(&ending);
        outcomes.extend(self.delete(doomed).await);
        let Some(error) = not_durable else { return outcomes };
        let judged = outcomes.into_iter().zip(is_held).map(|(outcome, is_held)| match outcome {
            Ok(changed) if !is_held => Err(self::not_durable(&changed, &error)),
            // The next start deletes a probe that was held, whatever is written of it.
            outcome => outcome,
        });
        judged.collect()
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
        grounds.new_requests = self.new_requests(changes).await;
        let deletes = changes.iter().any(|one| matches!(one.change, Change::Remove(_)));
        let profiles = if deletes { self.hit_profiles() } else { Ok(Vec::new()) };
        let profiles = profiles.map(|profiles| profiles.into_iter().map(|one| (one.uid, one)).collect());
        let mut judged = Vec::with_capacity(changes.len());
        for Asked { caller, change } in changes {
            judged.push(match change.clone() {
                Change::Create(request) => self.judge_creation(caller, request, &mut grounds).await,
                Change::Update(request) => self.judge_update(caller, request, &mut grounds).await,
                Change::Remove(request) => {
                    self.judge_removal(caller, request, &mut grounds, profiles.as_ref()).await
                }
            });
        }
        judged
    }

    /// Carries out what is intended, and settles it.
    pub(super) async fn change(&mut self, work: Vec<Work>) -> Vec<Result<Changed, Error>> {
        if work.is_empty() {
            return Vec::new();
        }
        self.prepare(&work);
        let is_to_record = |one: &Work| one.before.as_ref().is_some_and(|before| before.is_to_record);
        let is_to_record = work.iter().any(is_to_record);
        let (mut jobs, work): (Vec<_>, Vec<_>) = work
            .into_iter()
            .map(|Work { intent, request, entry, before, job }| (job, (intent, request, entry, before)))
            .unzip();
        self.executor().carry_out(&mut jobs);
        if is_to_record {
            self.restore_instance();
        }
        let (mut settled, mut undo) = (Vec::new(), Vec::new());
        let mut done = Vec::with_capacity(jobs.len());
        for (mut job, (intent, request, entry, before)) in jobs.into_iter().zip(work) {
            self.note(&mut job, before.as_ref());
            if let Err(error) = std::mem::replace(&mut job.outcome, Ok(())) {
                // A new probe that is left in the kernel is removed by the next start: its row
                // stays as it is.
                if !job.left_behind || !matches!(intent, Some(Intent::Create { .. })) {
                    undo.extend(undone(job.probe.uid, intent, request));
                }
                undo.extend(failed(entry.as_deref(), &error.to_string()));
                done.push(Err(error));
                continue;
            }
            let is_new = matches!(intent, Some(Intent::Create { .. }));
            if !is_known(&job.probe, before.as_ref())
                && let Some(outcome) = settling(&job, is_new)
            {
                settled.push((outcome, request.clone().filter(|_| is_new)));
            }
            done.push(Ok((job, intent, request, entry, before)));
        }
        let stored = if settled.is_empty() { Ok(()) } else { self.parts.store.settle(&settled).await };
        let stored = stored.map_err(Error::from);
        let (mut outcomes, mut lost) = (Vec::with_capacity(done.len()), Vec::new());
        for one in done {
            outcomes.push(match (one, &stored) {
                (Err(error), _) => Err(error),
                (Ok((job, intent, request, entry, before)), Err(error))
                    if (job.basis.is_some() || matches!(intent, Some(Intent::Create { .. })))
                        && !is_known(&job.probe, before.as_ref()) =>
                {
                    undo.extend(failed(entry.as_deref(), &error.to_string()));
                    lost.push((Arc::new(job.probe), intent, request));
                    Err(error.clone())
                }
                (Ok((job, _, _, _, before)), _) => Ok(self.changed(job.probe, before.as_ref())),
            });
        }
        let probes: Vec<_> = lost.iter().map(|(probe, ..)| Arc::clone(probe)).collect();
        for (is_out, (probe, intent, request)) in self.take_back(&probes).into_iter().zip(lost) {
            // What is left in the kernel is removed by the next start.
            if is_out || !matches!(intent, Some(Intent::Create { .. })) {
                undo.extend(undone(probe.uid, intent, request));
            }
        }
        self.parts.store.undo_all(undo).await;
        self.note_sharing();
        self.as_they_are(outcomes)
    }

    /// What has to happen before anything is written to the kernel.
    fn prepare(&mut self, work: &[Work]) {
        let redefined = work.iter().filter(|one| one.before.is_some() && one.job.basis.is_some());
        let redefined: Vec<_> = redefined.map(|one| one.job.probe.uid).collect();
        if !redefined.is_empty() {
            // Events of lost probes that the buffers still hold are read under their old names.
            self.readers.drain();
            self.forget_live(&redefined);
        }
        for one in work {
            self.prepare_account(one.before.as_ref(), one.job.probe.uid);
        }
    }

    /// The account of a probe that did not record what was asked suspects what is missing.
    pub(super) fn prepare_account(&mut self, before: Option<&Before>, uid: ProbeUid) {
        if before.is_some_and(|before| before.drifted)
            && let Some(live) = self.live.get_mut(&uid)
        {
            live.account.suspect();
        }
    }

    /// Enters into the account of a probe what was done, whether it succeeded or not.
    pub(super) fn note(&mut self, job: &mut Job, before: Option<&Before>) {
        let Job { probe, outcome, source, hits, .. } = job;
        if let (Ok(()), Some(source)) = (&outcome, source.take()) {
            let baseline = Sample { losses: self.losses(), ..Sample::default() };
            let account = Account::begin(baseline, probe.is_to_record(), !probe.spec.filter.is_empty());
            self.live.insert(probe.uid, LiveProbe { source, ever_enabled: probe.is_to_record(), account });
            return;
        }
        let Some(before) = before else { return };
        // A probe that was switched on and off again has recorded in between.
        let hits_now = if outcome.is_ok() { *hits } else { self.hits_of(&probe.name) };
        let Some(live) = self.live.get_mut(&probe.uid) else { return };
        if probe.is_to_record()
            && !before.probe.is_to_record()
            && let Some(hits) = *hits
        {
            // The hits while it was disabled end here.
            live.account.note_enabled(hits);
        }
        let now = if outcome.is_ok() { &*probe } else { &*before.probe };
        if !now.spec.filter.is_empty() {
            live.account.note_filter();
        }
        if !now.is_to_record()
            && let Some(hits) = hits_now
        {
            live.account.note_disabled(hits);
        }
    }

    /// A probe was made or changed, and that is durable.
    pub(super) fn changed(&mut self, probe: Probe, before: Option<&Before>) -> Changed {
        if probe.is_to_record() && before.is_none_or(|before| !before.probe.is_to_record()) {
            self.budget.note_armed();
        }
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= probe.is_to_record();
            if before.is_some() {
                live.source.origin.set_labels(probe.spec.labels.clone());
            }
        }
        let Record { name, uid, spec, .. } = &probe.record;
        let ProbeSpec { enabled, filter, labels, .. } = spec;
        if before.is_some() {
            tracing::info!(probe = %name, enabled, filter, %labels, "updated");
        } else {
            tracing::info!(probe = %name, %uid, state = ?probe.state, "created");
        }
        let probe = self.parts.registry.put(probe);
        // What a subscriber may receive depends on the registry: a new probe was unknown until now.
        self.parts.hub.selections_changed();
        Changed::Probe(probe)
    }

    /// The outcomes, with the states that the probes have in the kernel now.
    pub(super) fn as_they_are(&self, outcomes: Vec<Result<Changed, Error>>) -> Vec<Result<Changed, Error>> {
        let probes = outcomes.iter().filter_map(|outcome| match outcome {
            Ok(Changed::Probe(probe)) => Some(Arc::clone(probe)),
            _ => None,
        });
        let observed = self.observer.observe(&probes.collect::<Vec<_>>());
        let show = |changed| match changed {
            Changed::Probe(probe) => Changed::Probe(self.parts.registry.seen(observed.shown(&probe))),
            removed @ Changed::Removed(_) => removed,
        };
        outcomes.into_iter().map(|outcome| outcome.map(show)).collect()
    }

    /// Carries out steps in the daemon's present instance.
    pub(super) fn executor(&self) -> Executor<'_> {
        Executor::new(&self.parts, &self.sources)
    }
}

/// The outcome of a change that disarmed a probe, and that nothing but the memory of the daemon knows of.
fn not_durable(changed: &Changed, error: &StoreError) -> Error {
    let (name, done) = match changed {
        Changed::Probe(probe) => (&probe.name, "disabled"),
        Changed::Removed(removed) => (&removed.name, "deleted"),
    };
    let message = format!(
        "`{name}` is {done} and records nothing, but that is not durable: {error}; if the daemon ends before that can be written, its next start \
         brings the probe back"
    );
    Error::of_probe(Reason::NOT_DURABLE, name, message)
        .fix("make room on the file system of the state directory: the daemon then writes it down by itself")
}

/// Whether the database knows already how the kernel lists an event that was defined anew.
fn is_known(probe: &Probe, before: Option<&Before>) -> bool {
    let listing = |probe: &Probe| probe.own.as_ref().map(|own| own.listing.clone());
    before.is_some_and(|before| {
        let known = &before.probe;
        known.kernel_definition == probe.kernel_definition && listing(known) == listing(probe)
    })
}

/// The undo that corrects the database when a change was not made after all.
pub(super) fn undone(uid: ProbeUid, intent: Option<Intent>, request: Option<RequestKey>) -> Option<Undo> {
    Some(match intent? {
        Intent::Create { .. } | Intent::Adopt { .. } => Undo::Probe(uid),
        Intent::Update { before, meaning, .. } => {
            Undo::Update { before, meaning: meaning.and_then(|accepted| accepted.before), request }
        }
        Intent::Remove(_) => Undo::Deletion(uid),
    })
}

/// What is stored of a job that is done: how the kernel lists what it defined. A new probe that waits for its
/// module is not listed.
pub(super) fn settling(job: &Job, is_new: bool) -> Option<Settled> {
    let Job { probe, basis, .. } = job;
    let (uid, listing) = (probe.uid, probe.own.as_ref().map(|own| own.listing.clone()));
    if is_new {
        return Some(Settled::Created { uid, listing: listing.unwrap_or_default() });
    }
    basis.as_ref()?;
    let kernel_definition = probe.kernel_definition.clone();
    Some(Settled::Redefined { uid, kernel_definition, listing: listing? })
}

#[cfg(test)]
mod tests {
    use super::super::command::Removed;
    use super::*;
    use crate::control::probe::tests::probe;

    #[test]
    fn what_is_not_durable_is_an_outcome_of_its_own() {
        let probe = probe(1, "kprobes/open");
        let disk = StoreError::RequestReused("x".to_owned());
        let removed = Removed { name: probe.name.clone(), profile: None, note: "" };
        for (changed, done) in
            [(Changed::Removed(removed), "deleted"), (Changed::Probe(Arc::new(probe)), "disabled")]
        {
            let error = not_durable(&changed, &disk);
            assert_eq!(error.reason, Reason::NOT_DURABLE);
            let says =
                format!("`kprobes/open` is {done} and records nothing, but that is not durable: {disk}");
            assert!(error.message.starts_with(&says), "{}", error.message);
            assert!(error.value("probe") == Some("kprobes/open") && error.value("fix").is_some());
        }
    }
}
