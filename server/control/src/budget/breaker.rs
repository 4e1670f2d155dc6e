//! Breaker: the control thread's look at what probes cost, and the disarming of those that cost
//! too much.
//!
//! Owns when it looks, and the text of why a probe was disarmed, with its form in the database. A probe
//! that is over its budget harms the host now: it is disarmed whatever the database says, and the next start of a
//! daemon that could not store its trip finds it over its budget again. Never arms a probe: only a client does, by
//! enabling or disabling it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::cost::{CostTable, whole};
use super::meter::{Breach, BudgetSettings, Meter, Reading, Scope};
use super::pace::Pace;
use crate::audited;
use crate::controller::Controller;
use crate::error::Error;
use crate::job::Job;
use crate::judge::{Work, each};
use crate::probe::to_the_second;
use crate::step::Step;
use crate::store::Trip;
use crate::{Probe, ProbeState, Trouble};
use kprobed_lang::model::{Hits, ProbeName, ProbeUid};

/// The smallest record of a probe in a ring buffer, in bytes: its header, the fields that all
/// events have, and the address.
const LEAST_RECORD_BYTES: f64 = 24.0;

/// The part of the smallest budget of a second after which the readers tell of their events.
const TOLD_AFTER: f64 = 0.2;

/// Spending and trips of all probes.
#[derive(Debug)]
pub(crate) struct Budget {
    meter: Meter,
    /// The probes of the last look, and what a hit of each costs in nanoseconds.
    known: HashMap<ProbeUid, (Arc<Probe>, f64)>,
    pace: Pace,
    /// Trips since the daemon has started.
    pub(crate) trips: u64,
}

impl Budget {
    pub(crate) fn new(limits: BudgetSettings) -> Self {
        Self { meter: Meter::new(limits), known: HashMap::new(), pace: Pace::default(), trips: 0 }
    }

    /// When there is something to do. Absent for never.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pace.next()
    }

    /// A probe was armed.
    pub(crate) fn note_armed(&mut self) {
        if self.meter.least_ns_per_s().is_some() {
            self.pace.note_armed(Instant::now());
        }
    }

    /// The readers had many events.
    pub(crate) fn note_activity(&mut self) {
        if self.meter.least_ns_per_s().is_some() {
            self.pace.note_activity(Instant::now());
        }
    }

    /// The counts of these probes, as the meter takes them. A look at many probes of which few have
    /// changed is to cost little: what a hit costs is remembered.
    fn readings(
        &mut self,
        armed: impl Iterator<Item = (Arc<Probe>, Hits)>,
        costs: &CostTable,
    ) -> Vec<Reading> {
        let mut before = std::mem::take(&mut self.known);
        let reading = |(probe, hits): (Arc<Probe>, Hits)| {
            let (uid, runs) = (probe.uid, hits.hits.saturating_add(hits.nmissed));
            let known = before.remove(&uid).filter(|(known, _)| Arc::ptr_eq(known, &probe));
            let (probe, hit_ns) = known.unwrap_or_else(|| {
                let hit_ns = costs.hit(probe.kind, probe.arming, &probe.kernel_definition).ns;
                (probe, hit_ns)
            });
            self.known.insert(uid, (probe, hit_ns));
            Reading { uid, runs, hit_ns }
        };
        armed.map(reading).collect()
    }

    /// Bytes of events after which the readers are to tell of them.
    fn told_after(&self, readings: &[Reading]) -> u64 {
        let smallest = self.meter.least_ns_per_s().unwrap_or(u64::MAX) as f64;
        let dearest = readings.iter().map(|reading| reading.hit_ns).fold(1.0, f64::max);
        whole(smallest * TOLD_AFTER / dearest * LEAST_RECORD_BYTES)
    }
}

impl Controller {
    /// Does what is due: a look at the costs.
    pub(crate) async fn attend_budget(&mut self) {
        let now = Instant::now();
        let readings = match self.readings() {
            Ok(readings) => readings,
            Err(error) => {
                // Other programs change their probes faster than the list can be read.
                tracing::debug!(%error, "cannot read what probes cost");
                return self.budget.pace.note_activity(now);
            }
        };
        let budget = &mut self.budget;
        let found = budget.meter.look(now, &readings);
        let recording = self.parts.registry.recording();
        let has_filter = recording.iter().any(|probe| !probe.spec.filter.is_empty());
        let unseen = has_filter || !self.aggregations.is_empty();
        budget.pace.looked(now, &found, !readings.is_empty(), unseen);
        self.activity.set(budget.told_after(&readings));
        if !found.breaches.is_empty() {
            self.trip(found.breaches).await;
        }
    }

    /// The counts of the probes that the daemon has armed.
    fn readings(&mut self) -> Result<Vec<Reading>, Error> {
        let counted: HashSet<_> = self.aggregations.counted().collect();
        let is_armed = |probe: &Probe| {
            probe.state.is_in_kernel() && (probe.is_to_record() || counted.contains(&probe.name))
        };
        let armed = self.read_hits()?.into_iter().filter(|(probe, _)| is_armed(probe));
        Ok(self.budget.readings(armed, self.parts.costs.table()))
    }

