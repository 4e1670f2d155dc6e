//! Judgement of a host's reading against the gates.
//!
//! Owns the rule that missing data neither passes nor fails a gate. Plain functions: they read
//! nothing.

use std::collections::BTreeMap;

use super::cpu_share::CpuShare;
use super::gate::{Gates, Limit, Metric};
use super::reading::{ProbeReading, Reading, Spent};
use super::recorded_change::Armed;

/// What the gates say about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// Gates that are not passed, as sentences.
    pub(super) failed: Vec<String>,
    /// Gates without data, as sentences.
    pub(super) missing: Vec<String>,
    /// The worst figure of each gate, as text.
    pub(super) figures: BTreeMap<String, String>,
}

/// A figure of a gate: a count, and the total that it is a part of.
type Figure = (u64, u64);

/// The earlier readings that a reading is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since<'a> {
    /// Before the change.
    pub(super) before: &'a Reading,
    /// The reading before this one, since the change.
    pub(super) last: Option<&'a Reading>,
    /// What the daemon had used when the soak began. Absent: it begins now.
    pub(super) soak_begun: Option<&'a Spent>,
    /// Length of the soak in milliseconds: until it is over, the CPU share is of the whole soak. 0:
    /// it is over.
    pub(super) soak_ms: u64,
}

/// Judges the current reading of a host.
pub(super) fn judge(
    compared: &Since<'_>,
    now: &Reading,
    armed: &BTreeMap<String, Armed>,
    gates: &Gates,
) -> Judgement {
    let mut judgement = Judgement::default();
    let Since { before, last, .. } = *compared;
    let since = last.unwrap_or(before);
    if now.boot_id != since.boot_id {
        judgement.missing.push("the host was booted anew: its counters began at zero".to_owned());
        return judgement;
    }
    if now.daemon_start_ms != since.daemon_start_ms {
        judgement.missing.push("the daemon was started anew: its ledger began at zero".to_owned());
        return judgement;
    }
    let mut bad = Vec::new();
    for (name, armed) in armed {
        match now.probes.get(name) {
            None => bad.push(format!("`{name}` is gone")),
            Some(probe) if probe.uid != armed.uid || probe.etag != armed.etag => {
                judgement.missing.push(format!("`{name}` was changed by someone else since"));
            }
            Some(probe) => {
                let before = before.probes.get(name).filter(|before| before.uid == probe.uid);
                if probe.is_tripped && !before.is_some_and(|before| before.is_tripped) {
                    // It harms the host, however many errors are allowed.
                    judgement.failed.push(format!("budget: `{name}` is {}", probe.state));
                } else if !probe.is_as_wanted {
                    bad.push(format!("`{name}` is {}", probe.state));
                }
                if probe.enabled {
                    let last = last.and_then(|last| last.probes.get(name));
                    counters(&mut judgement, name, before, last, probe, gates);
                }
            }
        }
    }
    count(&mut judgement, Metric::Errors, &bad, gates);
    // What the new probes cost can be what these have no room for.
    let others = now.others_tripped.iter().filter(|(name, _)| !before.others_tripped.contains_key(*name));
    judgement.failed.extend(others.map(|(name, state)| format!("budget: `{name}` is {state}")));
    let ill: Vec<_> = now
        .failed_checks
        .difference(&before.failed_checks)
        .map(|check| format!("the check `{check}` of `kprobectl doctor` fails"))
        .collect();
    count(&mut judgement, Metric::Health, &ill, gates);
    processor(&mut judgement, compared, now, gates);
    judgement
}

