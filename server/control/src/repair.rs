//! Repair of probes while the daemon runs: undoes what other programs have done to our events.
//!
//! Owns how often a probe is repaired, and when that ends, if a program keeps changing it. A repair
//! is judged like a request to enable the probe; what cannot be repaired is said in the probe's
//! state. Never touches foreign events.
//!
//! A look costs six reads for each probe (three files, each read to its end) and about a dozen for
//! the lists. In an emulated guest (one CPU without hardware help, unoptimised build) it took 3.4
//! ms of CPU with 10 probes, 29 ms with 100 and 272 ms with 1000 on 6.1, and 3.2, 18 and 210 ms on
//! 6.12: every 30 s, that is 0.7 to 0.9 % of such a CPU for 1000 probes. The guest test `costs`
//! prints these figures.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::v1::ReconcileOutcome;
use tokio::time::Instant;

use super::command::UpdateRequest;
use super::controller::Controller;
use super::judge::{Grounds, Work, each};
use super::observed::{Observed, ObservedEvent};
use super::plan::PlannedStep;
use super::retries::Retries;
use super::{Probe, ProbeState};
use crate::error::Error;
use kprobed_host::kernel::trace_clock_ns;
use kprobed_host::tracefs::{Alteration, InstanceFile, Presence, TracefsError};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::ProbeUid;

/// Repairs of one probe before the daemon leaves it alone.
const MOST_REPAIRS: u32 = 5;

/// The pause after a repair doubles from here, or from the interval if that is shorter.
const PAUSE: Duration = Duration::from_secs(30);

/// The part of the interval by which a look can be later.
const JITTER: f64 = 0.2;

/// The result for a probe that was looked at.
#[derive(Clone, Debug)]
pub struct Reconciled {
    /// The probe, with the state before any repair.
    pub found: Arc<Probe>,
    /// What was done.
    pub outcome: ReconcileOutcome,
    /// Why it could not be repaired.
    pub message: String,
    /// The probe, with its state now.
    pub now: Arc<Probe>,
}

/// The result for all probes.
#[derive(Clone, Debug, Default)]
pub struct Reconciliation {
    /// The result for each.
    pub probes: Vec<Reconciled>,
    /// What would be done, in order, if they were only looked at.
    pub plan: Vec<PlannedStep>,
}

/// What was done about a probe that was looked at, and why it could not be repaired.
type Outcome = (ReconcileOutcome, String);

const fn done(outcome: ReconcileOutcome) -> Outcome {
    (outcome, String::new())
}

fn not_repaired(why: &(impl ToString + ?Sized)) -> Outcome {
    (ReconcileOutcome::NotRepaired, why.to_string())
}

/// Whether a probe was repaired so often that the daemon repairs it no more.
fn is_left_alone(retries: &Retries, uid: ProbeUid) -> bool {
    retries.times(uid) >= MOST_REPAIRS
}

/// Whether a probe is not as it should be, so that it may need a repair.
const fn is_wrong(found: &Probe) -> bool {
    matches!(found.state, ProbeState::Drifted(_) | ProbeState::Failed(_))
}

impl Controller {
    /// Looks at all probes, since the interval has passed or something has changed. Without an interval only at
    /// those of modules.
    pub(super) async fn repair(&mut self) {
        self.triggers.take();
        // A loaded module is a notice for both. Its cost is not followed by a rest ten times as
        // long: the facts of the kernel are read anew, for every later request as well.
        self.watch_modules().await;
        let begun = Instant::now();
        if self.parts.repair_interval.is_some() {
            self.look().await;
        }
        self.triggers.looked(begun, Instant::now());
    }

    /// Looks at all probes, since a client asked for it. Returns the result for each.
    pub(super) async fn reconcile(&mut self, force: bool) -> Reconciliation {
        let begun = Instant::now();
        self.triggers.take();
        if force {
            for probe in self.parts.registry.all() {
                self.retries.forget(probe.uid);
            }
            // Those that could not be removed when their time was over, too.
            self.attend_leases().await;
            self.triggers.forget_own();
        }
        let (found, outcomes) = self.look().await;
        let probes = self.parts.registry.all();
        let now = self.note_states(&probes, &self.observer.observe(&probes));
        let mut now: HashMap<_, _> = now.into_iter().map(|probe| (probe.uid, probe)).collect();
        self.triggers.looked(begun, Instant::now());
        let reconciled = found.into_iter().zip(outcomes).filter_map(|(found, (outcome, message))| {
            Some(Reconciled { now: now.remove(&found.uid)?, found, outcome, message })
        });
        Reconciliation { probes: reconciled.collect(), plan: Vec::new() }
    }

