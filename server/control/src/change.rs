//! Changes of probes: the journal, the kernel, the rows, the answer; the one way for whatever asks for them.
//!
//! Owns that order, for one change and for many, and what is done when a change cannot be made: those of its group that
//! were made are taken back, and the kernel is brought to what the probes were as if another program had changed
//! it. After a crash the next start does the same with everything that is in the journal. Never judges a change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Probe;
use super::account::{Account, Sample};
use super::command::{Changed, Removed};
use super::controller::{Controller, LiveProbe};
use super::execute::Executor;
use super::job::Job;
use super::judge::{Grounds, Work, each, stages};
use super::remove::note;
use crate::error::{Error, Reason};
use crate::store::{Edit, ProbeSpec, Record, TickOf};
use kprobed_lang::model::Lease;

impl Controller {
    /// Makes changes, all of a group or none: with one transaction before and one after, and each list of the kernel
    /// read once. Returns the outcome of each.
    pub(super) async fn change(&mut self, mut works: Vec<Work>) -> Vec<Result<Changed, Error>> {
        if works.is_empty() {
            return Vec::new();
        }
        let mut edits = edits(&works);
        self.begin(&mut works, &mut edits).await;
        for lost in works.iter().filter(|work| work.before.is_some() && work.job.basis.is_some()) {
            // What the kernel had counted went with the event.
            let reason = "another program has removed the event of a probe of it, which is made again";
            self.delete_aggregations_of(&lost.probe().name, reason).await;
        }
        let [replaced, changed, deleted] = stages(&works);
        self.take_out(&mut works, &replaced);
        self.carry_out_jobs(&mut works, &changed);
        self.take_out(&mut works, &deleted);
        let not_durable = self.settle(&mut works, &mut edits).await;
        let failed = failed(&works);
        if !failed.is_empty() {
            self.roll_back(&mut works, &edits, &failed).await;
        }
        let outcomes = self.conclude(works, &failed, not_durable.as_ref()).await;
        self.note_sharing();
        self.as_they_are(outcomes)
    }

    /// Writes to the journal what is to be done in the kernel. If that fails, the groups that need it do. One that only
    /// disarms goes on, if it is the disk that fails.
    async fn begin(&mut self, works: &mut [Work], edits: &mut [Edit]) {
        let (mut under_way, mut groups, mut disarming) = (Vec::new(), HashSet::new(), HashSet::new());
        for (work, edit) in works.iter().zip(&mut *edits).filter(|(work, edit)| is_under_way(work, edit)) {
            let of_its_kind = if edit.goes_on { &mut disarming } else { &mut groups };
            of_its_kind.insert(work.group);
            under_way.push(edit);
        }
        if let Err(error) = self.parts.store.begin(&mut under_way).await {
            if !error.is_of_the_disk() {
                groups.extend(disarming);
            } else if !disarming.is_empty() {
                tracing::warn!(%error, "disarms probes, and cannot write that down before");
            }
            let error = Error::from(error);
            for work in works.iter_mut().filter(|work| groups.contains(&work.group)) {
                work.error = Some(error.clone());
            }
        }
        for (work, edit) in works.iter_mut().zip(edits) {
            if let (None, Some(after)) = (&work.before, &edit.after) {
                work.job.probe.record.uid = after.uid;
            }
            if work.entry.is_some() && !work.insists {
                self.retries.forget(work.probe().uid);
            }
        }
    }

    /// Takes these out of the kernel, of those groups that have not failed.
    fn take_out(&mut self, works: &mut [Work], which: &[usize]) {
        let mut going = not_failed(works, which);
        let probes: Vec<_> = going.iter().filter_map(|work| work.before.clone()).collect();
        if probes.is_empty() {
            return;
        }
        let outcomes = self.take_all_out_of_kernel(&probes);
        for ((work, probe), outcome) in going.iter_mut().zip(&probes).zip(outcomes) {
            work.is_carried_out = true;
            match outcome {
                Ok(found) => {
                    work.note = note(probe, found);
                    (work.job.probe.own, work.job.probe.schema) = (None, None);
                }
                Err(error) => work.error = Some(error),
            }
        }
    }

