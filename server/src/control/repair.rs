//! Repairing while the daemon runs: what others have done to our events is undone, as often as makes sense.
//!
//! Owns when a probe is looked at, how often it is repaired, and when that ends, if a program keeps changing it. What a repair
//! is, is judged as for a request to enable the probe; what cannot be repaired is said in the probe's state. Foreign events are never touched.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::apply::{Before, Grounds, Work};
use super::command::UpdateRequest;
use super::controller::{Controller, in_kernel};
use super::observed::ObservedEvent;
use super::{ControlError, Probe, ProbeState};
use crate::model::ProbeUid;
use crate::tracefs::Presence;

/// Repairs of one probe before the daemon leaves it alone.
const MOST_REPAIRS: u32 = 5;

/// A probe that has needed no repair for so long begins anew.
const FORGIVEN_AFTER: Duration = Duration::from_mins(30);

/// The part of the interval by which a look can be later.
const JITTER: f64 = 0.2;

/// The repairs of all probes.
#[derive(Debug, Default)]
pub(super) struct Repairs(HashMap<ProbeUid, Repaired>);

/// The repairs of one.
#[derive(Clone, Copy, Debug)]
struct Repaired {
    times: u32,
    last: Instant,
    /// Not before that time again.
    not_before: Instant,
}

impl Repairs {
    /// Whether a probe may be repaired now.
    fn is_due(&self, uid: ProbeUid, now: Instant) -> bool {
        self.0.get(&uid).is_none_or(|repaired| repaired.times < MOST_REPAIRS && now >= repaired.not_before)
    }

    /// It is repaired now. The pause before the next time doubles each time. Returns how often that was.
    fn note(&mut self, uid: ProbeUid, now: Instant, pause: Duration) -> u32 {
        let times = self.0.get(&uid).map_or(0, |repaired| repaired.times) + 1;
        let pause = pause.saturating_mul(1 << times.min(16));
        let not_before = now.checked_add(pause).unwrap_or(now);
        self.0.insert(uid, Repaired { times, last: now, not_before });
        times
    }

    /// Forgets probes that have gone, and those that needed nothing for long.
    fn tidy(&mut self, is_there: impl Fn(ProbeUid) -> bool, now: Instant) {
        self.0.retain(|uid, repaired| {
            is_there(*uid) && now.duration_since(repaired.last) < FORGIVEN_AFTER.max(repaired.pause())
        });
    }

    /// A client has taken it into its own hands: it begins anew.
    pub(super) fn forget(&mut self, uid: ProbeUid) {
        self.0.remove(&uid);
    }

    /// How often a probe was repaired that is left alone now.
    fn ended(&self, uid: ProbeUid) -> Option<u32> {
        self.0.get(&uid).map(|repaired| repaired.times).filter(|times| *times >= MOST_REPAIRS)
    }
}

impl Repaired {
    fn pause(&self) -> Duration {
        self.not_before.duration_since(self.last)
    }
}