    /// What [`Self::reconcile`] would do now.
    pub(super) fn plan_repairs(&self, force: bool) -> Reconciliation {
        let probes = self.parts.registry.all();
        self.observer.forget();
        let observed = self.observer.observe(&probes);
        let found = self.note_states(&probes, &observed);
        let (outcomes, works) = self.judge_repairs(&probes, &found, observed, force);
        let probes = found.into_iter().zip(outcomes);
        let probes = probes.map(|(found, (outcome, message))| {
            let now = Arc::clone(&found);
            Reconciled { found, outcome, message, now }
        });
        let works = works.into_iter().map(|(_, work)| work).collect();
        Reconciliation { probes: probes.collect(), plan: self.plan(&each(works)) }
    }

    /// What is to be done about probes that were looked at, and the works for it, each with the index of its probe.
    /// With `force` also for those that were repaired too often or too recently.
    fn judge_repairs(
        &self,
        probes: &[Arc<Probe>],
        found: &[Arc<Probe>],
        observed: Observed,
        force: bool,
    ) -> (Vec<Outcome>, Vec<(usize, Work)>) {
        let now_ns = trace_clock_ns();
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        let mut works = Vec::new();
        let mut outcomes = Vec::with_capacity(found.len());
        for (index, (probe, found)) in probes.iter().zip(found).enumerate() {
            outcomes.push(if !is_wrong(found) {
                done(ReconcileOutcome::AsWanted)
            } else if !force && is_left_alone(&self.retries, probe.uid) {
                done(ReconcileOutcome::LeftAlone)
            } else if !force && !self.retries.is_due(probe.uid, now_ns) {
                done(ReconcileOutcome::NotDue)
            } else {
                match self.judge_repair(probe, &mut grounds) {
                    Ok(Some(work)) => {
                        works.push((index, work));
                        done(ReconcileOutcome::WouldRepair)
                    }
                    // Its state says why. Nothing was tried: the daemon repairs it as soon as that is possible.
                    Ok(None) => not_repaired("only others can do something about it"),
                    Err(error) => {
                        tracing::debug!(probe = %probe.name, %error, "cannot repair a probe now");
                        not_repaired(&error)
                    }
                }
            });
        }
        (outcomes, works)
    }

    /// Looks at all probes, and repairs those that can be repaired and are due. Reads each list of
    /// the kernel once, and three short files of each probe. Returns what was found, and what was
    /// done about it.
    async fn look(&mut self) -> (Vec<Arc<Probe>>, Vec<Outcome>) {
        let (begun, now_ns) = (Instant::now(), trace_clock_ns());
        let probes = self.parts.registry.all();
        // This look must also find changes for which the kernel gave no notice.
        self.observer.forget();
        self.forgive(&probes, now_ns);
        let probes = self.parts.registry.all();
        let observed = self.observer.observe(&probes);
        let found = self.note_states(&probes, &observed);
        let written = self.written_by_others();
        self.note_interference(&found, &observed.switches, &written);
        let (mut outcomes, works) = self.judge_repairs(&probes, &found, observed, false);
        self.repair_all(works, &mut outcomes).await;
        tracing::debug!(probes = found.len(), took = ?begun.elapsed(), "looked at the probes");
        (found, outcomes)
    }

    /// Repairs probes, and notes the outcome of each at its index.
    async fn repair_all(&mut self, works: Vec<(usize, Work)>, outcomes: &mut [Outcome]) {
        let pause = self.parts.repair_interval.unwrap_or(PAUSE).min(PAUSE);
        let now_ns = trace_clock_ns();
        let (indexes, mut works): (Vec<_>, Vec<_>) = works.into_iter().unzip();
        // After the last repair, the state says so if another program changes the probe again.
        for one in &mut works {
            if one.job.begins_host_event() {
                // Its owner has made it anew, which is no quarrel.
                continue;
            }
            let times = self.retries.note(one.job.probe.uid, now_ns, pause);
            one.job.probe.left_alone = Some(times).filter(|times| *times >= MOST_REPAIRS);
        }
        let repaired: Vec<_> = works.iter().map(|one| one.job.probe.name.clone()).collect();
        let changed = self.change(each(works)).await;
        for ((name, index), outcome) in repaired.into_iter().zip(indexes).zip(changed) {
            let outcome = match outcome {
                Ok(_) => {
                    tracing::warn!(probe = %name, "repaired a probe that others had changed");
                    done(ReconcileOutcome::Repaired)
                }
                Err(error) => {
                    tracing::warn!(probe = %name, %error, "cannot repair a probe");
                    not_repaired(&error)
                }
            };
            if let Some(place) = outcomes.get_mut(index) {
                *place = outcome;
            }
        }
    }

