//! Simulation of a year of hits in the real store: how large it gets, and how long it takes.
//!
//! `cargo test -p kprobed --lib a_year_of_a_thousand_probes -- --ignored --nocapture` prints the
//! figures of [`super`]. With `KPROBED_SIMULATION=DIRECTORY` it continues the simulation in that
//! directory, for `KPROBED_SIMULATION_DAYS`; with `KPROBED_SIMULATION_PROBES=N` there are N probes,
//! and with `KPROBED_SIMULATION_LOAD=full` all of them are busy.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::store::{Store, to_i64};
use kprobed_lang::model::{Hits, ProbeUid};

/// When it begins: 2026-01-01.
const BEGIN: i64 = 1_767_225_600;

const KEEP: HitRetention = HitRetention {
    samples: Duration::from_hours(6),
    minutes: Duration::from_hours(24 * 30),
    hours: Duration::from_hours(24 * 400),
};

/// How often probes are hit.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// A quarter thousands of times a minute, a quarter some times in most minutes, a quarter
    /// in one of twenty, and a quarter about once a day.
    Mixed,
    /// All of them thousands of times in every minute.
    Full,
}

impl Load {
    /// Hits of a probe in a minute: the same each time.
    fn hits(self, probe: u64, minute: u64) -> u64 {
        let random = scramble(probe.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ minute);
        let kind = match self {
            Self::Mixed => probe % 4,
            Self::Full => 0,
        };
        match kind {
            0 => 2000 + random % 8000,
            1 => random % 12,
            2 => u64::from(random.is_multiple_of(20)) * (1 + random / 20 % 100),
            _ => u64::from(random.is_multiple_of(1440)),
        }
    }
}

/// The finaliser of splitmix64.
fn scramble(mut value: u64) -> u64 {
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
        value = (value ^ (value >> shift)).wrapping_mul(factor);
    }
    value ^ (value >> 31)
}

/// Durations by kind of step.
#[derive(Debug, Default)]
struct Times {
    ticks: Vec<Duration>,
    steps: Vec<Duration>,
}

struct Simulation {
    directory: PathBuf,
    probes: u64,
    load: Load,
    store: Store,
}

impl Simulation {
    async fn open(directory: &Path, probes: u64, load: Load) -> Self {
        let store = Store::open(directory, SystemTime::now()).await.unwrap().store;
        // This measures the work, not the disk under this test.
        let quick = async |connection: &mut sqlx::SqliteConnection| {
            sqlx::query("PRAGMA synchronous = OFF").execute(connection).await?;
            Ok(())
        };
        store.database.read(quick).await.unwrap();
        Self { directory: directory.to_owned(), probes, load, store }
    }

    /// Simulates some days, a sample a minute, as the control thread does it. Returns the time
    /// then, and all hits in these days.
    async fn run(&self, days: i64, times: &mut Times) -> (i64, u64) {
        let mut counters = self.store.counters("boot", "6.12.0-simulated", |_| true).await.unwrap();
        let mut now = counters.watched_until().map_or(BEGIN, second);
        let mut counts: Vec<_> = (0..self.probes)
            .map(|probe| Counted {
                uid: ProbeUid(to_i64(probe) + 1),
                name: ProbeName::new("kprobes", &format!("probe_{probe}")).unwrap(),
                hits: Hits::default(),
                created: as_second(BEGIN),
            })
            .collect();
        // The counters continue.
        let samples = self.store.rates(&query(BEGIN, now + 1, DAY * 366)).await.unwrap();
        for series in &samples.series {
            let sum = series.points.iter().map(|point| point.hits.hits).sum();
            counts[usize::try_from(series.uid.0 - 1).unwrap()].hits.hits = sum;
        }
        let mut total = 0;
        for minute in 0..days * 1440 {
            let since = now;
            now += MINUTE;
            for (probe, count) in (0..).zip(&mut counts) {
                let hits = self.load.hits(probe, (now / MINUTE).unsigned_abs());
                count.hits.hits += hits;
                total += hits;
            }
            let (since, time) = (as_second(since), as_second(now));
            let look = Tick { since, time, counts: std::mem::take(&mut counts), of: TickOf::All };
            let begun = Instant::now();
            self.store.add_tick(&mut counters, &look, minute == days * 1440 - 1).await.unwrap();
            times.ticks.push(begun.elapsed());
            counts = look.counts;
            loop {
                let begun = Instant::now();
                if !self.store.roll_up(time, &KEEP).await.unwrap() {
                    break;
                }
                times.steps.push(begun.elapsed());
            }
        }
        self.store.forget_old(as_second(now), &KEEP).await.unwrap();
        (now, total)
    }

    /// All pages, and how long they took.
    async fn read(&self, mut query: RateQuery) -> (Vec<RateSeries>, Duration) {
        let begun = Instant::now();
        let mut series = Vec::new();
        loop {
            let page = self.store.rates(&query).await.unwrap();
            series.extend(page.series);
            match page.next {
                Some(next) => query.after = next,
                None => return (series, begun.elapsed()),
            }
        }
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(self.directory.join("kprobed.db")).unwrap().len()
    }
}

