//! Atomic groups of changes: all of a group are made, or none.
//!
//! Owns their order: what is replaced is removed first, and what is only deleted is removed last,
//! when nothing else can fail any more. If one change fails, those of its group that were made are
//! taken back: the database is restored, and the kernel is brought to that as if another program
//! had changed it. After a crash the next start does the same ([`crate::store::Undo::Reversal`]),
//! until all changes of a group are settled in one transaction. Never judges a change.

use std::collections::HashMap;
use std::sync::Arc;

use super::Probe;
use super::apply::{Before, Grounds, Work, ends_trip, settling, undone};
use super::audited;
use super::command::{Changed, Removed};
use super::controller::Controller;
use super::job::Job;
use super::remove::{Doomed, note};
use super::replace::Replacement;
use crate::error::Error;
use crate::store::{Intended, Intent, RequestKey, Settled, Undo};
use kprobed_audit::Entry;
use kprobed_lang::model::HitProfile;

/// One change of a group.
pub(super) enum Together {
    Work(Box<Work>),
    Delete(Box<Doomed>),
    Replace(Box<Replacement>),
}

/// A change under way.
struct Member {
    group: usize,
    /// What is to be made or changed.
    work: Option<Made>,
    /// The probe to remove.
    doomed: Option<Doomed>,
    /// `doomed` is out of the kernel.
    is_out: bool,
    /// What the owner of `doomed` should know.
    note: &'static str,
    error: Option<Error>,
}

struct Made {
    intent: Option<Intent>,
    request: Option<RequestKey>,
    entry: Option<Arc<Entry>>,
    before: Option<Before>,
    job: Job,
    /// The job was begun.
    begun: bool,
}

impl Made {
    fn ends_trip(&self) -> bool {
        ends_trip(self.intent.as_ref(), self.before.as_ref(), &self.job)
    }
}

impl Member {
    fn new(group: usize, change: Together) -> Self {
        let made = |Work { intent, request, entry, before, job }| Made {
            intent,
            request,
            entry,
            before,
            job,
            begun: false,
        };
        let (work, doomed) = match change {
            Together::Work(work) => (Some(made(*work)), None),
            Together::Delete(doomed) => (None, Some(*doomed)),
            Together::Replace(one) => (Some(made(one.work)), Some(one.doomed)),
        };
        Self { group, work, doomed, is_out: false, note: "", error: None }
    }

    /// The intents to store first.
    fn intended(&self) -> Vec<Intended> {
        let doomed = self.doomed.as_ref().map(|doomed| Intended {
            intent: Intent::Remove(doomed.probe.uid),
            request: doomed.request.clone(),
            reversal: Some(Box::new(doomed.probe.record.clone())),
            entry: doomed.entry.clone(),
            ends_trip: false,
        });
        let work = self.work.as_ref().and_then(|made| {
            let intent = made.intent.clone()?;
            let (request, reversal) = match (&intent, &made.before) {
                // Remembered when it is settled.
                (Intent::Create { .. }, _) | (_, None) => (None, None),
                (_, Some(before)) => (made.request.clone(), Some(Box::new(before.probe.record.clone()))),
            };
            let ends_trip = made.ends_trip();
            Some(Intended { intent, request, reversal, entry: made.entry.clone(), ends_trip })
        });
        doomed.into_iter().chain(work).collect()
    }

    /// What the audit log says of it.
    fn entry(&self) -> Option<&Entry> {
        let made = self.work.as_ref().and_then(|made| made.entry.as_deref());
        made.or_else(|| self.doomed.as_ref()?.entry.as_deref())
    }

    /// The probe before the change, if it remains when the change is taken back.
    fn before(&self) -> Option<&Arc<Probe>> {
        let changed = self.work.as_ref().and_then(|made| Some(&made.before.as_ref()?.probe));
        changed.or_else(|| Some(&self.doomed.as_ref()?.probe))
    }

    /// What the transaction stores that settles it.
    fn settled(&self) -> Vec<(Settled, Option<RequestKey>)> {
        let mut settled = Vec::new();
        if let Some(Made { intent, request, job, .. }) = &self.work {
            let is_new = matches!(intent, Some(Intent::Create { .. }));
            if let Some(outcome) = settling(job, is_new) {
                settled.push((outcome, request.clone().filter(|_| is_new)));
            }
            if !is_new && let Some(undo) = undone(job.probe.uid, intent.clone(), request.clone()) {
                settled.push((Settled::Whole { uid: job.probe.uid, undo }, None));
            }
        }
        if let Some(Doomed { probe, .. }) = &self.doomed {
            settled.push((Settled::Whole { uid: probe.uid, undo: Undo::Deletion(probe.uid) }, None));
        }
        settled
    }
}

