//! Messages of costs: what a hit takes, and what probes and the daemon have taken.
//!
//! Owns their form. Never measures anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kprobed_proto::v1;

use crate::control::{CostTable, Probe};
use crate::messages;
use crate::store::{SpentByDaemon, SpentByProbe};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_verdict::validate::Arming;

/// What one hit of a probe takes.
pub(super) fn hit_cost(
    table: &CostTable,
    kind: ProbeKind,
    arming: Option<Arming>,
    line: &str,
) -> v1::HitCost {
    let cost = table.hit(kind, arming, line);
    v1::HitCost { ns: cost.ns, error_ns: cost.error_ns, calibrated: table.is_calibrated }
}

/// What one hit of a probe takes that was checked. Absent if it was refused.
pub(super) fn checked_cost(table: &CostTable, checked: &v1::CheckProbeResponse) -> Option<v1::HitCost> {
    let kind = if checked.kernel_definition.starts_with('r') { ProbeKind::Return } else { ProbeKind::Entry };
    let arming = match checked.arming() {
        v1::Arming::Ftrace => Some(Arming::Ftrace),
        v1::Arming::Breakpoint => Some(Arming::Breakpoint),
        v1::Arming::Optimised => Some(Arming::Optimised),
        v1::Arming::Unspecified => None,
    };
    let is_accepted = checked.verdict() == v1::Verdict::Accepted && !checked.kernel_definition.is_empty();
    is_accepted.then(|| hit_cost(table, kind, arming, &checked.kernel_definition))
}

/// What is known now.
pub(super) struct Costs {
    /// The figures of this host.
    pub(super) table: Arc<CostTable>,
    /// All probes.
    pub(super) probes: Vec<Arc<Probe>>,
}

impl Costs {
    /// What was taken since a day.
    pub(super) fn response(
        &self,
        since_day: u64,
        probes: Vec<SpentByProbe>,
        daemon: &[SpentByDaemon],
    ) -> v1::ListCostsResponse {
        let known = self.probes.iter().map(|probe| {
            let cost = hit_cost(&self.table, probe.kind, probe.arming, &probe.kernel_definition);
            let creator = probe.creator.clone();
            let entry = v1::ProbeCost { hit_cost: Some(cost), creator, ..empty(&probe.name, probe.uid) };
            ((probe.name.clone(), probe.uid), entry)
        });
        let mut all: BTreeMap<(ProbeName, ProbeUid), v1::ProbeCost> = known.collect();
        for SpentByProbe { uid, name, creator, day: on, runs, cpu_ns } in probes {
            let gone = || v1::ProbeCost { creator, ..empty(&name, uid) };
            let entry = all.entry((name.clone(), uid)).or_insert_with(gone);
            entry.days.push(day(on, runs, cpu_ns));
        }
        v1::ListCostsResponse {
            start_time: Some(messages::timestamp(begin(since_day))),
            probes: all.into_values().collect(),
            daemon: daemon.iter().map(|spent| day(spent.day, 0, spent.cpu_ns)).collect(),
        }
    }
}

fn empty(name: &ProbeName, uid: ProbeUid) -> v1::ProbeCost {
    v1::ProbeCost { probe: name.to_string(), probe_uid: uid.0, ..v1::ProbeCost::default() }
}

fn day(day: u64, runs: u64, cpu_ns: u64) -> v1::DayCost {
    let start_time = Some(messages::timestamp(begin(day)));
    v1::DayCost { start_time, runs, cpu_seconds: cpu_ns as f64 / 1e9 }
}

/// When a day begins.
fn begin(day: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(24 * day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{self, test_probe};

    #[test]
    fn probes_that_were_deleted_are_shown_too() {
        let table = control::Costs::default().table();
        let costs = Costs { table, probes: vec![Arc::new(test_probe(2, "kprobes/b"))] };
        let spent = |uid, name: &str, day, runs| SpentByProbe {
            uid: ProbeUid(uid),
            name: name.parse().unwrap(),
            creator: "uid:1000".to_owned(),
            day,
            runs,
            cpu_ns: 500 * runs,
        };
        let probes =
            vec![spent(1, "kprobes/a", 3, 2), spent(1, "kprobes/a", 4, 6), spent(2, "kprobes/b", 4, 1)];
        let response = costs.response(3, probes, &[SpentByDaemon { day: 4, cpu_ns: 2_500_000_000 }]);
        assert_eq!(response.start_time.unwrap().seconds, 3 * 86_400);
        let [gone, there] = response.probes.as_slice() else { panic!("{response:?}") };
        assert_eq!((gone.probe.as_str(), gone.hit_cost, gone.days.len()), ("kprobes/a", None, 2));
        assert_eq!(gone.creator, "uid:1000");
        assert_eq!(gone.days[1], day(4, 6, 3000));
        let hit = there.hit_cost.unwrap();
        assert!(!hit.calibrated && hit.ns > 0.0 && there.days.len() == 1, "{there:?}");
        assert!((response.daemon[0].cpu_seconds - 2.5).abs() < 1e-9, "{response:?}");
    }
}
