//! Judgement of a host's reading: gates, and what stops a roll-out whatever the gates are.
//!
//! Owns the readings, and the rule that missing data neither passes nor fails a gate. It asks no host.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::change::Armed;
use super::gate::{Figure, Gates, Metric};

/// A reading of a host: its counters and health at one moment. Counters are absent if the host does not know
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reading {
    /// Boot id: counters of different boots are not comparable.
    pub(crate) boot_id: String,
    /// When the daemon was started, in milliseconds since 1970.
    pub(crate) daemon_start_ms: u64,
    /// Checks of the host that fail.
    pub(crate) failed_checks: BTreeSet<String>,
    /// By uid, the probes that the host has disarmed, with name and reason: those of the roll-out for their
    /// cost, and others for a budget that they share.
    pub(crate) tripped: BTreeMap<i64, String>,
    /// By name, the probes of the roll-out.
    pub(crate) probes: BTreeMap<String, ProbeReading>,
}

/// A probe at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeReading {
    pub(crate) uid: i64,
    pub(crate) etag: String,
    pub(crate) enabled: bool,
    /// Whether its state is as requested.
    pub(crate) is_as_wanted: bool,
    /// Its state, with the reason.
    pub(crate) state: String,
    /// When the kernel's counters were read, in milliseconds since 1970.
    pub(crate) counted_ms: Option<u64>,
    pub(crate) hits: Option<u64>,
    pub(crate) misses: Option<u64>,
    /// Hits as the ledger has them.
    pub(crate) ledger_hits: Option<u64>,
    /// Events of it that were lost. Absent if the ledger does not know this probe's part.
    pub(crate) lost: Option<u64>,
}

impl Reading {
    /// Whether the counters of two readings are comparable, or why not.
    fn comparable(&self, now: &Self) -> Result<(), &'static str> {
        if self.boot_id != now.boot_id {
            return Err("the host was booted again: its counters began at zero");
        }
        if self.daemon_start_ms != now.daemon_start_ms {
            return Err("the daemon was started again: its ledger began at zero");
        }
        Ok(())
    }

    /// Takes from `now`, after a person has resumed the roll-out, the counters that this reading lacks and
    /// those that began anew. All else stays: what went wrong since is not forgiven.
    pub(super) fn resume(&mut self, now: &Self) {
        if self.comparable(now).is_err() {
            (self.boot_id, self.daemon_start_ms) = (now.boot_id.clone(), now.daemon_start_ms);
            self.probes.clone_from(&now.probes);
        }
        for (name, is) in &now.probes {
            let Some(was) = self.probes.get_mut(name).filter(|was| was.uid == is.uid) else { continue };
            for (was, is) in [
                (&mut was.hits, is.hits),
                (&mut was.misses, is.misses),
                (&mut was.ledger_hits, is.ledger_hits),
                (&mut was.lost, is.lost),
            ] {
                if was.is_none() || is.is_some() && is < *was {
                    *was = is;
                }
            }
        }
    }
}

/// What a reading says about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// Gates that are not passed, as sentences.
    pub(super) failed: Vec<String>,
    /// Gates without data, as sentences.
    pub(super) missing: Vec<String>,
    /// The worst figure of each gate.
    pub(super) figures: BTreeMap<Metric, Figure>,
}

/// Judges the current reading of a host: against the one before the change, and against the last one since, if
/// there is one.
pub(super) fn judge(
    before: &Reading,
    last: Option<&Reading>,
    now: &Reading,
    armed: &BTreeMap<String, Armed>,
    gates: &Gates,
) -> Judgement {
    let mut judgement = Judgement::default();
    if let Err(why) = before.comparable(now) {
        judgement.missing.push(why.to_owned());
        return judgement;
    }
    // They harm the host, whatever the gates are. What the new probes cost can be what others have no room for.
    let trips: BTreeMap<_, _> =
        now.tripped.iter().filter(|(uid, _)| !before.tripped.contains_key(*uid)).collect();
    judgement.failed.extend(trips.values().map(|state| format!("budget: {state}")));
    let ill = now.failed_checks.difference(&before.failed_checks);
    judgement
        .failed
        .extend(ill.map(|check| format!("health: the check `{check}` of `kprobectl doctor` fails")));
    let mut errors = Vec::new();
    for (name, armed) in armed {
        match now.probes.get(name) {
            None => errors.push(format!("`{name}` is gone")),
            Some(probe) if probe.uid != armed.uid || probe.etag != armed.etag => {
                judgement.missing.push(format!("`{name}` was changed by someone else since"));
            }
            Some(probe) => {
                if !probe.is_as_wanted && !trips.contains_key(&probe.uid) {
                    errors.push(format!("`{name}` is {}", probe.state));
                }
                if probe.enabled {
                    let before = before.probes.get(name).filter(|before| before.uid == probe.uid);
                    let last = last.and_then(|last| last.probes.get(name));
                    counters(&mut judgement, name, before, last, probe, gates);
                }
            }
        }
    }
    let count = Figure { count: errors.len() as u64, of: 0, probe: String::new() };
    judgement.take(gates, Metric::Errors, count, &errors.join("; "));
    judgement
}

