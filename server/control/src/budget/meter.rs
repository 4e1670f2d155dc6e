//! Meter: what probes spend, and which of them are over a budget.
//!
//! Owns the spending since the last look and the decision who goes: for the budget of the host the most
//! expensive probe first, until the others are within it. Plain arithmetic over what was read: never
//! reads a counter or a clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use kprobed_lang::model::ProbeUid;

/// Budgets, in nanoseconds of processor time a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Of each probe. Absent for none.
    pub probe_ns_per_s: Option<u64>,
    /// Of all probes of the host together. Absent for none.
    pub host_ns_per_s: Option<u64>,
    /// Whether the daemon measures what a hit takes.
    pub calibrate: bool,
}

/// What a budget is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    /// Code of the state of a probe that was disarmed for it.
    pub(super) code: &'static str,
    /// The setting that limits it.
    pub(super) setting: &'static str,
    /// For people: who may spend it.
    pub(super) whose: &'static str,
}

impl Scope {
    /// One probe.
    pub(super) const PROBE: Self =
        Self { code: "OVER_PROBE_BUDGET", setting: "budget.probe_ns_per_s", whose: "a probe" };

    /// All probes.
    pub(super) const HOST: Self = Self {
        code: "OVER_HOST_BUDGET",
        setting: "budget.host_ns_per_s",
        whose: "all probes of the host together",
    };
}

/// The count of a probe that can fire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) uid: ProbeUid,
    /// How often the kernel has run into it, skipped runs included.
    pub(super) runs: u64,
    /// What one costs, in nanoseconds.
    pub(super) hit_ns: f64,
}

/// What a probe takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// Runs a second.
    pub(super) runs_per_s: f64,
    /// Processor time of one, in nanoseconds.
    pub(super) hit_ns: f64,
}

impl Rate {
    /// Processor time a second, in nanoseconds.
    pub(super) fn ns_per_s(&self) -> f64 {
        self.runs_per_s * self.hit_ns
    }
}

/// A probe that is to be disarmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Breach {
    pub(super) uid: ProbeUid,
    /// Whose budget is spent.
    pub(super) scope: Scope,
    /// That budget, in nanoseconds a second.
    pub(super) limit_ns_per_s: u64,
    /// What all probes on it took together, in nanoseconds a second.
    pub(super) taken_ns_per_s: f64,
    /// What the probe took.
    pub(super) rate: Rate,
}

/// The result of a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) breaches: Vec<Breach>,
    /// Whether a budget is half used, or a quarter of it is spent.
    pub(super) is_near: bool,
    /// How long the first budget lasts that is overrun. Absent if none is.
    pub(super) lasts: Option<Duration>,
}

impl Found {
    /// Takes a budget into account of which so much is spent now.
    fn note(&mut self, bucket: Bucket, ns_per_s: f64) {
        self.is_near |= bucket.is_low() || ns_per_s > bucket.limit_ns_per_s / 2.0;
        self.lasts = [self.lasts, bucket.lasts(ns_per_s)].into_iter().flatten().min();
    }
}

/// The meter.
#[derive(Debug, Default)]
pub(super) struct Meter {
    limits: BudgetSettings,
    last: Option<Instant>,
    /// Runs of each probe at the last look.
    runs: HashMap<ProbeUid, u64>,
    /// The budgets of probes of which something is spent.
    probes: HashMap<ProbeUid, Bucket>,
    host: Option<Bucket>,
}

impl Meter {
    pub(super) fn new(limits: BudgetSettings) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The smallest budget. Absent if there is none.
    pub(super) fn least_ns_per_s(&self) -> Option<u64> {
        [self.limits.probe_ns_per_s, self.limits.host_ns_per_s].into_iter().flatten().min()
    }

    /// Takes the counts of all probes that can fire. A probe that was not among the last ones
    /// begins with this count, and with its whole budget.
    pub(super) fn look(&mut self, now: Instant, readings: &[Reading]) -> Found {
        let elapsed = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let rates = self.rates(readings, elapsed);
        let mut found = Found::default();
        self.look_at_probes(&rates, elapsed, &mut found);
        self.look_at_host(&rates, elapsed, &mut found);
        found
    }

    fn look_at_probes(&mut self, rates: &[(ProbeUid, Rate)], elapsed: Duration, found: &mut Found) {
        let Some(limit) = self.limits.probe_ns_per_s else { return };
        let mut before = std::mem::take(&mut self.probes);
        for (uid, rate) in rates {
            let ns_per_s = rate.ns_per_s();
            // While nothing was spent of it, a budget need not be known.
            let bucket = before.remove(uid).or((ns_per_s > 0.0).then_some(Bucket::full(limit)));
            let Some(mut bucket) = bucket else { continue };
            bucket.spend(ns_per_s * elapsed.as_secs_f64(), elapsed);
            if bucket.is_empty() {
                found.breaches.push(Breach {
                    uid: *uid,
                    scope: Scope::PROBE,
                    limit_ns_per_s: limit,
                    taken_ns_per_s: ns_per_s,
                    rate: *rate,
                });
            }
            found.note(bucket, ns_per_s);
            if !bucket.is_full() {
                self.probes.insert(*uid, bucket);
            }
        }
    }