fn count(judgement: &mut Judgement, metric: Metric, found: &[String], gates: &Gates) {
    let Some(limit) = gates.limit(metric) else { return };
    let count = found.len() as u64;
    judgement.figures.insert(metric.name().to_owned(), count.to_string());
    if !limit.covers(count, 0) {
        judgement.failed.push(format!("{}<={limit}: {}", metric.name(), found.join("; ")));
    }
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
    // A new probe, or one with a new definition, has counted everything since the change.
    let grown = |of: fn(&ProbeReading) -> Option<u64>| -> Result<u64, &'static str> {
        let is = of(now).ok_or("the host does not know it")?;
        // If one counter fell, the earlier readings are not comparable.
        if last.is_some_and(|last| of(last).is_some_and(|last| last > is)) {
            return Err("the counter went backwards");
        }
        let was = before.map_or(Ok(0), |before| of(before).ok_or("it was not known before the change"))?;
        is.checked_sub(was).ok_or("the counter went backwards")
    };
    let loss = || Ok((grown(|probe| probe.lost)?, grown(|probe| probe.ledger_hits)?));
    let misses = || {
        let misses = grown(|probe| probe.misses)?;
        // A miss is not a hit: the share is of their sum.
        Ok((misses, grown(|probe| probe.hits)?.saturating_add(misses)))
    };
    figure(judgement, Metric::Loss, name, loss(), gates);
    figure(judgement, Metric::Misses, name, misses(), gates);
    // A rate needs two readings.
    if let Some(last) = last {
        figure(judgement, Metric::Hits, name, rate(last, now), gates);
    }
}

/// Hits in a second between two readings.
fn rate(last: &ProbeReading, now: &ProbeReading) -> Result<Figure, &'static str> {
    let unknown = "the host does not know it";
    let hits = now
        .hits
        .ok_or(unknown)?
        .checked_sub(last.hits.ok_or(unknown)?)
        .ok_or("the counter went backwards")?;
    let passed = now
        .counted_ms
        .ok_or(unknown)?
        .checked_sub(last.counted_ms.ok_or(unknown)?)
        .ok_or("the host's clock went backwards")?;
    if passed == 0 {
        return Err("no time passed between two readings");
    }
    let rate = (u128::from(hits) * 1000).div_ceil(u128::from(passed));
    Ok((u64::try_from(rate).unwrap_or(u64::MAX), 0))
}

/// The gate on the daemon's CPU time.
fn processor(judgement: &mut Judgement, compared: &Since<'_>, now: &Reading, gates: &Gates) {
    let Some(limit) = gates.limit(Metric::Cpu) else { return };
    let gate = Metric::Cpu.name();
    match CpuShare::since(compared.soak_begun, now.spent.as_ref(), compared.soak_ms) {
        // A share needs two readings.
        Ok(None) => {}
        Ok(Some(share)) => {
            if !share.is_within(limit) {
                judgement.failed.push(format!("{gate}<={limit}: {share}"));
            }
            judgement.figures.insert(gate.to_owned(), share.to_string());
        }
        Err(why) => judgement.missing.push(format!("{gate}: {why}")),
    }
}

fn figure(
    judgement: &mut Judgement,
    metric: Metric,
    name: &str,
    found: Result<Figure, &'static str>,
    gates: &Gates,
) {
    let Some(limit) = gates.limit(metric) else { return };
    let gate = metric.name();
    match found {
        Err(why) => judgement.missing.push(format!("{gate} of `{name}`: {why}")),
        Ok((count, hits)) => {
            let text = match limit {
                Limit::Rate(_) => format!("{count}/s"),
                Limit::Count(_) | Limit::Share(_) => format!("{count} of {hits}"),
            };
            if !limit.covers(count, hits) {
                judgement.failed.push(format!("{gate}<={limit}: {text} of `{name}`"));
            }
            let shown = format!("{text} of {name}");
            judgement
                .figures
                .entry(gate.to_owned())
                .and_modify(|worst| {
                    if leading(worst) < count {
                        worst.clone_from(&shown);
                    }
                })
                .or_insert(shown);
        }
    }
}