    /// Makes and changes these, of those groups that have not failed.
    fn carry_out_jobs(&mut self, works: &mut [Work], which: &[usize]) {
        let mut works = not_failed(works, which);
        let redefined = works.iter().filter(|work| work.before.is_some() && work.job.basis.is_some());
        let redefined: Vec<_> = redefined.map(|work| work.probe().uid).collect();
        if !redefined.is_empty() {
            // Events of lost probes that the buffers still hold are read under their old names.
            self.readers.drain();
            self.forget_live(&redefined);
        }
        for work in &works {
            if work.drifted
                && let Some(live) = self.live.get_mut(&work.probe().uid)
            {
                // Its account suspects what is missing.
                live.account.suspect = true;
            }
        }
        for work in works.iter_mut().filter(|work| work.adopts()) {
            if let Err(error) = self.begin_to_read(&mut work.job) {
                work.job.outcome = Err(error);
            }
        }
        let mut jobs: Vec<_> = works.iter_mut().map(|work| &mut work.job).collect();
        self.executor().carry_out(&mut jobs);
        if works.iter().any(|work| work.is_to_record) {
            self.restore_instance();
        }
        for work in works {
            work.is_carried_out = true;
            if work.adopts() && work.job.outcome.is_err() {
                self.sources.remove(&[work.probe().uid]);
            }
            self.note(&mut work.job, work.before.as_deref());
            work.error = work.job.outcome.clone().err();
            if work.error.is_none() {
                self.making.push(Arc::new(work.job.probe.clone()));
            }
        }
    }

    /// Stores the changes, in one transaction, of the groups that have not failed. Returns why a crash would forget
    /// those that go on although the disk fails; absent if it would not.
    async fn settle(&self, works: &mut [Work], edits: &mut [Edit]) -> Option<Error> {
        let failed = failed(works);
        let mut done = Vec::new();
        for (work, edit) in works.iter_mut().zip(edits) {
            if failed.contains_key(&work.group) {
                continue;
            }
            // With what the kernel has made of it.
            edit.after = work.edit().after;
            if edit.is_begun || edit.before != edit.after {
                done.push((work, &*edit));
            }
        }
        let all: Vec<_> = done.iter().map(|(_, edit)| *edit).collect();
        let Err(error) = self.parts.store.settle(&all).await else { return None };
        let is_of_the_disk = error.is_of_the_disk();
        let (going, ended): (Vec<_>, Vec<_>) =
            done.into_iter().partition(|(work, edit)| edit.goes_on && (is_of_the_disk || work.insists));
        let error = Error::from(error);
        for (work, _) in ended {
            work.error = Some(error.clone());
        }
        if going.is_empty() {
            return None;
        }
        let kept: Vec<_> = going.iter().map(|(_, edit)| *edit).collect();
        match self.parts.store.keep(&kept).await {
            Ok(Ok(())) => None,
            Ok(Err(reserve)) => {
                tracing::error!(%error, %reserve, "has disarmed probes, and can write that down nowhere");
                Some(error)
            }
            Err(_too_much) => {
                for (work, _) in going {
                    work.error = Some(error.clone());
                }
                None
            }
        }
    }

    /// Takes back what was made of the groups that have failed.
    async fn roll_back(&mut self, works: &mut [Work], edits: &[Edit], failed: &HashMap<usize, String>) {
        let is_adopted =
            |work: &&mut Work| failed.contains_key(&work.group) && work.adopts() && work.is_made();
        for work in works.iter_mut().filter(is_adopted) {
            self.executor().take_back(&mut work.job);
            self.readers.drain();
            self.forget_live(&[work.probe().uid]);
        }
        let works = &*works;
        let of_failed = || works.iter().zip(edits).filter(|(work, _)| failed.contains_key(&work.group));
        // What was defined.
        let there: Vec<_> = of_failed()
            .filter(|(work, _)| work.is_made() && work.job.basis.is_some() && work.probe().own.is_some())
            .map(|(work, _)| Arc::new(work.probe().clone()))
            .collect();
        // What the daemon does to bring a probe to what it was is not followed by the same once more.
        let asked: HashSet<_> =
            works.iter().filter(|work| work.entry.is_some()).map(|work| work.group).collect();
        let left = self.take_back(&there);
        let (mut reverted, mut entries, mut before) = (Vec::new(), Vec::new(), Vec::new());
        for (work, edit) in of_failed() {
            let uid = work.probe().uid;
            // What stays in the kernel is removed by the next start: the journal has it.
            if edit.is_begun && !left.contains(&uid) && !work.job.left_behind {
                reverted.push(uid);
            }
            let cause = failed.get(&work.group).map_or("", String::as_str);
            entries.extend(work.entry.as_ref().filter(|_| edit.is_begun).map(|entry| entry.failed(cause)));
            if work.is_made() && asked.contains(&work.group) {
                before.extend(work.before.clone());
            }
        }
        self.parts.store.revert(reverted, entries).await;
        self.put_right(&before).await;
    }