    /// Brings the files of the daemon's instance back into the form that the daemon wants, if another
    /// program has changed them. If that fails, the states of the probes say so.
    pub(super) fn restore_instance(&mut self) {
        let Ok(switches) = self.observer.switches(&self.parts.instance) else { return };
        if switches.harmful().next().is_none() {
            return;
        }
        // The loss comes before the events that are recorded again.
        let recording = self.parts.registry.recording();
        self.note_interference(&recording, &switches, &[]);
        for alteration in switches.harmful() {
            let Alteration { file, found, wanted } = alteration;
            let restored = if *file == InstanceFile::Clock {
                self.restore_clock(alteration)
            } else {
                self.parts.instance.restore(alteration, &self.parts.procfs)
            };
            match restored {
                Ok(()) => tracing::warn!(
                    file = file.name(),
                    found,
                    wanted,
                    "restored a file of the daemon's instance that another program had changed"
                ),
                Err(error) => tracing::warn!(%error, "cannot restore a file of the daemon's instance"),
            }
        }
    }

    /// Sets the clock again. What was recorded with the other clock is read before the kernel empties
    /// the buffers, and keeps its times.
    fn restore_clock(&self, alteration: &Alteration) -> Result<(), TracefsError> {
        let instance = &self.parts.instance;
        instance.set_recording(false)?;
        self.readers.drain();
        let set = instance.restore(alteration, &self.parts.procfs);
        // In any case: the kernel may refuse after it has emptied them.
        self.readers.buffers_were_reset();
        instance.set_recording(true).and(set)
    }

    /// When the daemon looks at the probes next: after the configured time, or somewhat later, so
    /// that many hosts do not do it at once.
    pub(super) fn next_repair(&self) -> Option<Instant> {
        let has_some = !self.live.is_empty() || self.has_modules_to_watch();
        let interval = self.parts.repair_interval.filter(|_| has_some)?;
        let random = RandomState::new().build_hasher().finish();
        Instant::now().checked_add(interval + interval.mul_f64(JITTER * (random as f64 / u64::MAX as f64)))
    }

    /// Probes that have needed no repair for long may be repaired again.
    fn forgive(&mut self, probes: &[Arc<Probe>], now_ns: u64) {
        let there: HashSet<_> = probes.iter().map(|probe| probe.uid).collect();
        self.retries.tidy(|uid| there.contains(&uid), now_ns);
        for probe in probes.iter().filter(|probe| probe.left_alone.is_some()) {
            if !is_left_alone(&self.retries, probe.uid) {
                self.parts.registry.put(Probe { left_alone: None, ..Probe::clone(probe) });
            }
        }
    }

    /// The steps for a probe that is not as it should be. Absent if only others can do something.
    pub(super) fn judge_repair(
        &self,
        probe: &Arc<Probe>,
        grounds: &mut Grounds<'_>,
    ) -> Result<Option<Work>, Error> {
        // One whose lease has ended is to stay out.
        if probe.require_readable().is_err() || matches!(probe.state, ProbeState::Expired(_)) {
            return Ok(None);
        }
        let wanted = Probe::clone(probe);
        let enabled = Some(probe.is_to_record());
        let request = UpdateRequest { enabled, ..UpdateRequest::default() };
        let job = match grounds.observed.events.get(&probe.uid) {
            Some(ObservedEvent::Lost(found))
                if (*found == Presence::Absent) != (probe.kind == ProbeKind::Event) =>
            {
                self.define_anew(wanted, grounds)?
            }
            Some(ObservedEvent::There { .. }) if probe.state.is_in_kernel() => {
                self.judge_change(probe, wanted, &request, grounds)?
            }
            _ => return Ok(None),
        };
        let records = !probe.is_to_record() || grounds.observed.switches.harmful().next().is_none();
        if job.next().is_none() && records {
            return Ok(None);
        }
        let is_to_record = probe.is_to_record();
        let drifted = is_to_record && job.basis.is_none();
        Ok(Some(Work { drifted, is_to_record, ..Work::new(Some(Arc::clone(probe)), job) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_who_insists_is_not_fought_for_ever() {
        let (uid, second, second_ns) = (ProbeUid(1), Duration::from_secs(1), 1_000_000_000);
        let mut retries = Retries::default();
        let (mut now, mut pauses) = (0, Vec::new());
        while !is_left_alone(&retries, uid) {
            assert!(retries.is_due(uid, now));
            retries.note(uid, now, second);
            let next = retries.next_ns(uid).unwrap();
            pauses.push((next - now) / second_ns);
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32]);
        assert_eq!(retries.times(uid), MOST_REPAIRS);
        assert!(!is_left_alone(&retries, ProbeUid(2)), "others are not");
        let last = now - 32 * second_ns;
        retries.tidy(|_| true, last + 15 * 60 * second_ns);
        assert!(is_left_alone(&retries, uid));
        retries.tidy(|_| true, last + 30 * 60 * second_ns);
        assert!(!is_left_alone(&retries, uid) && retries.is_due(uid, now), "it is forgiven");
    }
}