/// The count that a figure begins with.
pub(super) fn leading(figure: &str) -> u64 {
    let end = figure.find(|c: char| !c.is_ascii_digit()).unwrap_or(figure.len());
    figure[..end].parse().unwrap_or(0)
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
            is_tripped: false,
            state: "armed".to_owned(),
            counted_ms: Some(at),
            hits: Some(hits),
            misses: Some(misses),
            ledger_hits: Some(hits),
            lost: Some(lost),
        }
    }

    fn reading(probe: ProbeReading) -> Reading {
        let spent = Some(Spent { processor_ns: 0, uptime_ns: 0 });
        Reading {
            boot_id: "b".to_owned(),
            spent,
            probes: [("k/a".to_owned(), probe)].into(),
            ..Reading::default()
        }
    }

    fn judged(before: ProbeReading, last: Option<ProbeReading>, now: &Reading) -> Judgement {
        let armed = [("k/a".to_owned(), Armed { uid: 1, etag: "e".to_owned() })].into();
        let (before, last) = (reading(before), last.map(reading));
        let since = Since { before: &before, last: last.as_ref(), soak_begun: None, soak_ms: 1000 };
        judge(&since, now, &armed, &Gates::with(&[]))
    }

    #[test]
    fn figures_are_those_since_the_change() {
        let before = probe(1_000_000, 500, 900, 0);
        let now = reading(probe(1_010_000, 510, 910, 2000));
        let good = judged(before.clone(), Some(probe(1_000_000, 500, 900, 1000)), &now);
        assert_eq!((good.failed, good.missing), (Vec::<String>::new(), Vec::new()));
        assert_eq!(good.figures["loss"], "10 of 10000 of k/a");
        assert_eq!(good.figures["misses"], "10 of 10010 of k/a");
        assert_eq!(good.figures["hits"], "10000/s of k/a");
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
        assert_eq!(missing(&booted), "the host was booted anew: its counters began at zero");
        let mut restarted = reading(probe(30, 0, 0, 1000));
        restarted.daemon_start_ms = 7;
        assert_eq!(missing(&restarted), "the daemon was started anew: its ledger began at zero");
    }

    #[test]
    fn a_probe_that_is_not_as_wanted_is_an_error() {
        let before = probe(10, 0, 0, 0);
        let drifted = ProbeReading { is_as_wanted: false, state: "drifted".to_owned(), ..probe(10, 0, 0, 1) };
        assert_eq!(judged(before.clone(), None, &reading(drifted)).failed, ["errors<=0: `k/a` is drifted"]);
        let tripped = |uid| ProbeReading {
            uid,
            is_as_wanted: false,
            is_tripped: true,
            state: "tripped: why".to_owned(),
            ..probe(10, 0, 0, 1)
        };
        let off = Gates::with(&["errors=off".parse().unwrap()]);
        let failed = |was: ProbeReading, gates: &Gates| {
            let armed = BTreeMap::from([("k/a".to_owned(), Armed { uid: 1, etag: "e".to_owned() })]);
            let (was, now) = (reading(was), reading(tripped(1)));
            let since = Since { before: &was, last: None, soak_begun: None, soak_ms: 0 };
            judge(&since, &now, &armed, gates).failed
        };
        // Whatever the gates are, unless it was so before the change.
        for was in [before.clone(), tripped(2)] {
            assert_eq!(failed(was, &off), ["budget: `k/a` is tripped: why"]);
        }
        assert_eq!(failed(tripped(1), &off), Vec::<String>::new());
        assert_eq!(failed(tripped(1), &Gates::with(&[])), ["errors<=0: `k/a` is tripped: why"]);
        let mut pushed_out = reading(before.clone());
        pushed_out.others_tripped.insert("x/y".to_owned(), "tripped: why".to_owned());
        assert_eq!(judged(before.clone(), None, &pushed_out).failed, ["budget: `x/y` is tripped: why"]);
        let armed = BTreeMap::new();
        let since = Since { before: &pushed_out, last: None, soak_begun: None, soak_ms: 0 };
        assert_eq!(judge(&since, &pushed_out, &armed, &off).failed, Vec::<String>::new());
        let gone = Reading { boot_id: "b".to_owned(), ..Reading::default() };
        assert_eq!(judged(before.clone(), None, &gone).failed, ["errors<=0: `k/a` is gone"]);
        let mut ill = reading(probe(10, 0, 0, 1));
        ill.failed_checks.insert("ftrace_enabled".to_owned());
        let failed = judged(before, None, &ill).failed;
        assert_eq!(failed, ["health<=0: the check `ftrace_enabled` of `kprobectl doctor` fails"]);
    }
}