    /// Brings the kernel to what probes must be, whatever was changed of them.
    pub(super) async fn put_right(&mut self, probes: &[Arc<Probe>]) {
        if probes.is_empty() {
            return;
        }
        let observed = self.observer.observe(probes);
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        let mut works = Vec::new();
        for probe in probes {
            match self.judge_repair(probe, &mut grounds) {
                Ok(work) => works.extend(work),
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot bring a probe back to what it was");
                }
            }
        }
        let names: Vec<_> = works.iter().map(|work| work.probe().name.clone()).collect();
        for (name, outcome) in names.iter().zip(Box::pin(self.change(each(works))).await) {
            if let Err(error) = outcome {
                tracing::warn!(probe = %name, %error, "cannot bring a probe back to what it was");
            }
        }
    }

    /// The outcome of each, which the registry has then.
    async fn conclude(
        &mut self,
        works: Vec<Work>,
        failed: &HashMap<usize, String>,
        not_durable: Option<&Error>,
    ) -> Vec<Result<Changed, Error>> {
        let own: HashMap<_, _> =
            works.iter().filter_map(|work| Some((work.asked, work.error.clone()?))).collect();
        let [replaced, ..] = stages(&works);
        self.making.retain(|made| works.iter().all(|work| work.probe().uid != made.uid));
        let leaving = works.iter().filter(|work| work.job.takes_out() && !failed.contains_key(&work.group));
        let profiles: Vec<_> = leaving.filter_map(|work| work.profile.clone()).collect();
        if !profiles.is_empty() {
            // While the registry knows since when they have been probes.
            self.store_tick(&profiles, TickOf::Leaving, false).await;
        }
        let mut adopted = Vec::new();
        let mut outcomes = Vec::with_capacity(works.len());
        for (index, work) in works.into_iter().enumerate() {
            if let Some(cause) = failed.get(&work.group) {
                outcomes
                    .push(Err(own.get(&work.asked).cloned().unwrap_or_else(|| Error::batch_failed(cause))));
                continue;
            }
            let takes_out = work.job.takes_out();
            adopted.extend(work.job.until_now.map(|until_now| (work.probe().uid, until_now)));
            let is_held = matches!(work.probe().spec.metadata.lease, Some(Lease::Held { .. }));
            let changed = match (work.forgets, takes_out) {
                (true, _) => {
                    let probe = work.job.probe;
                    if !replaced.contains(&index) {
                        self.parts.registry.remove(&probe.name);
                    }
                    tracing::info!(probe = %probe.name, uid = %probe.uid, "deleted");
                    Changed::Removed(Removed {
                        name: probe.record.name,
                        profile: work.profile,
                        note: work.note,
                    })
                }
                (false, true) => {
                    tracing::info!(probe = %work.probe().name, state = ?work.probe().state, "taken out");
                    Changed::Probe(self.parts.registry.put(work.job.probe))
                }
                (false, false) => self.changed(work.job.probe, work.before.as_deref()),
            };
            outcomes.push(match not_durable {
                // The next start deletes a probe that was held, whatever is written of it.
                Some(error) if !is_held && !work.insists => Err(self::not_durable(&changed, error)),
                _ => Ok(changed),
            });
        }
        for (uid, until_now) in &adopted {
            self.leave_out(*uid, *until_now).await;
        }
        if !adopted.is_empty() {
            // With what was left out: a daemon that ends now would not know that any more.
            self.sample(false).await;
        }
        outcomes
    }

    /// Enters into the account of a probe what was done, whether it succeeded or not.
    fn note(&mut self, job: &mut Job, before: Option<&Probe>) {
        let Job { probe, outcome, source, hits, hits_meanwhile, until_now, .. } = job;
        if let (Ok(()), Some(source)) = (&outcome, source.take()) {
            // Other programs can have had an adopted one armed until it was switched on here.
            let counted = until_now.as_mut();
            let counted = counted.map(|counted| (counted.hits = hits.unwrap_or(counted.hits), *counted).1);
            let baseline =
                Sample { hits: counted.unwrap_or_default(), losses: self.losses(), ..Sample::default() };
            let account = Account::begin(baseline, probe.is_to_record(), !probe.spec.filter.is_empty());
            let ever_enabled = probe.is_to_record() || counted.is_some();
            self.live.insert(probe.uid, LiveProbe { source, ever_enabled, account });
            return;
        }
        let Some(before) = before else { return };
        // A probe that was switched on and off again has recorded in between.
        let hits_now = if outcome.is_ok() { *hits } else { self.hits_of(&probe.name) };
        let Some(live) = self.live.get_mut(&probe.uid) else { return };
        if probe.is_to_record()
            && !before.is_to_record()
            && let Some(hits) = *hits
        {
            // The hits while it was disabled end here.
            live.account.note_enabled(hits);
        }
        let now = if outcome.is_ok() { &*probe } else { before };
        if !now.spec.filter.is_empty() {
            live.account.had_filter = true;
        }
        if !now.is_to_record()
            && let Some(hits) = hits_now
        {
            live.account.note_disabled(hits, *hits_meanwhile);
        }
    }

    /// A probe was made or changed, and that is durable.
    fn changed(&mut self, probe: Probe, before: Option<&Probe>) -> Changed {
        if probe.is_to_record() && before.is_none_or(|before| !before.is_to_record()) {
            self.budget.note_armed();
        }
        if let Some(live) = self.live.get_mut(&probe.uid) {
            live.ever_enabled |= probe.is_to_record();
            if before.is_some() {
                live.source.origin.set_labels(probe.spec.labels.clone());
            }
        }
        let Record { name, uid, spec, adopted, .. } = &probe.record;
        let ProbeSpec { enabled, filter, labels, .. } = spec;
        match before {
            None if *adopted => tracing::info!(probe = %name, %uid, state = ?probe.state, "adopted"),
            None => tracing::info!(probe = %name, %uid, state = ?probe.state, "created"),
            Some(before) if before.revision != probe.revision => {
                tracing::info!(probe = %name, enabled, filter, %labels, "updated");
            }
            Some(_) => {}
        }
        let probe = self.parts.registry.put(probe);
        // What a subscriber may receive depends on the registry: a new probe was unknown until now.
        self.parts.hub.selections_changed();
        Changed::Probe(probe)
    }

    /// The outcomes, with the states that the probes have in the kernel now.
    fn as_they_are(&self, outcomes: Vec<Result<Changed, Error>>) -> Vec<Result<Changed, Error>> {
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
        Executor { parts: &self.parts, sources: &self.sources }
    }
}

