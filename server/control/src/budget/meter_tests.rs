//! Tests of the meter: who is over a budget, and who goes for it.

use proptest::prelude::*;

use super::super::cost::whole;
use super::*;

const LIMITS: BudgetSettings =
    BudgetSettings { probe_ns_per_s: Some(50_000_000), host_ns_per_s: Some(100_000_000), calibrate: false };

const TICK: Duration = Duration::from_millis(50);

/// Probes that are hit so often a second, each hit of so many nanoseconds.
struct Scene {
    meter: Meter,
    now: Instant,
    probes: Vec<(i64, &'static str, f64, f64)>,
    runs: HashMap<i64, f64>,
}

impl Scene {
    fn new(limits: BudgetSettings, probes: &[(i64, &'static str, f64, f64)]) -> Self {
        let mut scene = Self {
            meter: Meter::new(limits),
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
        for (uid, _, rate, hit_ns) in &self.probes {
            let runs = self.runs.entry(*uid).or_insert(1000.0);
            *runs += rate * elapsed.as_secs_f64();
            readings.push(Reading { uid: ProbeUid(*uid), runs: whole(*runs), hit_ns: *hit_ns });
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

fn uids(breaches: &[Breach]) -> Vec<i64> {
    breaches.iter().map(|breach| breach.uid.0).collect()
}

#[test]
fn a_storm_is_over_its_budget_within_two_looks() {
    let mut scene = Scene::new(LIMITS, &[(1, "a/storm", 1e6, 1000.0), (2, "a/slow", 100.0, 1000.0)]);
    let (breaches, after) = scene.until_over(Duration::from_secs(10)).unwrap();
    assert_eq!((uids(&breaches), after), (vec![1], 2 * TICK));
    assert_eq!(breaches[0].scope, Scope::PROBE);
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
    assert_eq!(breaches[0].scope, Scope::HOST);
    assert!((breaches[0].taken_ns_per_s - 130e6).abs() < 1e6, "{breaches:?}");
    assert_eq!(scene.until_over(Duration::from_mins(10)), None);
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

const LIMIT: u64 = 50_000_000;

#[test]
fn a_burst_passes_and_a_rate_does_not() {
    let mut bucket = Bucket::full(LIMIT);
    let tick = Duration::from_millis(50);
    // 40 ms of processor time at once, once.
    bucket.spend(40e6, tick);
    assert!(!bucket.is_empty() && bucket.is_low());
    bucket.spend(0.0, Duration::from_secs(1));
    assert!(!bucket.is_low(), "it fills up");
    // A whole processor.
    let mut ticks = 0;
    while !bucket.is_empty() {
        bucket.spend(50e6, tick);
        ticks += 1;
    }
    assert_eq!(ticks, 2, "within 100 ms");
    let bucket = Bucket::full(LIMIT);
    assert_eq!(bucket.lasts(100e6), Some(Duration::from_secs(1)));
    assert_eq!(bucket.lasts(50e6), None);
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
            if breach.scope == Scope::HOST {
                prop_assert!(left.iter().all(|other| *other <= rate + 100.0));
            } else {
                prop_assert!(rate > 49_900.0, "{breach:?}");
            }
        }
        if rates.iter().sum::<f64>() < 99_900.0 && rates.iter().all(|rate| *rate < 49_900.0) {
            prop_assert!(gone.is_empty(), "{gone:?}");
        }
    }

    /// A steady rate within the budget never empties it, and one above it always does, after
    /// the time that is predicted.
    #[test]
    fn only_rates_above_the_budget_empty_it(rate in 0.0..500e6_f64, tick_ms in 1_u64..2000) {
        let mut bucket = Bucket::full(LIMIT);
        let tick = Duration::from_millis(tick_ms);
        let lasts = bucket.lasts(rate);
        let (mut ticks, most) = (0_u32, 200_000 / u32::try_from(tick_ms).unwrap() + 2);
        while !bucket.is_empty() && ticks < most {
            bucket.spend(rate * tick.as_secs_f64(), tick);
            ticks += 1;
        }
        match lasts {
            None => prop_assert!(!bucket.is_empty()),
            Some(lasts) if lasts < Duration::from_secs(190) => {
                prop_assert!(bucket.is_empty());
                prop_assert!(tick * ticks + Duration::from_micros(1) >= lasts && tick * (ticks - 1) <= lasts + Duration::from_micros(1));
            }
            Some(_) => {}
        }
    }
}
