//! Breaker: the control thread's look at what probes cost, and the disarming of those that cost
//! too much.
//!
//! Owns when it looks, what it knows of earlier trips, and the order: the kernel first, then the
//! database. A probe that is over its budget harms the host now, and the next start of a daemon
//! that could not store its trip would find it over its budget again. Never arms a probe that a
//! client has switched off.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kprobed_audit::Entry;
use tokio::time::Instant;

use super::cost::whole;
use super::meter::{Breach, Meter};
use super::pace::Pace;
use super::payer::BudgetSettings;
use super::reading::{KnownProbes, Reading};
use super::trip::Trip;
use crate::control::apply::{Before, Grounds, Work};
use crate::control::audited;
use crate::control::command::UpdateRequest;
use crate::control::controller::{Controller, in_kernel};
use crate::control::job::Job;
use crate::control::step::Step;
use crate::control::{ControlError, Probe};
use crate::store::StoredTrip;
use kprobed_lang::model::ProbeUid;

/// The smallest record of a probe in a ring buffer, in bytes: its header, the fields that all
/// events have, and the address.
const LEAST_RECORD_BYTES: f64 = 24.0;

/// The part of the smallest budget of a second after which the readers tell of their events.
const TOLD_AFTER: f64 = 0.2;

/// Time until what could not be stored, or armed again, is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A probe that was not disarmed for so long starts over.
const FORGIVEN_AFTER: Duration = Duration::from_hours(48);

/// Spending and trips of all probes.
#[derive(Debug)]
pub(in crate::control) struct Budget {
    limits: BudgetSettings,
    meter: Meter,
    known: KnownProbes,
    pace: Pace,
    /// How often probes were disarmed since a client has enabled them: those that are armed again.
    past: HashMap<ProbeUid, (u32, SystemTime)>,
    /// When a trip ends by itself, or something is to be tried again.
    attend_at: Option<Instant>,
    /// A trip could not be stored.
    unsaved: bool,
    /// Trips since the daemon has started.
    trips: u64,
    /// What the audit log does not have yet.
    unaudited: Vec<Entry>,
}

impl Budget {
    /// With what earlier runs of the daemon have stored.
    pub(in crate::control) fn new(limits: BudgetSettings, stored: &HashMap<ProbeUid, StoredTrip>) -> Self {
        let over = stored.values().filter(|trip| !trip.is_open);
        Self {
            meter: Meter::new(limits.clone()),
            known: KnownProbes::default(),
            limits,
            pace: Pace::default(),
            past: over.map(|trip| (trip.uid, (trip.times, trip.time))).collect(),
            // Trips can have ended while no daemon ran.
            attend_at: (!stored.is_empty()).then(Instant::now),
            unsaved: false,
            trips: 0,
            unaudited: Vec::new(),
        }
    }

    /// When there is something to do. Absent for never.
    pub(in crate::control) fn due(&self) -> Option<Instant> {
        [self.pace.next(), self.attend_at].into_iter().flatten().min()
    }

    /// A probe was armed.
    pub(in crate::control) fn note_armed(&mut self) {
        if self.is_limited() {
            self.pace.note_armed(Instant::now());
        }
    }

    /// The readers had many events.
    pub(in crate::control) fn note_activity(&mut self) {
        if self.is_limited() {
            self.pace.note_activity(Instant::now());
        }
    }

    /// Trips since the daemon has started.
    pub(in crate::control) const fn trips(&self) -> u64 {
        self.trips
    }

    fn is_limited(&self) -> bool {
        self.limits.all().next().is_some()
    }

    /// How often a probe was disarmed in succession until now.
    fn times_before(&self, uid: ProbeUid, now: SystemTime) -> u32 {
        let is_recent = |time: SystemTime| now.duration_since(time).is_ok_and(|since| since < FORGIVEN_AFTER);
        self.past.get(&uid).filter(|(_, time)| is_recent(*time)).map_or(0, |(times, _)| *times)
    }