/// What is stored before and after each work.
fn edits(works: &[Work]) -> Vec<Edit> {
    let mut edits: Vec<_> = works.iter().map(Work::edit).collect();
    let arming: HashSet<_> =
        works.iter().zip(&edits).filter(|(_, edit)| !edit.disarms()).map(|(work, _)| work.group).collect();
    for (work, edit) in works.iter().zip(&mut edits) {
        edit.goes_on = !arming.contains(&work.group);
    }
    edits
}

/// Whether a crash in the middle of a change would leave something to take back. What changes in the row alone is
/// settled at once, an event that is defined again by the line that is stored is the probe's in any case, and what the
/// daemon takes from the kernel by itself it takes again.
fn is_under_way(work: &Work, edit: &Edit) -> bool {
    let Some(before) = &edit.before else { return true };
    if work.insists {
        return false;
    }
    let listing = &before.kernel_listing;
    let is_same = edit
        .after
        .as_ref()
        .is_some_and(|after| **before == Record { kernel_listing: listing.clone(), ..Record::clone(after) });
    work.job.next().is_some() && !is_same
}

/// The groups that have failed, each with the first reason.
fn failed(works: &[Work]) -> HashMap<usize, String> {
    let mut failed = HashMap::new();
    for work in works {
        if let Some(error) = &work.error {
            failed.entry(work.group).or_insert_with(|| error.to_string());
        }
    }
    failed
}

/// Those of these works whose groups have not failed.
fn not_failed<'a>(works: &'a mut [Work], which: &[usize]) -> Vec<&'a mut Work> {
    let failed = failed(works);
    let is_meant =
        |(index, work): &(usize, &mut Work)| which.contains(index) && !failed.contains_key(&work.group);
    works.iter_mut().enumerate().filter(is_meant).map(|(_, work)| work).collect()
}

/// The outcome of a change that disarmed a probe, and that nothing but the memory of the daemon knows of.
fn not_durable(changed: &Changed, error: &Error) -> Error {
    let (name, done) = match changed {
        Changed::Probe(probe) => (&probe.name, "disabled"),
        Changed::Removed(removed) => (&removed.name, "deleted"),
    };
    let message = format!(
        "`{name}` is {done} and records nothing, but that is not durable: {error}; if the daemon ends before that can be written, its next start \
         brings the probe back"
    );
    Error::of_probe(Reason::NOT_DURABLE, name, message)
        .fix("make room on the file system of the state directory: the daemon then writes it automatically")
}

#[cfg(test)]
mod tests {
    use super::super::command::Removed;
    use super::*;
    use crate::samples::probe;

    #[test]
    fn what_is_not_durable_is_an_outcome_of_its_own() {
        let probe = probe(1, "kprobes/open");
        let disk = Error::new(Reason::DATABASE_FULL, "its disk is full");
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