fn query(start: i64, end: i64, step: i64) -> RateQuery {
    let (start, end) = (as_second(start), as_second(end));
    RateQuery { start, end, step_s: step.unsigned_abs(), names: None, uids: None, after: 0 }
}

fn sum(series: &[RateSeries]) -> u64 {
    series.iter().flat_map(|series| &series.points).map(|point| point.hits.hits).sum()
}

/// The median and the longest.
fn spread_of(times: &mut [Duration]) -> String {
    times.sort();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    format!("{} times, {middle:.1?} (at most {:.1?})", times.len(), times.last().copied().unwrap_or_default())
}

#[tokio::test]
async fn some_days_of_some_probes_are_exact_and_small() {
    let directory = tempfile::tempdir().unwrap();
    let simulation = Simulation::open(directory.path(), 40, Load::Mixed).await;
    let mut times = Times::default();
    let (now, total) = simulation.run(2, &mut times).await;
    assert!(times.steps.len() > 40, "an hour a step: {}", times.steps.len());
    let (by_day, _) = simulation.read(query(BEGIN, now, DAY)).await;
    assert_eq!((by_day.len(), sum(&by_day)), (40, total));
    let every_second_is_watched =
        |series: &RateSeries| series.points.iter().all(|point| point.covered_s == 86_400);
    assert!(by_day.iter().all(every_second_is_watched), "{:?}", by_day[0].points);
    let (last_day, _) = simulation.read(query(now - DAY, now, 300)).await;
    assert!(last_day.iter().all(|series| series.points.len() == 288));
    assert_eq!(sum(&last_day), by_day.iter().map(|series| series.points[1].hits.hits).sum::<u64>());
    simulation.store.close().await;
    // 10 quarters of a thousand probes: 3 MB a day when all are busy, of which a quarter is.
    assert!(simulation.bytes() < 500_000, "{}", simulation.bytes());
}

#[tokio::test]
#[ignore = "takes minutes, and prints figures"]
async fn a_year_of_a_thousand_probes() {
    let set = |name: &str| std::env::var(name).ok();
    let days = set("KPROBED_SIMULATION_DAYS").map_or(365, |days| days.parse().unwrap());
    let probes = set("KPROBED_SIMULATION_PROBES").map_or(1000, |probes| probes.parse().unwrap());
    let load =
        if set("KPROBED_SIMULATION_LOAD").as_deref() == Some("full") { Load::Full } else { Load::Mixed };
    let own = tempfile::tempdir().unwrap();
    let directory = set("KPROBED_SIMULATION").map_or_else(|| own.path().to_owned(), PathBuf::from);
    let simulation = Simulation::open(&directory, probes, load).await;
    let mut times = Times::default();
    let begun = Instant::now();
    let (now, _) = simulation.run(days, &mut times).await;
    println!(
        "{probes} probes, {load:?}, {} days so far, {days} days in {:.0?}",
        (now - BEGIN) / DAY,
        begun.elapsed()
    );
    println!("samples: {}", spread_of(&mut times.ticks));
    println!("steps of rolling up: {}", spread_of(&mut times.steps));
    let one = |query| RateQuery { uids: Some([ProbeUid(5)].into()), ..query };
    let (day, year) = (query(now - DAY, now, 300), query(now - 365 * DAY, now, DAY));
    for (what, query) in [
        ("24 h by 5 min, one probe", one(day.clone())),
        ("24 h by 5 min, all", day),
        ("365 days by day, one probe", one(year.clone())),
        ("365 days by day, all", year),
    ] {
        let (series, took) = simulation.read(query).await;
        let points: usize = series.iter().map(|series| series.points.len()).sum();
        println!("{what}: {took:.1?} for {points} points, {} hits", sum(&series));
    }
    simulation.store.close().await;
    println!("size: {:.1} MB", simulation.bytes() as f64 / 1e6);
    let mut connection =
        sqlx::ConnectOptions::connect(&crate::store::options(&directory.join("kprobed.db"))).await.unwrap();
    for check in ["PRAGMA quick_check", "PRAGMA integrity_check"] {
        let begun = Instant::now();
        let found: String = sqlx::query_scalar(check).fetch_one(&mut connection).await.unwrap();
        println!("{check}: {found} in {:.2?}", begun.elapsed());
    }
    for table in ["hit_tick", "hit_minutes", "hit_hours"] {
        let sql =
            sqlx::AssertSqlSafe(format!("SELECT count(*), coalesce(sum(length(counts)), 0) FROM {table}"));
        let (rows, bytes): (i64, i64) = sqlx::query_as(sql).fetch_one(&mut connection).await.unwrap();
        println!("{table}: {rows} rows, {:.1} MB packed", bytes as f64 / 1e6);
    }
}