    /// Bytes of events after which the readers are to tell of them.
    fn told_after(&self, readings: &[Reading]) -> u64 {
        let smallest = self.limits.all().min().unwrap_or(u64::MAX) as f64;
        let dearest = readings.iter().map(|reading| reading.hit_ns).fold(1.0, f64::max);
        whole(smallest * TOLD_AFTER / dearest * LEAST_RECORD_BYTES)
    }
}

impl Controller {
    /// Does what is due: a look at the costs, and the end of trips.
    pub(in crate::control) async fn attend_budget(&mut self) {
        let now = Instant::now();
        if self.budget.pace.next().is_some_and(|next| next <= now) {
            self.look_at_costs(now).await;
        }
        if self.budget.attend_at.is_some_and(|time| time <= now) {
            self.attend_trips().await;
        }
    }

    async fn look_at_costs(&mut self, now: Instant) {
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
        let unseen = !self.aggregations.is_empty() || self.parts.registry.has_filtered();
        budget.pace.looked(now, &found, !readings.is_empty(), unseen);
        self.activity.set(budget.told_after(&readings));
        if !found.breaches.is_empty() {
            self.trip(found.breaches).await;
        }
    }

    /// The counts of the probes that the daemon has armed.
    fn readings(&mut self) -> Result<Vec<Reading>, ControlError> {
        let counts = self.tracefs().hit_counts()?;
        let counted: HashSet<_> = self.aggregations.counted().collect();
        let registry = &self.parts.registry;
        let armed = counts.rows().filter_map(|row| {
            let probe = registry.by_listing(row.listing)?;
            let is_armed = in_kernel(&probe.state) && (probe.is_to_record() || counted.contains(&probe.name));
            is_armed.then_some((probe, row.hits))
        });
        let Budget { known, limits, .. } = &mut self.budget;
        Ok(known.readings(armed, limits, &self.parts.costs.table()))
    }