/// The gates on counters of one probe.
fn counters(
    judgement: &mut Judgement,
    name: &str,
    before: Option<&ProbeReading>,
    last: Option<&ProbeReading>,
    now: &ProbeReading,
    gates: &Gates,
) {
    const UNKNOWN: &str = "the host does not know it";
    const BACKWARDS: &str = "the counter went backwards";
    // A new probe, or one with a new definition, has counted everything since the change.
    let grown = |of: fn(&ProbeReading) -> Option<u64>| -> Result<u64, &'static str> {
        let is = of(now).ok_or(UNKNOWN)?;
        // If one counter fell, the earlier readings are not comparable.
        if last.is_some_and(|last| of(last).is_some_and(|last| last > is)) {
            return Err(BACKWARDS);
        }
        let was = before.map_or(Ok(0), |before| of(before).ok_or("it was not known before the change"))?;
        is.checked_sub(was).ok_or(BACKWARDS)
    };
    let loss = || Ok((grown(|probe| probe.lost)?, grown(|probe| probe.ledger_hits)?));
    let misses = || {
        let misses = grown(|probe| probe.misses)?;
        // A miss is not a hit: the share is of their sum.
        Ok((misses, grown(|probe| probe.hits)?.saturating_add(misses)))
    };
    // Hits in a second between two readings.
    let rate = |last: &ProbeReading| {
        let hits = now.hits.ok_or(UNKNOWN)?.checked_sub(last.hits.ok_or(UNKNOWN)?).ok_or(BACKWARDS)?;
        let passed = now.counted_ms.ok_or(UNKNOWN)?.checked_sub(last.counted_ms.ok_or(UNKNOWN)?);
        let passed = passed.ok_or("the host's clock went backwards")?;
        if passed == 0 {
            return Err("no time passed between two readings");
        }
        let rate = (u128::from(hits) * 1000).div_ceil(u128::from(passed));
        Ok((u64::try_from(rate).unwrap_or(u64::MAX), 0))
    };
    let mut take = |metric: Metric, found: Result<(u64, u64), &'static str>| match found {
        Ok((count, of)) => {
            let figure = Figure { count, of, probe: name.to_owned() };
            let shown = metric.shown(&Figure { probe: format!("`{name}`"), ..figure.clone() });
            judgement.take(gates, metric, figure, &shown);
        }
        Err(_) if gates.gate(metric).limit.is_none() => {}
        Err(why) => judgement.missing.push(format!("{metric} of `{name}`: {why}")),
    };
    take(Metric::Loss, loss());
    take(Metric::Misses, misses());
    // A rate needs two readings.
    if let Some(last) = last {
        take(Metric::Hits, rate(last));
    }
}