impl Controller {
    /// Carries out changes by groups. Returns their outcomes in order.
    pub(super) async fn change_together(
        &mut self,
        changes: Vec<(usize, Together)>,
    ) -> Vec<Result<Changed, Error>> {
        let mut members: Vec<_> =
            changes.into_iter().map(|(group, change)| Member::new(group, change)).collect();
        if members.is_empty() {
            return Vec::new();
        }
        let works = members.iter().filter_map(|member| member.work.as_ref());
        let ending: Vec<_> = works.filter(|made| made.ends_trip()).map(|made| made.job.probe.uid).collect();
        if let Err(error) = self.begin_together(&mut members).await {
            self.end_trips(&ending);
            return members.iter().map(|_| Err(error.clone())).collect();
        }
        self.take_out_together(&mut members, |member| member.work.is_some());
        self.carry_out_together(&mut members);
        self.take_out_together(&mut members, |member| member.work.is_none());
        self.settle_together(&mut members).await;
        let failed = failed(&members);
        self.roll_back(&mut members, &failed).await;
        let outcomes = self.end_together(members, &failed).await;
        self.end_trips(&ending);
        self.note_sharing();
        self.as_they_are(outcomes)
    }

    async fn begin_together(&mut self, members: &mut [Member]) -> Result<(), Error> {
        let intended: Vec<_> = members.iter().flat_map(Member::intended).collect();
        let uids = self.parts.store.begin(&intended).await?.durable()?;
        let mut uids = uids.into_iter();
        for member in members {
            let doomed = member.doomed.as_ref().and_then(|_| uids.next());
            let made = member.work.as_mut().filter(|made| made.intent.is_some());
            if let Some(made) = made
                && let Some(uid) = uids.next()
            {
                made.job.probe.record.uid = uid;
                self.repairs.forget(uid);
            }
            if let Some(uid) = doomed {
                self.repairs.forget(uid);
            }
        }
        Ok(())
    }

    /// Removes from the kernel what is to go, of those groups that have not failed.
    fn take_out_together(&mut self, members: &mut [Member], which: impl Fn(&Member) -> bool) {
        let failed = failed(members);
        let of_group = |member: &Member| !failed.contains_key(&member.group) && which(member);
        let mut going: Vec<_> =
            members.iter_mut().filter(|member| member.doomed.is_some() && of_group(member)).collect();
        let probes: Vec<_> =
            going.iter().filter_map(|member| Some(Arc::clone(&member.doomed.as_ref()?.probe))).collect();
        if probes.is_empty() {
            return;
        }
        let outcomes = self.take_all_out_of_kernel(&probes);
        for ((member, probe), outcome) in going.iter_mut().zip(&probes).zip(outcomes) {
            match outcome {
                Ok(found) => (member.is_out, member.note) = (true, note(probe, found)),
                Err(error) => member.error = Some(error),
            }
        }
    }

    fn carry_out_together(&mut self, members: &mut [Member]) {
        let failed = failed(members);
        let (mut jobs, mut owners) = (Vec::new(), Vec::new());
        for (index, member) in members.iter_mut().enumerate() {
            if failed.contains_key(&member.group) {
                continue;
            }
            let Some(made) = &mut member.work else { continue };
            self.prepare_account(made.before.as_ref(), made.job.probe.uid);
            made.begun = true;
            let idle = Job::change(made.job.probe.clone(), Vec::new());
            jobs.push(std::mem::replace(&mut made.job, idle));
            owners.push(index);
        }
        self.executor().carry_out(&mut jobs);
        for (index, mut job) in owners.into_iter().zip(jobs) {
            let Some(member) = members.get_mut(index) else { continue };
            let Some(made) = &mut member.work else { continue };
            self.note(&mut job, made.before.as_ref());
            if let Err(error) = std::mem::replace(&mut job.outcome, Ok(())) {
                member.error = Some(error);
            }
            made.job = job;
        }
        if members.iter().any(|member| {
            member
                .work
                .as_ref()
                .is_some_and(|made| made.before.as_ref().is_some_and(|before| before.is_to_record))
        }) {
            self.restore_instance();
        }
    }

    /// Settles the changes, in one transaction, of the groups that have not failed.
    async fn settle_together(&mut self, members: &mut [Member]) {
        let failed = failed(members);
        let good = |member: &&mut Member| !failed.contains_key(&member.group);
        let settled: Vec<_> = members.iter_mut().filter(good).flat_map(|member| member.settled()).collect();
        if settled.is_empty() {
            return;
        }
        if let Err(error) = self.parts.store.settle(&settled).await {
            let error = Error::from(error);
            for member in members.iter_mut().filter(good) {
                member.error = Some(error.clone());
            }
        }
    }