    /// Disarms probes, and stores why.
    async fn trip(&mut self, breaches: Vec<Breach>) {
        let now = SystemTime::now();
        let (mut work, mut tripped) = (Vec::new(), Vec::new());
        for breach in breaches {
            let Some(probe) = self.parts.registry.by_uid(breach.uid) else { continue };
            let trouble = trouble(breach.scope, message(&breach, now), &probe.name);
            self.delete_aggregations_of(&probe.name, "a probe of it has cost too much").await;
            // The event is not looked at before: to switch it off needs nothing but that it is
            // the daemon's.
            let steps = if probe.spec.enabled { vec![Step::Disable] } else { Vec::new() };
            let mut after = Probe { state: ProbeState::Tripped(trouble.clone()), ..Probe::clone(&probe) };
            after.record.trip = Some(to_store(&trouble));
            let entry = Some(Arc::new(audited::entry_of_end(&probe.record, &trouble.reason)));
            let disarming = Work::new(Some(Arc::clone(&probe)), Job::change(after, steps));
            work.push(Work { entry, insists: true, ..disarming });
            tripped.push((probe, breach));
        }
        let outcomes = self.change(each(work)).await;
        for ((probe, breach), outcome) in tripped.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                // It goes on paying, and the next look tries again.
                tracing::warn!(probe = %probe.name, %error, "cannot disarm a probe that costs too much");
                continue;
            }
            self.budget.trips += 1;
            tracing::warn!(
                probe = %probe.name,
                budget = breach.scope.setting,
                hits_per_s = breach.rate.runs_per_s.round(),
                hit_ns = breach.rate.hit_ns.round(),
                ns_per_s = breach.rate.ns_per_s().round(),
                limit_ns_per_s = breach.limit_ns_per_s,
                "disarmed a probe that costs more than its budget"
            );
        }
        self.triggers.forget_own();
    }
}

/// The trouble of a stored trip. One whose kind cannot be read disarms its probe too.
pub(crate) fn stored_trouble(stored: &Trip, name: &ProbeName) -> Trouble {
    let known = [Scope::PROBE, Scope::HOST].into_iter().find(|scope| scope.code == stored.code);
    trouble(known.unwrap_or(Scope::PROBE), stored.message.clone(), name)
}

/// To be stored.
fn to_store(trouble: &Trouble) -> Trip {
    Trip { code: trouble.code.to_owned(), message: trouble.reason.clone() }
}

fn trouble(scope: Scope, reason: String, name: &ProbeName) -> Trouble {
    let hint = format!(
        "`kprobectl enable {name}` arms it again; choose an address that is hit less often first, or raise the budget in the daemon's configuration"
    );
    Trouble { code: scope.code, reason, hint }
}

/// What was measured, in a sentence.
fn message(breach: &Breach, now: SystemTime) -> String {
    let Breach { scope, limit_ns_per_s, taken_ns_per_s, rate, .. } = breach;
    let took = format!(
        "disarmed at {}: it was hit {:.0} times a second, each hit takes {:.0} ns, together {} of processor time a second",
        to_the_second(now),
        rate.runs_per_s,
        rate.hit_ns,
        milliseconds(rate.ns_per_s())
    );
    let is_of_all = *scope == Scope::HOST;
    let together = if is_of_all { format!(" of {}", milliseconds(*taken_ns_per_s)) } else { String::new() };
    let Scope { setting, whose, .. } = scope;
    format!("{took}{together}; {whose} may take {} (`{setting}`)", milliseconds(*limit_ns_per_s as f64))
}

fn milliseconds(ns: f64) -> String {
    format!("{:.1} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::meter::Rate;
    use super::*;

    fn trouble_of(scope: Scope) -> Trouble {
        let rate = Rate { runs_per_s: 812_345.4, hit_ns: 500.0 };
        let uid = ProbeUid(7);
        let breach = Breach { uid, scope, limit_ns_per_s: 50_000_000, taken_ns_per_s: 500e6, rate };
        let now = SystemTime::UNIX_EPOCH + Duration::from_mins(1);
        trouble(scope, message(&breach, now), &"kprobes/a".parse().unwrap())
    }

    #[test]
    fn the_reason_has_the_figures() {
        let of_probe = trouble_of(Scope::PROBE);
        assert_eq!(
            of_probe.reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second; a probe may take 50.0 ms (`budget.probe_ns_per_s`)"
        );
        assert_eq!(
            of_probe.hint,
            "`kprobectl enable kprobes/a` arms it again; choose an address that is hit less often first, or raise the budget in the daemon's configuration"
        );
        assert_eq!(
            trouble_of(Scope::HOST).reason,
            "disarmed at 1970-01-01T00:01:00Z: it was hit 812345 times a second, each hit takes 500 ns, together 406.2 ms of processor time a second of 500.0 ms; all probes of the host together may take 50.0 ms (`budget.host_ns_per_s`)"
        );
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let name = "kprobes/a".parse().unwrap();
        for scope in [Scope::PROBE, Scope::HOST] {
            let trouble = trouble_of(scope);
            assert_eq!(stored_trouble(&to_store(&trouble), &name), trouble);
        }
    }
}
