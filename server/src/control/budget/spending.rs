//! Spending over days: what probes and the daemon have taken, for the database.
//!
//! Owns what was counted already. Written with each sample of the hit counts, before a probe goes,
//! and at the end. Never decides about a probe.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::cost::whole;
use crate::control::Probe;
use crate::control::controller::Controller;
use crate::store::{SpentByDaemon, SpentByProbe, day_of};
use kprobed_host::kernel::processor_time;
use kprobed_lang::model::{HitProfile, ProbeUid};

/// The daemon's own processor time that is worth a write to the disk, if no probe was hit.
const WORTH_A_WRITE: Duration = Duration::from_secs(1);

/// How far the counts are accounted for.
#[derive(Debug, Default)]
pub(in crate::control) struct Spending {
    probes: HashMap<ProbeUid, Known>,
    /// Processor time of the daemon.
    daemon: Duration,
    /// What could not be stored yet.
    waiting: HashMap<(ProbeUid, u64), SpentByProbe>,
    fails: bool,
}

/// What is known of a probe, also while it is being deleted.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Runs that are accounted for.
    runs: u64,
    /// What one takes, in nanoseconds.
    hit_ns: f64,
    /// Who has made the probe; empty if that is not known.
    creator: String,
}

/// Runs that a hit count stands for: those that the kernel skipped take time too.
const fn runs(profile: &HitProfile) -> u64 {
    profile.hits.hits.saturating_add(profile.hits.nmissed)
}

impl Spending {
    /// The kernel had counted so much before the probe was the daemon's, or before it was started.
    pub(in crate::control) fn begin(&mut self, uid: ProbeUid, runs: u64) {
        self.probes.entry(uid).or_default().runs = runs;
    }

    /// A hit of the probe, which that principal has made, takes so many nanoseconds from now on.
    fn set_cost(&mut self, uid: ProbeUid, creator: &str, hit_ns: f64) {
        let known = self.probes.entry(uid).or_default();
        (known.hit_ns, known.creator) = (hit_ns, creator.to_owned());
    }

    /// Takes the counts, and notes what is new in them. The kernel counts the hits of a new probe
    /// from 0.
    fn count(&mut self, profiles: &[HitProfile], day: u64) {
        for profile in profiles {
            let known = self.probes.entry(profile.uid).or_default();
            let before = std::mem::replace(&mut known.runs, runs(profile));
            // It was defined anew, and is counted from 0 again.
            let new = if runs(profile) < before { runs(profile) } else { runs(profile) - before };
            if new == 0 {
                continue;
            }
            let nothing = || SpentByProbe {
                uid: profile.uid,
                name: profile.name.clone(),
                creator: known.creator.clone(),
                day,
                runs: 0,
                cpu_ns: 0,
            };
            let spent = self.waiting.entry((profile.uid, day)).or_insert_with(nothing);
            spent.runs += new;
            spent.cpu_ns += whole(new as f64 * known.hit_ns);
        }
    }
}

impl Controller {
    /// What is counted until now was not counted by this daemon.
    pub(in crate::control) fn begin_spending(&mut self) {
        for probe in self.parts.registry.all() {
            self.note_hit_cost(&probe);
        }
        for profile in self.hit_profiles().unwrap_or_default() {
            self.spending.begin(profile.uid, runs(&profile));
        }
    }

    /// The probe is new, or was changed.
    pub(in crate::control) fn note_hit_cost(&mut self, probe: &Probe) {
        let costs = self.parts.costs.table();
        let cost = costs.hit(probe.kind, probe.arming, &probe.kernel_definition);
        self.spending.set_cost(probe.uid, &probe.creator, cost.ns);
    }

    /// Notes the last counts of probes that go. The next sample stores them.
    pub(in crate::control) fn count_leaving(&mut self, profiles: &[HitProfile]) {
        self.spending.count(profiles, day_of(SystemTime::now()));
        for profile in profiles {
            self.spending.probes.remove(&profile.uid);
        }
    }

    /// Stores what was spent until these counts, those of all probes. Unless `at_once`, little time
    /// of the daemon alone is stored with the next ones.
    pub(in crate::control) async fn store_spending(&mut self, profiles: &[HitProfile], at_once: bool) {
        let day = day_of(SystemTime::now());
        let spending = &mut self.spending;
        spending.count(profiles, day);
        let now = processor_time().unwrap_or(spending.daemon);
        let taken = now.saturating_sub(spending.daemon);
        if spending.waiting.is_empty() && taken < WORTH_A_WRITE && !at_once {
            return;
        }
        let daemon = SpentByDaemon { day, cpu_ns: u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX) };
        let probes: Vec<_> = spending.waiting.values().cloned().collect();
        match self.parts.store.add_spent(&probes, daemon).await {
            Ok(()) => {
                self.spending.waiting.clear();
                (self.spending.daemon, self.spending.fails) = (now, false);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.spending.fails, true) {
                    tracing::warn!(%error, "cannot store what probes have cost");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_lang::model::Hits;

    fn profile(uid: i64, hits: u64, nmissed: u64) -> HitProfile {
        HitProfile {
            uid: ProbeUid(uid),
            name: "kprobes/a".parse().unwrap(),
            boot_id: String::new(),
            time: SystemTime::UNIX_EPOCH,
            hits: Hits { hits, nmissed },
        }
    }

    #[test]
    fn every_run_is_spent_once() {
        let mut spending = Spending::default();
        spending.begin(ProbeUid(1), 1000);
        spending.set_cost(ProbeUid(1), "uid:1000", 500.0);
        spending.set_cost(ProbeUid(2), "", 500.0);
        for (profiles, day) in [
            (vec![profile(1, 1100, 0), profile(2, 10, 5)], 3),
            (vec![profile(1, 1100, 0), profile(2, 20, 5)], 3),
            // It was defined anew.
            (vec![profile(1, 4, 0), profile(2, 20, 5)], 4),
        ] {
            spending.count(&profiles, day);
        }
        let mut spent: Vec<_> = spending
            .waiting
            .values()
            .map(|spent| (spent.uid.0, spent.creator.as_str(), spent.day, spent.runs, spent.cpu_ns))
            .collect();
        spent.sort_unstable();
        let own = "uid:1000";
        assert_eq!(spent, [(1, own, 3, 100, 50_000), (1, own, 4, 4, 2000), (2, "", 3, 25, 12_500)]);
    }
}