    /// Takes back the changes that were made of the groups that have failed.
    async fn roll_back(&mut self, members: &mut [Member], failed: &HashMap<usize, String>) {
        if failed.is_empty() {
            return;
        }
        let members: Vec<_> =
            members.iter_mut().filter(|member| failed.contains_key(&member.group)).collect();
        let is_new = |made: &&Made| matches!(made.intent, Some(Intent::Create { .. }));
        let made: Vec<_> = members.iter().filter_map(|member| member.work.as_ref()).filter(is_new).collect();
        let there: Vec<_> = made
            .iter()
            .filter(|made| made.begun && made.job.probe.own.is_some())
            .map(|made| Arc::new(made.job.probe.clone()))
            .collect();
        let outs = self.take_back(&there);
        let stays = |made: &Made| {
            let left =
                there.iter().zip(&outs).any(|(probe, is_out)| probe.uid == made.job.probe.uid && !is_out);
            left || made.job.left_behind
        };
        // What stays in the kernel is removed by the next start.
        let (mut undo, mut before) = (Vec::new(), Vec::new());
        for made in made {
            if !stays(made) {
                undo.push(Undo::Probe(made.job.probe.uid));
            }
        }
        for member in &members {
            if let Some(Made { intent: intent @ Some(Intent::Update { .. }), request, job, .. }) =
                &member.work
            {
                undo.extend(undone(job.probe.uid, intent.clone(), request.clone()));
            }
            if let Some(Doomed { probe, .. }) = &member.doomed {
                undo.push(Undo::Deletion(probe.uid));
            }
            let cause = failed.get(&member.group).map_or("", String::as_str);
            undo.extend(audited::failed(member.entry(), cause));
            before.extend(member.before().cloned());
        }
        self.parts.store.undo_all(undo).await;
        self.put_right(&before).await;
    }

    /// Brings the kernel to what probes must be, whatever was changed of them.
    pub(super) async fn put_right(&mut self, probes: &[Arc<Probe>]) {
        let observed = self.observer.observe(probes);
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        let mut work = Vec::new();
        for probe in probes {
            match self.judge_repair(probe, &mut grounds) {
                Ok(one) => work.extend(one),
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot bring a probe back to what it was");
                }
            }
        }
        let names: Vec<_> = work.iter().map(|one| one.job.probe.name.clone()).collect();
        for (name, outcome) in names.iter().zip(self.change(work).await) {
            if let Err(error) = outcome {
                tracing::warn!(probe = %name, %error, "cannot bring a probe back to what it was");
            }
        }
    }

    /// The outcome of each.
    async fn end_together(
        &mut self,
        members: Vec<Member>,
        failed: &HashMap<usize, String>,
    ) -> Vec<Result<Changed, Error>> {
        let (mut profiles, mut undo) = (Vec::<HitProfile>::new(), Vec::new());
        let mut outcomes = Vec::with_capacity(members.len());
        for Member { group, work, doomed, note, error, .. } in members {
            if let Some(cause) = failed.get(&group) {
                outcomes.push(Err(error.unwrap_or_else(|| Error::batch_failed(cause))));
                continue;
            }
            if let Some(Doomed { probe, profile, .. }) = &doomed {
                profiles.extend(profile.clone());
                // The database says that it goes. The row may stay for a while.
                undo.push(Undo::Probe(probe.uid));
            }
            outcomes.push(Ok(match (work, doomed) {
                (Some(made), _) => self.changed(made.job.probe, made.before.as_ref()),
                (None, Some(Doomed { probe, profile, .. })) => {
                    self.parts.registry.remove(&probe.name);
                    tracing::info!(probe = %probe.name, uid = %probe.uid, "deleted");
                    Changed::Removed(Removed { name: probe.name.clone(), profile, note })
                }
                (None, None) => continue,
            }));
        }
        if !profiles.is_empty() {
            self.store_samples(&profiles).await;
        }
        self.parts.store.undo_all(undo).await;
        outcomes
    }
}

/// The groups that have failed, each with the first reason.
fn failed(members: &[Member]) -> HashMap<usize, String> {
    let mut failed = HashMap::new();
    for member in members {
        if let Some(error) = &member.error {
            failed.entry(member.group).or_insert_with(|| error.to_string());
        }
    }
    failed
}