    /// Disarms probes, and stores why.
    async fn trip(&mut self, breaches: Vec<Breach>) {
        let (now, rearm_after) = (SystemTime::now(), self.budget.limits.rearm_after);
        let (mut work, mut tripped) = (Vec::new(), Vec::new());
        for breach in breaches {
            let Some(probe) = self.parts.registry.by_uid(breach.uid) else { continue };
            let times = self.budget.times_before(probe.uid, now) + 1;
            let trip = Arc::new(Trip::now(&breach, &probe.name, times, (now, rearm_after)));
            self.delete_aggregations_of(&probe.name);
            // The event is not looked at before: to switch it off needs nothing but that it is
            // the daemon's.
            let steps = if probe.spec.enabled { vec![Step::Disable] } else { Vec::new() };
            let job = Job::change(Probe::clone(&probe).disarmed(&trip), steps);
            let before = Before { probe: Arc::clone(&probe), drifted: false, is_to_record: false };
            work.push(Work { intent: None, request: None, entry: None, before: Some(before), job });
            tripped.push((probe, breach, trip));
        }
        let outcomes = self.change(work).await;
        for ((probe, breach, trip), outcome) in tripped.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                // It goes on paying, and the next look tries again.
                tracing::warn!(probe = %probe.name, %error, "cannot disarm a probe that costs too much");
                continue;
            }
            self.budget.trips += 1;
            self.budget.unaudited.push(audited::entry_of_end(&probe.record, &trip.trouble.reason));
            self.budget.past.remove(&probe.uid);
            tracing::warn!(
                probe = %probe.name,
                budget = breach.payer.setting(),
                hits_per_s = breach.rate.runs_per_s.round(),
                hit_ns = breach.rate.hit_ns.round(),
                ns_per_s = breach.rate.ns_per_s().round(),
                limit_ns_per_s = breach.limit_ns_per_s,
                times = trip.times,
                "disarmed a probe that costs more than its budget"
            );
        }
        self.triggers.forget_own();
        self.attend_trips().await;
    }

    /// Clients have switched these probes. The trips of those that were switched count no more; if a
    /// change has failed, the database does not have the trip any more and is to get it again.
    pub(in crate::control) fn end_trips(&mut self, uids: &[ProbeUid]) {
        for uid in uids {
            if self.parts.registry.by_uid(*uid).is_some_and(|probe| probe.tripped.is_some()) {
                self.budget.attend_at = Some(Instant::now());
            } else {
                self.budget.past.remove(uid);
            }
        }
    }

    /// Stores trips, and arms the probes again whose time has come.
    async fn attend_trips(&mut self) {
        let probes: Vec<_> =
            self.parts.registry.all().into_iter().filter(|probe| probe.tripped.is_some()).collect();
        let now = SystemTime::now();
        let is_over = |probe: &&Arc<Probe>| {
            probe.tripped.as_ref().is_some_and(|trip| trip.rearm.is_some_and(|time| time <= now))
        };
        let (over, open): (Vec<_>, Vec<_>) = probes.iter().partition(is_over);
        let rearmed = self.rearm(&over).await;
        let stored = probes.iter().filter_map(|probe| {
            Some(probe.tripped.as_ref()?.to_store(probe.uid, !rearmed.contains(&probe.uid)))
        });
        let stored: Vec<_> = stored.collect();
        let entries = std::mem::take(&mut self.budget.unaudited);
        let outcome = if stored.is_empty() && entries.is_empty() {
            Ok(())
        } else {
            self.parts.store.set_trips(&stored, &entries).await
        };
        let fails = outcome.is_err();
        if fails {
            self.budget.unaudited = entries;
        }
        match outcome {
            Err(error) if !self.budget.unsaved => {
                tracing::warn!(%error, "cannot store that probes were disarmed");
            }
            Err(error) => tracing::debug!(%error, "cannot store that probes were disarmed"),
            Ok(()) => {}
        }
        self.budget.unsaved = fails;
        let ends = open.iter().filter_map(|probe| probe.tripped.as_ref()?.rearm?.duration_since(now).ok());
        let again = (fails || rearmed.len() < over.len()).then_some(AGAIN_AFTER);
        self.budget.attend_at = ends.chain(again).min().and_then(|pause| Instant::now().checked_add(pause));
    }

    /// Arms probes again. Returns which of them are.
    async fn rearm(&mut self, probes: &[&Arc<Probe>]) -> HashSet<ProbeUid> {
        if probes.is_empty() {
            return HashSet::new();
        }
        let known: Vec<_> = probes.iter().map(|probe| Arc::clone(probe)).collect();
        let checker = Arc::clone(&self.parts.checker);
        let mut grounds = Grounds::new(checker.recent_facts(), self.observer.observe(&known));
        let (mut work, mut rearmed) = (Vec::new(), HashSet::new());
        for probe in &known {
            let wanted = Probe { tripped: None, ..Probe::clone(probe) };
            if !in_kernel(&probe.state) {
                // It is kept out for another reason, and is armed when that has gone.
                self.parts.registry.put(wanted);
                rearmed.insert(probe.uid);
                continue;
            }
            let request = UpdateRequest::to_switch(probe.name.to_string(), probe.spec.enabled);
            match self.judge_change(probe, wanted, &request, &mut grounds) {
                Ok(job) => {
                    let is_to_record = probe.spec.enabled;
                    let before = Before { probe: Arc::clone(probe), drifted: false, is_to_record };
                    work.push(Work { intent: None, request: None, entry: None, before: Some(before), job });
                }
                Err(error) => {
                    tracing::warn!(probe = %probe.name, %error, "cannot arm a probe again after a pause");
                }
            }
        }
        let uids: Vec<_> = work.iter().map(|one| one.job.probe.uid).collect();
        for (uid, outcome) in uids.into_iter().zip(self.change(work).await) {
            match outcome {
                Ok(_) => drop(rearmed.insert(uid)),
                Err(error) => tracing::warn!(%uid, %error, "cannot arm a probe again after a pause"),
            }
        }
        for probe in known.iter().filter(|probe| rearmed.contains(&probe.uid)) {
            if let Some(trip) = &probe.tripped {
                self.budget.past.insert(probe.uid, (trip.times, trip.time));
            }
            self.budget.unaudited.push(audited::rearmed(&probe.record));
            tracing::info!(probe = %probe.name, "armed a probe again after a pause");
        }
        self.triggers.forget_own();
        rearmed
    }
}