    fn look_at_host(&mut self, rates: &[(ProbeUid, Rate)], elapsed: Duration, found: &mut Found) {
        let Some(limit) = self.limits.host_ns_per_s else { return };
        // Without a probe that can fire it begins anew.
        let before = self.host.take().filter(|_| !rates.is_empty());
        let taken_ns_per_s: f64 = rates.iter().map(|(_, rate)| rate.ns_per_s()).sum();
        let bucket = before.or((taken_ns_per_s > 0.0).then_some(Bucket::full(limit)));
        let Some(mut bucket) = bucket else { return };
        bucket.spend(taken_ns_per_s * elapsed.as_secs_f64(), elapsed);
        if bucket.is_empty() {
            add_dearest(rates, (limit, taken_ns_per_s), &mut found.breaches);
            // The others begin anew. What cannot be disarmed goes on paying.
            bucket = Bucket::full(limit);
        }
        found.note(bucket, taken_ns_per_s);
        self.host = Some(bucket).filter(|bucket| !bucket.is_full());
    }

    /// What each takes now. 0 for one that was not there before.
    fn rates(&mut self, readings: &[Reading], elapsed: Duration) -> Vec<(ProbeUid, Rate)> {
        let before = std::mem::take(&mut self.runs);
        let rate = |reading: &Reading| {
            // The kernel counts anew if the event was defined anew.
            let runs = before.get(&reading.uid).map_or(0, |before| reading.runs.saturating_sub(*before));
            let seconds = elapsed.as_secs_f64();
            let runs_per_s = if seconds > 0.0 { runs as f64 / seconds } else { 0.0 };
            (reading.uid, Rate { runs_per_s, hit_ns: reading.hit_ns })
        };
        let rates = readings.iter().map(rate).collect();
        self.runs = readings.iter().map(|reading| (reading.uid, reading.runs)).collect();
        rates
    }
}

/// Adds those that go for the budget of the host to those that go for their own: one at least.
fn add_dearest(rates: &[(ProbeUid, Rate)], (limit, taken_ns_per_s): (u64, f64), breaches: &mut Vec<Breach>) {
    let going: HashSet<_> = breaches.iter().map(|breach| breach.uid).collect();
    let mut rest: Vec<_> = rates.iter().filter(|(uid, _)| !going.contains(uid)).collect();
    rest.sort_by(|(_, one), (_, other)| other.ns_per_s().total_cmp(&one.ns_per_s()));
    let mut rest_ns_per_s: f64 = rest.iter().map(|(_, rate)| rate.ns_per_s()).sum();
    for (uid, rate) in rest {
        if rest_ns_per_s <= limit as f64 && !breaches.is_empty() {
            break;
        }
        rest_ns_per_s -= rate.ns_per_s();
        let scope = Scope::HOST;
        breaches.push(Breach { uid: *uid, scope, limit_ns_per_s: limit, taken_ns_per_s, rate: *rate });
    }
}

/// The part of a budget that is left. It holds what may be spent in a second and fills up at that rate,
/// so that a short burst passes, and a rate above the budget empties it: the faster the higher it is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    limit_ns_per_s: f64,
    level_ns: f64,
}

impl Bucket {
    /// A full one, of a budget in nanoseconds a second.
    const fn full(limit_ns_per_s: u64) -> Self {
        let limit = limit_ns_per_s as f64;
        Self { limit_ns_per_s: limit, level_ns: limit }
    }

    /// So much was spent in that time, evenly.
    fn spend(&mut self, spent_ns: f64, elapsed: Duration) {
        let filled = self.level_ns + self.limit_ns_per_s * elapsed.as_secs_f64() - spent_ns;
        self.level_ns = filled.min(self.limit_ns_per_s);
    }

    /// Whether more was spent than the budget.
    const fn is_empty(&self) -> bool {
        self.level_ns < 0.0
    }

    /// Whether nothing of it is spent.
    fn is_full(&self) -> bool {
        self.level_ns >= self.limit_ns_per_s
    }

    /// Whether more than a quarter of it is spent.
    fn is_low(&self) -> bool {
        self.level_ns < 0.75 * self.limit_ns_per_s
    }

    /// How long it lasts at that rate. Absent if the rate is within the budget.
    fn lasts(&self, ns_per_s: f64) -> Option<Duration> {
        let loss = ns_per_s - self.limit_ns_per_s;
        (loss > 0.0).then(|| Duration::try_from_secs_f64(self.level_ns.max(0.0) / loss).ok()).flatten()
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