impl Controller {
    /// Looks at all probes, and repairs those that can be and are due. Reads each list of the kernel once, and three short files of each probe.
    pub(super) async fn repair(&mut self) {
        let Some(interval) = self.parts.repair_interval else { return };
        let (now, probes) = (Instant::now(), self.parts.registry.all());
        self.forgive(&probes, now);
        let observed = self.observer.observe(&probes);
        self.note_states(&probes, &observed);
        let due = probes.into_iter().filter(|probe| {
            let state = observed.state(probe);
            matches!(state, ProbeState::Drifted(_) | ProbeState::Failed(_))
                && self.repairs.is_due(probe.uid, now)
        });
        let due: Vec<_> = due.collect();
        if due.is_empty() {
            return;
        }
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), observed);
        let mut work = Vec::new();
        for probe in due {
            match self.judge_repair(&probe, &mut grounds) {
                Ok(Some(one)) => work.push(one),
                // Its state says why. Nothing was tried: it is repaired as soon as it can be.
                Ok(None) => {}
                Err(error) => tracing::debug!(probe = %probe.name, %error, "cannot repair a probe now"),
            }
        }
        // The last time shows in the state, if somebody changes it again.
        for one in &mut work {
            let times = self.repairs.note(one.job.probe.uid, now, interval);
            one.job.probe.left_alone = Some(times).filter(|times| *times >= MOST_REPAIRS);
        }
        let repaired: Vec<_> = work.iter().map(|one| one.job.probe.name.clone()).collect();
        let outcomes = self.change(work).await;
        for (name, outcome) in repaired.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => tracing::warn!(probe = %name, "repaired a probe that others had changed"),
                Err(error) => tracing::warn!(probe = %name, %error, "cannot repair a probe"),
            }
        }
    }

    /// When the probes are looked at next: after the configured time, or somewhat later, so that many hosts do not do it at once.
    pub(super) fn next_repair(&self) -> Option<Instant> {
        let interval = self.parts.repair_interval.filter(|_| !self.live.is_empty())?;
        let random = RandomState::new().build_hasher().finish();
        Instant::now().checked_add(interval + interval.mul_f64(JITTER * (random as f64 / u64::MAX as f64)))
    }

    /// Probes that have needed nothing for long are repaired again.
    fn forgive(&mut self, probes: &[Arc<Probe>], now: Instant) {
        let there: HashSet<_> = probes.iter().map(|probe| probe.uid).collect();
        self.repairs.tidy(|uid| there.contains(&uid), now);
        for probe in probes.iter().filter(|probe| probe.left_alone.is_some()) {
            if self.repairs.ended(probe.uid).is_none() {
                self.parts.registry.put(Probe { left_alone: None, ..Probe::clone(probe) });
            }
        }
    }

    /// What is to be done about a probe that is not as it should be. Absent when only others can do something.
    pub(super) fn judge_repair(
        &self,
        probe: &Arc<Probe>,
        grounds: &mut Grounds<'_>,
    ) -> Result<Option<Work>, ControlError> {
        let wanted = Probe::clone(probe);
        let request = UpdateRequest::to_switch(probe.name.to_string(), probe.enabled);
        let job = match grounds.observed.events.get(&probe.uid) {
            Some(ObservedEvent::Lost(Presence::Absent)) => self.define_anew(wanted, grounds)?,
            Some(ObservedEvent::There { .. }) if in_kernel(&probe.state) => {
                self.judge_change(probe, wanted, &request, grounds)?
            }
            _ => return Ok(None),
        };
        let records = !probe.enabled || grounds.observed.switches.recording;
        if job.next().is_none() && records {
            return Ok(None);
        }
        let drifted = probe.enabled && job.basis.is_none();
        let before = Before { probe: Arc::clone(probe), drifted, is_to_record: probe.enabled };
        Ok(Some(Work { intent: None, request: None, before: Some(before), job }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_who_insists_is_not_fought_for_ever() {
        let (uid, second) = (ProbeUid(1), Duration::from_secs(1));
        let mut repairs = Repairs::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        while repairs.ended(uid).is_none() {
            assert!(repairs.is_due(uid, now));
            repairs.note(uid, now, second);
            let begun = now;
            while repairs.ended(uid).is_none() && !repairs.is_due(uid, now) {
                now += second;
            }
            pauses.push((now - begun).as_secs());
        }
        assert_eq!(
            (pauses.as_slice(), repairs.ended(uid)),
            ([2, 4, 8, 16, 0].as_slice(), Some(MOST_REPAIRS))
        );
        assert!(!repairs.is_due(uid, now + FORGIVEN_AFTER / 2), "it is left alone");
        assert!(repairs.is_due(ProbeUid(2), now), "others are not");
        repairs.tidy(|_| true, now + FORGIVEN_AFTER / 2);
        assert!(repairs.ended(uid).is_some());
        repairs.tidy(|_| true, now + FORGIVEN_AFTER);
        assert!(repairs.ended(uid).is_none() && repairs.is_due(uid, now), "it is forgiven");
        repairs.note(uid, now, second);
        repairs.forget(uid);
        assert!(repairs.is_due(uid, now));
        repairs.note(uid, now, second);
        repairs.tidy(|_| false, now);
        assert!(repairs.is_due(uid, now), "it has gone");
    }
}