impl Judgement {
    /// Compares a figure with its gate, and keeps it if it is the worst. `shown` says what it is.
    fn take(&mut self, gates: &Gates, metric: Metric, figure: Figure, shown: &str) {
        let gate = gates.gate(metric);
        let Some(limit) = gate.limit else { return };
        if !limit.covers(figure.count, figure.of) {
            self.failed.push(format!("{gate}: {shown}"));
        }
        if self.figures.get(&metric).is_none_or(|worst| figure.is_worse_than(worst)) {
            self.figures.insert(metric, figure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(hits: u64, misses: u64, lost: u64, at: u64) -> ProbeReading {
        ProbeReading {
            uid: 1,
            etag: "e".to_owned(),
            enabled: true,
            is_as_wanted: true,
            state: "armed".to_owned(),
            counted_ms: Some(at),
            hits: Some(hits),
            misses: Some(misses),
            ledger_hits: Some(hits),
            lost: Some(lost),
        }
    }

    fn reading(probe: ProbeReading) -> Reading {
        Reading { boot_id: "b".to_owned(), probes: [("k/a".to_owned(), probe)].into(), ..Reading::default() }
    }

    fn judged(before: ProbeReading, last: Option<ProbeReading>, now: &Reading) -> Judgement {
        let armed = [("k/a".to_owned(), Armed { uid: 1, etag: "e".to_owned() })].into();
        judge(&reading(before), last.map(reading).as_ref(), now, &armed, &Gates::with(&[]))
    }

    #[test]
    fn figures_are_those_since_the_change() {
        let before = probe(1_000_000, 500, 900, 0);
        let now = reading(probe(1_010_000, 510, 910, 2000));
        let good = judged(before.clone(), Some(probe(1_000_000, 500, 900, 1000)), &now);
        assert_eq!((good.failed, good.missing), (Vec::<String>::new(), Vec::new()));
        let shown = |metric: Metric| metric.shown(&good.figures[&metric]);
        assert_eq!(shown(Metric::Errors), "0");
        assert_eq!(shown(Metric::Loss), "10 of 10000 of k/a");
        assert_eq!(shown(Metric::Misses), "10 of 10010 of k/a");
        assert_eq!(shown(Metric::Hits), "10000/s of k/a");
        let bad = judged(before, None, &reading(probe(1_010_000, 511, 911, 2000)));
        assert_eq!(
            bad.failed,
            ["loss<=0.1%: 11 of 10000 of `k/a`", "misses<=0.1%: 11 of 10011 of `k/a`"],
            "{bad:?}"
        );
        let fast = judged(probe(0, 0, 0, 0), Some(probe(0, 0, 0, 0)), &reading(probe(100_001, 0, 0, 1000)));
        assert_eq!(fast.failed, ["hits<=100000/s: 100001/s of `k/a`"]);
    }

    #[test]
    fn what_is_missing_is_never_passed() {
        let missing = |now: &Reading| {
            let judgement = judged(probe(10, 0, 0, 0), Some(probe(20, 0, 0, 500)), now);
            assert_eq!(judgement.failed, Vec::<String>::new());
            judgement.missing.join(" / ")
        };
        let with = |change: fn(&mut ProbeReading)| {
            let mut now = probe(30, 0, 0, 1000);
            change(&mut now);
            missing(&reading(now))
        };
        assert_eq!(with(|_now| ()), "");
        assert_eq!(with(|now| now.lost = None), "loss of `k/a`: the host does not know it");
        let no_counts =
            "misses of `k/a`: the host does not know it / hits of `k/a`: the host does not know it";
        assert_eq!(with(|now| now.hits = None), no_counts);
        assert_eq!(with(|now| now.misses = None), "misses of `k/a`: the host does not know it");
        assert_eq!(with(|now| now.counted_ms = None), "hits of `k/a`: the host does not know it");
        assert_eq!(
            with(|now| now.counted_ms = Some(500)),
            "hits of `k/a`: no time passed between two readings"
        );
        assert_eq!(with(|now| now.ledger_hits = Some(15)), "loss of `k/a`: the counter went backwards");
        assert_eq!(with(|now| now.uid = 2), "`k/a` was changed by someone else since");
        assert_eq!(with(|now| now.etag.clear()), "`k/a` was changed by someone else since");
        let mut booted = reading(probe(30, 0, 0, 1000));
        booted.boot_id = "c".to_owned();
        assert_eq!(missing(&booted), "the host was booted again: its counters began at zero");
        let mut restarted = reading(probe(30, 0, 0, 1000));
        restarted.daemon_start_ms = 7;
        assert_eq!(missing(&restarted), "the daemon was started again: its ledger began at zero");
    }

    #[test]
    fn a_probe_that_is_not_as_wanted_is_an_error() {
        let before = probe(10, 0, 0, 0);
        let drifted = ProbeReading { is_as_wanted: false, state: "drifted".to_owned(), ..probe(10, 0, 0, 1) };
        assert_eq!(judged(before.clone(), None, &reading(drifted)).failed, ["errors<=0: `k/a` is drifted"]);
        let tripped = |uid| {
            let state = "tripped: why".to_owned();
            let probe = ProbeReading { uid, is_as_wanted: false, state, ..probe(10, 0, 0, 1) };
            Reading { tripped: [(uid, "`k/a` is tripped: why".to_owned())].into(), ..reading(probe) }
        };
        let off = Gates::with(&["errors=off".parse().unwrap()]);
        let failed = |was: &Reading, gates: &Gates| {
            let armed = BTreeMap::from([("k/a".to_owned(), Armed { uid: 1, etag: "e".to_owned() })]);
            judge(was, None, &tripped(1), &armed, gates).failed
        };
        // Whatever the gates are, unless it was so before the change.
        for was in [reading(before.clone()), tripped(2)] {
            assert_eq!(failed(&was, &off), ["budget: `k/a` is tripped: why"]);
        }
        assert_eq!(failed(&tripped(1), &off), Vec::<String>::new());
        assert_eq!(failed(&tripped(1), &Gates::with(&[])), ["errors<=0: `k/a` is tripped: why"]);
        let mut pushed_out = reading(before.clone());
        pushed_out.tripped.insert(9, "`x/y` is tripped: why".to_owned());
        assert_eq!(judged(before.clone(), None, &pushed_out).failed, ["budget: `x/y` is tripped: why"]);
        let still = judge(&pushed_out, None, &pushed_out, &BTreeMap::new(), &off);
        assert_eq!(still.failed, Vec::<String>::new());
        let gone = Reading { boot_id: "b".to_owned(), ..Reading::default() };
        assert_eq!(judged(before.clone(), None, &gone).failed, ["errors<=0: `k/a` is gone"]);
        let mut ill = reading(probe(10, 0, 0, 1));
        ill.failed_checks.insert("ftrace_enabled".to_owned());
        let failed = judged(before, None, &ill).failed;
        assert_eq!(failed, ["health: the check `ftrace_enabled` of `kprobectl doctor` fails"]);
    }

    #[test]
    fn the_worst_figure_is_the_largest_share() {
        let two = |a: ProbeReading, b: ProbeReading| {
            let probes = BTreeMap::from([("k/a".to_owned(), a), ("k/b".to_owned(), b)]);
            Reading { probes, ..reading(probe(0, 0, 0, 0)) }
        };
        let armed = Armed { uid: 1, etag: "e".to_owned() };
        let armed = BTreeMap::from([("k/a".to_owned(), armed.clone()), ("k/b".to_owned(), armed)]);
        let before = two(probe(0, 0, 0, 0), probe(0, 0, 0, 0));
        let now = two(probe(1_000_000, 0, 100, 1), probe(100, 0, 50, 1));
        let judgement = judge(&before, None, &now, &armed, &Gates::with(&[]));
        assert_eq!(Metric::Loss.shown(&judgement.figures[&Metric::Loss]), "50 of 100 of k/b");
    }

    /// A person has resumed the roll-out: what the host did not know, or counts anew, begins there.
    #[test]
    fn a_resume_forgives_only_what_cannot_be_known() {
        let resumed = |before: &Reading, now: &Reading| {
            let mut base = before.clone();
            base.resume(now);
            base
        };
        let mut before = reading(ProbeReading { lost: None, ..probe(100, 7, 0, 0) });
        before.failed_checks.insert("ever".to_owned());
        let mut now = reading(probe(120, 5, 3, 1));
        now.tripped.insert(9, "`x/y` is tripped: why".to_owned());
        now.failed_checks.insert("new".to_owned());
        let wanted = Reading { probes: reading(probe(100, 5, 3, 0)).probes, ..before.clone() };
        assert_eq!(resumed(&before, &now), wanted);
        // Another incarnation has counted everything since the change.
        let other = reading(ProbeReading { uid: 2, ..probe(1, 1, 1, 1) });
        assert_eq!(resumed(&before, &other), before);
        now.daemon_start_ms = 8;
        let wanted =
            Reading { failed_checks: before.failed_checks.clone(), tripped: BTreeMap::new(), ..now.clone() };
        assert_eq!(resumed(&before, &now), wanted);
    }
}
