//! Readings: the counts of the probes that can fire, as the meter takes them.
//!
//! Owns what is remembered of a probe from one look to the next: who pays for it, and what a hit costs. A
//! look at many probes of which few are hit is to cost little. Never reads a counter.

use std::collections::HashMap;
use std::sync::Arc;

use super::cost::CostTable;
use super::payer::{BudgetSettings, Payer};
use crate::control::Probe;
use kprobed_lang::model::{Hits, ProbeUid};

/// The count of a probe that can fire.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) uid: ProbeUid,
    /// Whose budgets it is on.
    pub(super) payers: Arc<[Payer]>,
    /// How often the kernel has run into it, skipped runs included.
    pub(super) runs: u64,
    /// What one costs, in nanoseconds.
    pub(super) hit_ns: f64,
}

/// A probe as it was at the last look.
#[derive(Debug)]
struct Known {
    probe: Arc<Probe>,
    costs: Arc<CostTable>,
    payers: Arc<[Payer]>,
    hit_ns: f64,
}

impl Known {
    fn new(probe: Arc<Probe>, limits: &BudgetSettings, costs: &Arc<CostTable>) -> Self {
        let payers = Payer::of(&probe.record, limits).into();
        let hit_ns = costs.hit(probe.kind, probe.arming, &probe.kernel_definition).ns;
        Self { probe, costs: Arc::clone(costs), payers, hit_ns }
    }

    fn is_of(&self, probe: &Arc<Probe>, costs: &Arc<CostTable>) -> bool {
        Arc::ptr_eq(&self.probe, probe) && Arc::ptr_eq(&self.costs, costs)
    }
}

/// The probes of the last look.
#[derive(Debug, Default)]
pub(super) struct KnownProbes(HashMap<ProbeUid, Known>);

impl KnownProbes {
    /// The readings of these probes. Forgets all others.
    pub(super) fn readings(
        &mut self,
        armed: impl Iterator<Item = (Arc<Probe>, Hits)>,
        limits: &BudgetSettings,
        costs: &Arc<CostTable>,
    ) -> Vec<Reading> {
        let mut before = std::mem::take(&mut self.0);
        let mut readings = Vec::with_capacity(before.len());
        for (probe, hits) in armed {
            let uid = probe.uid;
            let known = before.remove(&uid).filter(|known| known.is_of(&probe, costs));
            let known = known.unwrap_or_else(|| Known::new(probe, limits, costs));
            readings.push(Reading {
                uid,
                payers: Arc::clone(&known.payers),
                runs: hits.hits.saturating_add(hits.nmissed),
                hit_ns: known.hit_ns,
            });
            self.0.insert(uid, known);
        }
        readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::probe::tests::probe;

    #[test]
    fn what_has_changed_is_computed_anew() {
        let limits =
            BudgetSettings { group_ns_per_s: Some(1), probe_ns_per_s: Some(1), ..Default::default() };
        let costs = Arc::new(CostTable::CONSERVATIVE);
        let mut known = KnownProbes::default();
        let first = Arc::new(probe(1, "one/a"));
        let of = |known: &mut KnownProbes, probe: &Arc<Probe>, costs: &Arc<CostTable>, hits| {
            let hits = Hits { hits, nmissed: 2 };
            let mut readings = known.readings([(Arc::clone(probe), hits)].into_iter(), &limits, costs);
            readings.pop().unwrap()
        };
        let at_first = of(&mut known, &first, &costs, 5);
        assert_eq!(
            (at_first.runs, at_first.uid, &at_first.payers[1]),
            (7, ProbeUid(1), &Payer::Group("one".into()))
        );
        let again = of(&mut known, &first, &costs, 6);
        assert!(Arc::ptr_eq(&at_first.payers, &again.payers) && again.runs == 8, "it is remembered");
        let moved = Arc::new(probe(1, "two/a"));
        assert_eq!(of(&mut known, &moved, &costs, 6).payers[1], Payer::Group("two".into()));
        let dearer = Arc::new(CostTable::scaled(2.0));
        assert!(of(&mut known, &moved, &dearer, 6).hit_ns > at_first.hit_ns, "the host was calibrated");
        assert!(known.readings(std::iter::empty(), &limits, &costs).is_empty() && known.0.is_empty());
    }
}
