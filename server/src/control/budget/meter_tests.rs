//! Tests of the meter: who is over a budget, and who goes for it.

use std::sync::Arc;
use std::time::SystemTime;

use proptest::prelude::*;

use super::super::cost::whole;
use super::*;
use crate::store::{ProbeSpec, Record};
use kprobed_document::ROLLOUT_LABEL;
use kprobed_lang::model::{Labels, Metadata};
use kprobed_verdict::checker::DefinitionText;

const LIMITS: BudgetSettings = BudgetSettings {
    probe_ns_per_s: Some(50_000_000),
    group_ns_per_s: None,
    label_ns_per_s: BTreeMap::new(),
    rollout_ns_per_s: None,
    creator_ns_per_s: None,
    host_ns_per_s: Some(100_000_000),
    rearm_after: None,
    calibrate: false,
};

const TICK: Duration = Duration::from_millis(50);

/// Probes that are hit so often a second, each hit of so many nanoseconds.
struct Scene {
    limits: BudgetSettings,
    meter: Meter,
    now: Instant,
    probes: Vec<(i64, &'static str, f64, f64)>,
    runs: HashMap<i64, f64>,
}

impl Scene {
    fn new(limits: BudgetSettings, probes: &[(i64, &'static str, f64, f64)]) -> Self {
        let mut scene = Self {
            meter: Meter::new(limits.clone()),
            limits,
            now: Instant::now(),
            probes: probes.to_vec(),
            runs: HashMap::new(),
        };
        scene.look(Duration::ZERO);
        scene
    }

    fn look(&mut self, elapsed: Duration) -> Found {
        self.now += elapsed;
        let mut readings = Vec::new();
        for (uid, name, rate, hit_ns) in &self.probes {
            let runs = self.runs.entry(*uid).or_insert(1000.0);
            *runs += rate * elapsed.as_secs_f64();
            readings.push(Reading {
                uid: ProbeUid(*uid),
                payers: Payer::of(&record(*uid, name), &self.limits).into(),
                runs: whole(*runs),
                hit_ns: *hit_ns,
            });
        }
        self.meter.look(self.now, &readings)
    }

    /// Looks until something is over, and takes it out. Returns what that was, and after how long.
    fn until_over(&mut self, most: Duration) -> Option<(Vec<Breach>, Duration)> {
        let begun = self.now;
        while self.now.duration_since(begun) < most {
            let found = self.look(TICK);
            if !found.breaches.is_empty() {
                self.probes.retain(|(uid, ..)| !found.breaches.iter().any(|over| over.uid.0 == *uid));
                return Some((found.breaches, self.now.duration_since(begun)));
            }
        }
        None
    }
}

/// Probes with the same last digit are of one team and one roll-out, and those with the same number of tens were
/// made by one principal, which is not known of those without tens.
fn record(uid: i64, name: &str) -> Record {
    let definition = Arc::new(DefinitionText::new("p:a/b f".to_owned()));
    let spec = ProbeSpec {
        definition,
        enabled: true,
        filter: String::new(),
        labels: Labels::new(["team", ROLLOUT_LABEL].map(|key| (key.to_owned(), (uid % 10).to_string())))
            .unwrap(),
        metadata: Metadata::default(),
    };
    let record = Record::new(name.parse().unwrap(), spec, String::new(), SystemTime::UNIX_EPOCH);
    let account = if uid < 10 { String::new() } else { format!("uid:{}", uid / 10) };
    Record { uid: ProbeUid(uid), ..record.by(account) }
}

fn uids(breaches: &[Breach]) -> Vec<i64> {
    breaches.iter().map(|breach| breach.uid.0).collect()
}

#[test]
fn a_storm_is_over_its_budget_within_two_looks() {
    let mut scene = Scene::new(LIMITS, &[(1, "a/storm", 1e6, 1000.0), (2, "a/slow", 100.0, 1000.0)]);
    let (breaches, after) = scene.until_over(Duration::from_secs(10)).unwrap();
    assert_eq!((uids(&breaches), after), (vec![1], 2 * TICK));
    assert_eq!(breaches[0].payer, Payer::Probe(ProbeUid(1)));
    assert!((breaches[0].rate.runs_per_s - 1e6).abs() < 1e3, "{breaches:?}");
    assert_eq!(scene.until_over(Duration::from_mins(10)), None, "the slow one stays");
}

#[test]
fn a_probe_that_was_disarmed_begins_anew() {
    let mut scene = Scene::new(LIMITS, &[(1, "a/storm", 1e8, 1000.0), (2, "a/slow", 100.0, 1000.0)]);
    // It has spent its budget of minutes.
    assert_eq!(uids(&scene.until_over(Duration::from_secs(1)).unwrap().0), [1]);
    assert_eq!(scene.look(TICK).breaches, []);
    scene.probes.push((1, "a/storm", 10.0, 1000.0));
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
}

#[test]
fn the_dearest_go_until_the_host_is_within_its_budget() {
    let probes = [
        (1, "a/one", 20_000.0, 1000.0),
        (2, "a/two", 35_000.0, 1000.0),
        (3, "b/three", 45_000.0, 1000.0),
        (4, "b/four", 30_000.0, 1000.0),
    ];
    let mut scene = Scene::new(LIMITS, &probes);
    let (breaches, _) = scene.until_over(Duration::from_mins(1)).unwrap();
    // 130 ms a second together: without the dearest 85.
    assert_eq!(uids(&breaches), [3]);
    assert_eq!(breaches[0].payer, Payer::Host);
    assert!((breaches[0].taken_ns_per_s - 130e6).abs() < 1e6, "{breaches:?}");
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
}

#[test]
fn a_group_has_a_budget_of_its_own() {
    let limits = BudgetSettings { group_ns_per_s: Some(40_000_000), ..LIMITS };
    let probes =
        [(1, "a/one", 30_000.0, 1000.0), (2, "a/two", 15_000.0, 1000.0), (3, "b/x", 35_000.0, 1000.0)];
    let mut scene = Scene::new(limits, &probes);
    let (breaches, _) = scene.until_over(Duration::from_mins(1)).unwrap();
    assert_eq!((uids(&breaches), breaches[0].payer.clone()), (vec![1], Payer::Group("a".to_owned())));
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
}

#[test]
fn each_value_of_a_label_has_a_budget() {
    let label_ns_per_s = BTreeMap::from([("team".to_owned(), 40_000_000), ("owner".to_owned(), 1_000_000)]);
    let limits = BudgetSettings { label_ns_per_s, ..LIMITS };
    let probes =
        [(1, "a/one", 30_000.0, 1000.0), (11, "b/two", 15_000.0, 1000.0), (2, "a/x", 35_000.0, 1000.0)];
    let mut scene = Scene::new(limits, &probes);
    let (breaches, _) = scene.until_over(Duration::from_mins(1)).unwrap();
    let payer = Payer::Label("team".to_owned(), "1".to_owned());
    assert_eq!((uids(&breaches), breaches[0].payer.clone()), (vec![1], payer));
    // Those without the label `owner` have no budget by it.
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
}

#[test]
fn each_roll_out_has_a_budget() {
    let limits = BudgetSettings { rollout_ns_per_s: Some(40_000_000), ..LIMITS };
    let probes =
        [(1, "a/one", 30_000.0, 1000.0), (11, "b/two", 15_000.0, 1000.0), (2, "a/x", 35_000.0, 1000.0)];
    let mut scene = Scene::new(limits, &probes);
    let (breaches, _) = scene.until_over(Duration::from_mins(1)).unwrap();
    assert_eq!((uids(&breaches), breaches[0].payer.clone()), (vec![1], Payer::Rollout("1".to_owned())));
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
}

#[test]
fn each_principal_has_a_budget_for_what_it_has_made() {
    let limits = BudgetSettings { creator_ns_per_s: Some(40_000_000), ..LIMITS };
    let probes =
        [(11, "a/one", 30_000.0, 1000.0), (12, "b/two", 15_000.0, 1000.0), (21, "a/x", 35_000.0, 1000.0)];
    let mut scene = Scene::new(limits.clone(), &probes);
    let (breaches, _) = scene.until_over(Duration::from_mins(1)).unwrap();
    let payer = Payer::Creator("uid:1".to_owned());
    assert_eq!((uids(&breaches), breaches[0].payer.clone()), (vec![11], payer));
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
    // 90 ms a second by probes that no one is known to have made.
    let unknown = [1, 2, 3].map(|uid| (uid, "a/one", 30_000.0, 1000.0));
    assert_eq!(Scene::new(limits, &unknown).until_over(Duration::from_mins(10)), None);
}

#[test]
fn what_is_adopted_or_declared_is_on_no_budget_of_a_creator() {
    let limits =
        BudgetSettings { creator_ns_per_s: Some(1), host_ns_per_s: None, ..BudgetSettings::default() };
    let payers = |record: &Record| Payer::of(record, &limits);
    let made = record(11, "a/one");
    assert_eq!(payers(&made), [Payer::Creator("uid:1".to_owned())]);
    assert_eq!(payers(&Record { is_adopted: true, ..made.clone() }), []);
    assert_eq!(payers(&record(1, "a/one")), []);
    let metadata = Metadata { declared_by: Some("a.yaml".to_owned()), ..Metadata::default() };
    let spec = ProbeSpec { metadata, ..made.spec.clone() };
    assert_eq!(payers(&Record { spec, ..made }), []);
}

#[test]
fn a_probe_counts_until_it_is_gone() {
    let mut scene = Scene::new(LIMITS, &[(1, "a/stuck", 1e6, 1000.0)]);
    let mut told = 0;
    for _ in 0..6 {
        // It is not taken out.
        told += scene.look(TICK).breaches.len();
    }
    assert_eq!(told, 5, "every look after the breach says so again");
}

#[test]
fn without_budgets_nothing_is_over() {
    let mut scene = Scene::new(BudgetSettings::default(), &[(1, "a/storm", 1e9, 1e6)]);
    assert_eq!(scene.look(TICK), Found::default());
}

proptest! {
    /// Whatever the rates are, in the end the rest is within all budgets, the ones that went for
    /// the host were the dearest, and none went that was not over anything.
    #[test]
    fn what_is_left_is_within_the_budgets(rates in prop::collection::vec(0.0..60_000.0_f64, 1..12)) {
        let names = ["a/x", "b/x", "c/x"];
        let probes: Vec<_> =
            rates.iter().enumerate().map(|(uid, rate)| (i64::try_from(uid).unwrap(), names[uid % 3], *rate, 1000.0)).collect();
        let mut scene = Scene::new(LIMITS, &probes);
        let mut gone = Vec::new();
        while let Some((breaches, _)) = scene.until_over(Duration::from_mins(5)) {
            gone.extend(breaches);
        }
        let left: Vec<f64> = scene.probes.iter().map(|(.., rate, _)| *rate).collect();
        // Rates just above a budget take long to be told from ones within it.
        prop_assert!(left.iter().sum::<f64>() < 100_500.0 && left.iter().all(|rate| *rate < 50_500.0), "{left:?}");
        for breach in &gone {
            let rate = rates[usize::try_from(breach.uid.0).unwrap()];
            match breach.payer {
                Payer::Host => prop_assert!(left.iter().all(|other| *other <= rate + 100.0)),
                _ => prop_assert!(rate > 49_900.0, "{breach:?}"),
            }
        }
        if rates.iter().sum::<f64>() < 99_900.0 && rates.iter().all(|rate| *rate < 49_900.0) {
            prop_assert!(gone.is_empty(), "{gone:?}");
        }
    }
}
