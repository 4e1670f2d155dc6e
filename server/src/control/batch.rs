//! A batch of changes: what is done for each change of one request, and the plan of all.
//!
//! Owns which of them are made together, and the expected outcome of those that are only checked.
//! Writes nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::apply::{Judged, Work};
use super::command::{Changed, Removed, Unit};
use super::controller::Controller;
use super::plan::{KernelPlan, PlannedStep};
use super::remove::{Doomed, Room};
use super::together::Together;
use super::{Probe, ProbeState};
use crate::store::Intent;

/// What is done, with the place of each change in the request.
#[derive(Default)]
pub(super) struct Batch {
    /// Probes that are made or changed, each independently.
    pub(super) work: Vec<(usize, Work)>,
    /// Probes that are deleted, each independently, after those.
    pub(super) doomed: Vec<(usize, Doomed)>,
    /// Changes in groups that succeed or fail together, after those.
    pub(super) together: Vec<(usize, (usize, Together))>,
}

impl Batch {
    /// Adds what is done for the change at `index`.
    pub(super) fn add(&mut self, index: usize, judged: Judged, unit: Unit) {
        let group = if unit == Unit::All { 0 } else { index };
        let mut together = |one| self.together.push((index, (group, one)));
        match (judged, unit) {
            (Judged::Done(_), _) => {}
            (Judged::Replace(one), _) => together(Together::Replace(one)),
            (Judged::Work(one), Unit::All) => together(Together::Work(one)),
            (Judged::Delete(one), Unit::All) => together(Together::Delete(one)),
            (Judged::Work(one), Unit::Each) => self.work.push((index, *one)),
            (Judged::Delete(one), Unit::Each) => self.doomed.push((index, *one)),
        }
    }

    /// The expected outcome of each.
    pub(super) fn into_expected(self) -> Vec<(usize, Changed)> {
        let work = self.work.into_iter().map(|(index, one)| (index, made(one)));
        let doomed = self.doomed.into_iter().map(|(index, one)| (index, removed(one)));
        let together = self.together.into_iter().map(|(index, (_, one))| match one {
            Together::Work(one) => (index, made(*one)),
            Together::Delete(one) => (index, removed(*one)),
            Together::Replace(one) => (index, made(one.work)),
        });
        work.chain(doomed).chain(together).collect()
    }
}

fn made(Work { intent, job, .. }: Work) -> Changed {
    let is_new = matches!(intent, Some(Intent::Create { .. }));
    // The kernel decides which state it will have.
    let state = if is_new { ProbeState::Pending } else { job.probe.state.clone() };
    Changed::Probe(Arc::new(Probe { state, ..job.probe }))
}

fn removed(Doomed { probe, profile, .. }: Doomed) -> Changed {
    Changed::Removed(Removed { name: probe.name.clone(), profile, note: "" })
}

impl Controller {
    /// What would be done for changes. Includes the steps that undo what another program has changed of
    /// the instance.
    pub(super) fn plan_work(&self, work: &[Work]) -> Vec<PlannedStep> {
        let mut plan = self.new_plan();
        plan.change(&work.iter().map(|one| &one.job).collect::<Vec<_>>());
        let is_to_record = |one: &Work| one.before.as_ref().is_some_and(|before| before.is_to_record);
        if work.iter().any(is_to_record)
            && let Ok(switches) = self.observer.switches(&self.parts.instance)
        {
            plan.restore(switches.harmful().cloned());
        }
        plan.into_steps()
    }

    fn new_plan(&self) -> KernelPlan {
        let options = &self.parts.instance_options;
        let other = self.parts.instance.next_name(options);
        KernelPlan::new(self.parts.instance.name(), &other, options.buffer_kib)
    }

    /// What would be done for a batch, in the order in which [`Self::apply`] does it.
    pub(super) fn plan(&self, batch: &Batch) -> Vec<PlannedStep> {
        let Batch { work, doomed, together } = batch;
        let mut plan = self.new_plan();
        plan.change(&work.iter().map(|(_, one)| &one.job).collect::<Vec<_>>());
        self.plan_deletions(&mut plan, doomed.iter().map(|(_, one)| &*one.probe).collect());
        let together = || together.iter().map(|(_, (_, one))| one);
        let replaced = together().filter_map(|one| match one {
            Together::Replace(one) => Some(&*one.doomed.probe),
            Together::Work(_) | Together::Delete(_) => None,
        });
        self.plan_deletions(&mut plan, replaced.collect());
        let changed = together().filter_map(|one| match one {
            Together::Replace(one) => Some(&one.work.job),
            Together::Work(one) => Some(&one.job),
            Together::Delete(_) => None,
        });
        plan.change(&changed.collect::<Vec<_>>());
        let deleted = together().filter_map(|one| match one {
            Together::Delete(one) => Some(&*one.probe),
            Together::Replace(_) | Together::Work(_) => None,
        });
        self.plan_deletions(&mut plan, deleted.collect());
        plan.into_steps()
    }

    fn plan_deletions(&self, plan: &mut KernelPlan, mut there: Vec<&Probe>) {
        there.retain(|probe| probe.own.is_some());
        let doomed: Vec<_> = there.iter().filter_map(|probe| probe.own.as_ref()).collect();
        let room = if there.iter().any(|probe| self.is_wiping(probe)) {
            let gone: HashSet<_> = there.iter().map(|probe| probe.uid).collect();
            Room::beside(plan.recorded(self.recorded_beside(&gone)), there.len())
        } else {
            Room::Free
        };
        plan.delete(&doomed, &room);
    }
}
