//! Meter: what probes spend, and which of them are over a budget.
//!
//! Owns the spending since the last look and the decision who goes: of a group or of the host, the
//! most expensive first, until the others are within the budget. Plain arithmetic over what was
//! read: never reads a counter or a clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;
use super::payer::{BudgetSettings, Payer};
use super::reading::Reading;
use kprobed_lang::model::ProbeUid;

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
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Breach {
    pub(super) uid: ProbeUid,
    /// Whose budget is spent.
    pub(super) payer: Payer,
    /// That budget, in nanoseconds a second.
    pub(super) limit_ns_per_s: u64,
    /// What all that pay from it took together, in nanoseconds a second.
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

/// The meter.
#[derive(Debug, Default)]
pub(super) struct Meter {
    limits: BudgetSettings,
    last: Option<Instant>,
    /// Runs of each probe at the last look.
    runs: HashMap<ProbeUid, u64>,
    /// The budgets of which something is spent.
    buckets: BTreeMap<Payer, Bucket>,
}

impl Meter {
    pub(super) fn new(limits: BudgetSettings) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes the counts of all probes that can fire. A probe that was not among the last ones
    /// begins with this count.
    pub(super) fn look(&mut self, now: Instant, readings: &[Reading]) -> Found {
        let elapsed = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let rates = self.rates(readings, elapsed);
        let mut taken: BTreeMap<&Payer, f64> = BTreeMap::new();
        for (reading, rate) in readings.iter().zip(&rates).filter(|(_, rate)| rate.runs_per_s > 0.0) {
            for payer in &*reading.payers {
                *taken.entry(payer).or_default() += rate.ns_per_s();
            }
        }
        // Those that take nothing any more fill up, and those that have gone pay no more: a probe that was
        // disarmed begins anew when it is armed again.
        let mut buckets = std::mem::take(&mut self.buckets);
        let is_there = |payer: &Payer| match payer {
            Payer::Probe(uid) => self.runs.contains_key(uid),
            _ => readings.iter().any(|reading| reading.payers.contains(payer)),
        };
        let idle = buckets.keys().filter(|payer| !taken.contains_key(payer) && is_there(payer));
        let idle: Vec<_> = idle.cloned().collect();
        taken.extend(idle.iter().map(|payer| (payer, 0.0)));
        let mut found = Found::default();
        let mut tripped = HashSet::new();
        for (payer, ns_per_s) in taken {
            let Some(limit) = payer.limit(&self.limits) else { continue };
            let mut bucket = buckets.remove(payer).unwrap_or_else(|| Bucket::full(limit));
            bucket.spend(ns_per_s * elapsed.as_secs_f64(), elapsed);
            if bucket.is_empty() {
                let breaches = over(payer, limit, readings, &rates, &mut tripped);
                found.breaches.extend(breaches);
                // The others begin anew. What cannot be disarmed goes on paying.
                if !matches!(payer, Payer::Probe(_)) {
                    bucket.refill();
                }
            }
            found.is_near |= bucket.is_low() || ns_per_s > limit as f64 / 2.0;
            found.lasts = [found.lasts, bucket.lasts(ns_per_s)].into_iter().flatten().min();
            if !bucket.is_full() {
                self.buckets.insert(payer.clone(), bucket);
            }
        }
        found
    }

    /// What each takes now. 0 for one that was not there before.
    fn rates(&mut self, readings: &[Reading], elapsed: Duration) -> Vec<Rate> {
        let before = std::mem::take(&mut self.runs);
        let rate = |reading: &Reading| {
            // The kernel counts anew if the event was defined anew.
            let runs = before.get(&reading.uid).map_or(0, |before| reading.runs.saturating_sub(*before));
            let seconds = elapsed.as_secs_f64();
            let runs_per_s = if seconds > 0.0 { runs as f64 / seconds } else { 0.0 };
            Rate { runs_per_s, hit_ns: reading.hit_ns }
        };
        let rates = readings.iter().map(rate).collect();
        self.runs = readings.iter().map(|reading| (reading.uid, reading.runs)).collect();
        rates
    }
}

/// Those that go for a payer whose budget is spent: at least one, unless that is done already.
fn over(
    payer: &Payer,
    limit: u64,
    readings: &[Reading],
    rates: &[Rate],
    tripped: &mut HashSet<ProbeUid>,
) -> Vec<Breach> {
    let mut members: Vec<_> =
        readings.iter().zip(rates).filter(|(reading, _)| reading.payers.contains(payer)).collect();
    members.sort_by(|(_, one), (_, other)| other.ns_per_s().total_cmp(&one.ns_per_s()));
    let taken_ns_per_s: f64 = members.iter().map(|(_, rate)| rate.ns_per_s()).sum();
    let is_done = members.iter().any(|(reading, _)| tripped.contains(&reading.uid));
    members.retain(|(reading, _)| !tripped.contains(&reading.uid));
    let mut rest: f64 = members.iter().map(|(_, rate)| rate.ns_per_s()).sum();
    let mut breaches = Vec::new();
    for (reading, rate) in members {
        if rest <= limit as f64 && (is_done || !breaches.is_empty()) {
            break;
        }
        rest -= rate.ns_per_s();
        tripped.insert(reading.uid);
        breaches.push(Breach {
            uid: reading.uid,
            payer: payer.clone(),
            limit_ns_per_s: limit,
            taken_ns_per_s,
            rate: *rate,
        });
    }
    breaches
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
