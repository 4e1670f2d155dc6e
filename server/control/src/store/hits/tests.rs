//! Tests of the hit history, from samples to queries.

use kprobed_proto::v1;
use proptest::prelude::*;

use super::*;
use crate::store::{Store, StoreError};
use kprobed_lang::model::{Hits, ProbeUid};

fn at(second: i64) -> SystemTime {
    as_second(second)
}

async fn open(directory: &std::path::Path) -> Store {
    Store::open(directory, SystemTime::now()).await.unwrap()
}

fn probe(event: &str) -> ProbeName {
    ProbeName::new("kprobes", event).unwrap()
}

fn counted(uid: i64, hits: u64) -> Counted {
    let hits = Hits { hits, nmissed: hits / 10 };
    Counted { uid: ProbeUid(uid), name: probe(&format!("p{uid}")), hits, created: at(0) }
}

fn tick(since: i64, time: i64, counts: &[(i64, u64)]) -> Tick {
    let counts = counts.iter().map(|(uid, hits)| counted(*uid, *hits)).collect();
    Tick { since: at(since), time: at(time), counts, of: TickOf::All }
}

fn query(start: i64, end: i64, step_s: u64) -> RateQuery {
    RateQuery { start: at(start), end: at(end), step_s, names: None, uids: None, after: 0 }
}

const KEEP: HitRetention =
    HitRetention { minutes: Duration::from_hours(24 * 30), hours: Duration::from_hours(24 * 400) };

/// Retention as short as possible.
const NOT_AT_ALL: HitRetention =
    HitRetention { minutes: Duration::ZERO, hours: Duration::from_hours(24 * 400) };

/// Start, seconds that were watched, and hits of each point.
fn points(series: &v1::HitSeries) -> Vec<(i64, u32, u64)> {
    let point = |point: &v1::HitRate| {
        let start = point.start_time.as_ref().unwrap().seconds;
        (start, point.covered_seconds, point.hits)
    };
    series.points.iter().map(point).collect()
}

async fn only(store: &Store, query: &RateQuery) -> Vec<(i64, u32, u64)> {
    let page = store.rates(query).await.unwrap();
    assert_eq!(page.series.len(), 1, "{page:?}");
    points(&page.series[0])
}

async fn roll_all(store: &Store, now: i64, keep: &HitRetention) -> u32 {
    let mut steps = 0;
    while store.roll_up(at(now), keep).await.unwrap() {
        steps += 1;
        assert!(steps < 10_000, "it does not end");
    }
    steps
}

#[tokio::test]
async fn rates_are_of_the_time_that_was_watched() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("boot", "6.1", |_| false).await.unwrap();
    assert_eq!(counters.watched_until(), None);
    // Watched from 30 to 180, and from 400 to 420; not hit from 120 on.
    for (since, time, hits) in [(30, 60, 30), (60, 120, 150), (120, 180, 150), (400, 420, 150)] {
        store.add_tick(&mut counters, &tick(since, time, &[(1, hits)]), true).await.unwrap();
    }
    assert_eq!(counters.watched_until(), Some(at(420)));
    let expected =
        [(0, 30, 30), (60, 60, 120), (120, 60, 0), (180, 0, 0), (240, 0, 0), (300, 0, 0), (360, 20, 0)];
    let found = store.rates(&query(0, 1000, 60)).await.unwrap();
    assert_eq!((found.step_s, found.next), (60, None));
    let series = &found.series[0];
    assert_eq!(points(series), expected);
    assert_eq!((series.boot_id.as_str(), series.kernel_release.as_str()), ("boot", "6.1"));
    let rates: Vec<_> = series.points.iter().map(|point| point.hits_per_second).collect();
    assert_eq!(rates[..4], [Some(1.0), Some(2.0), Some(0.0), None]);
    // The same while minutes are kept, and from the hours.
    assert_eq!(roll_all(&store, 100_000, &KEEP).await, 0);
    assert_eq!(only(&store, &query(60, 120, 1)).await, [(60, 60, 120)], "the step is what is kept");
    roll_all(&store, 100_000, &NOT_AT_ALL).await;
    assert_eq!(only(&store, &query(0, 1000, 60)).await, [(0, 170, 150)]);
    // A range before and after has nothing.
    assert!(store.rates(&query(3600, 7200, 60)).await.unwrap().series.is_empty());
}

#[tokio::test]
async fn a_counter_that_begins_anew_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("one", "6.1", |_| false).await.unwrap();
    for (time, hits) in [(10, 100), (20, 150), (30, 20)] {
        store.add_tick(&mut counters, &tick(time - 10, time, &[(1, hits)]), false).await.unwrap();
    }
    // The daemon starts again, and the kernel went on counting.
    let mut counters = store.counters("one", "6.1", |_| true).await.unwrap();
    assert_eq!(counters.watched_until(), Some(at(30)));
    store.add_tick(&mut counters, &tick(30, 40, &[(1, 25)]), false).await.unwrap();
    // It starts again, and the kernel did not: yet the counter is above what it was.
    let mut counters = store.counters("one", "6.1", |_| false).await.unwrap();
    store.add_tick(&mut counters, &tick(60, 70, &[(1, 30)]), false).await.unwrap();
    // It is not hit until the next start, which must know it.
    let mut counters = store.counters("one", "6.1", |_| false).await.unwrap();
    store.add_tick(&mut counters, &tick(80, 90, &[(1, 0)]), false).await.unwrap();
    let mut counters = store.counters("one", "6.1", |_| true).await.unwrap();
    store.add_tick(&mut counters, &tick(90, 100, &[(1, 40)]), false).await.unwrap();
    // Counters of samples that have left the table are known too.
    roll_all(&store, 1000, &NOT_AT_ALL).await;
    let mut counters = store.counters("one", "6.1", |_| true).await.unwrap();
    store.add_tick(&mut counters, &tick(100, 110, &[(1, 41)]), false).await.unwrap();
    // The host has booted.
    let mut counters = store.counters("two", "6.12", |_| false).await.unwrap();
    assert_eq!(counters.watched_until(), None);
    store.add_tick(&mut counters, &tick(200, 210, &[(1, 7)]), false).await.unwrap();
    let page = store.rates(&query(0, 3600, 3600)).await.unwrap();
    let found: Vec<_> = page.series.iter().map(|series| (series.boot_id.as_str(), points(series))).collect();
    let of_one = 150 + 20 + 5 + 30 + 40 + 1;
    assert_eq!(found, [("one", vec![(0, 80, of_one)]), ("two", vec![(0, 10, 7)])]);
    assert_eq!(page.series[0].points[0].nmissed, 15 + 2 + 3 + 4);
}

#[tokio::test]
async fn what_was_counted_before_a_probe_was_one_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("boot", "6.1", |_| false).await.unwrap();
    counters.begin_at(ProbeUid(1), Hits { hits: 1000, nmissed: 0 });
    store.add_tick(&mut counters, &tick(0, 60, &[(1, 1007)]), false).await.unwrap();
    let page = store.rates(&query(0, 60, 60)).await.unwrap();
    assert_eq!(page.series.len(), 1);
    assert_eq!(points(&page.series[0]), [(0, 60, 7)]);
}

#[tokio::test]
async fn a_probe_is_watched_as_long_as_it_lives() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("boot", "6.1", |_| false).await.unwrap();
    store.add_tick(&mut counters, &tick(0, 60, &[(1, 0)]), false).await.unwrap();
    let mut made = tick(60, 120, &[(1, 0), (2, 30)]);
    made.counts[1].created = at(90);
    store.add_tick(&mut counters, &made, false).await.unwrap();
    // Probe 2 is removed between two looks, and probe 1 without a notice.
    let leaving = Tick { of: TickOf::Leaving, ..tick(120, 150, &[(2, 60)]) };
    store.add_tick(&mut counters, &leaving, false).await.unwrap();
    store.add_tick(&mut counters, &tick(120, 180, &[]), false).await.unwrap();
    store.add_tick(&mut counters, &tick(180, 240, &[(1, 5)]), true).await.unwrap();
    let page = store.rates(&query(0, 240, 60)).await.unwrap();
    let found: Vec<_> = page.series.iter().map(|series| (series.probe_uid, points(series))).collect();
    let expected =
        [(1, vec![(0, 60, 0), (60, 60, 0)]), (2, vec![(60, 30, 30), (120, 30, 30)]), (1, vec![(180, 60, 5)])];
    assert_eq!(found, expected);
    // By name and by uid.
    let named = RateQuery { names: Some(kprobed_lang::model::Glob::new("*/p2")), ..query(0, 240, 60) };
    assert_eq!(only(&store, &named).await, expected[1].1);
    let chosen = RateQuery { uids: Some([ProbeUid(2)].into()), ..query(0, 240, 60) };
    assert_eq!(only(&store, &chosen).await, expected[1].1);
}

#[tokio::test]
async fn a_sample_that_was_not_stored_is_part_of_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("boot", "6.1", |_| false).await.unwrap();
    store.add_tick(&mut counters, &tick(0, 60, &[(1, 10)]), false).await.unwrap();
    let before = counters.clone();
    store.add_tick(&mut counters, &tick(60, 120, &[(1, 20)]), false).await.unwrap();
    // As if the disk had not said that it has the sample.
    let mut counters = before;
    store.add_tick(&mut counters, &tick(60, 180, &[(1, 30)]), false).await.unwrap();
    assert_eq!(only(&store, &query(0, 240, 60)).await, [(0, 60, 10), (60, 60, 10), (120, 60, 10)]);
}

#[tokio::test]
async fn that_nothing_happens_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("boot", "6.1", |_| false).await.unwrap();
    let looks: Vec<_> = (1..=20).map(|minute| tick(60 * (minute - 1), 60 * minute, &[(1, 3)])).collect();
    let mut writes = 0;
    for look in &looks {
        let before = std::fs::metadata(directory.path().join("kprobed.db-wal")).unwrap().len();
        store.add_tick(&mut counters, look, false).await.unwrap();
        let after = std::fs::metadata(directory.path().join("kprobed.db-wal")).unwrap().len();
        writes += usize::from(after != before);
    }
    assert_eq!(writes, 1 + 3, "the first, and one in five minutes");
    // A reader sees all of it.
    store.add_tick(&mut counters, &tick(1200, 1210, &[(1, 3)]), true).await.unwrap();
    assert_eq!(only(&store, &query(0, 1300, 3600)).await, [(0, 1210, 3)]);
}

#[tokio::test]
async fn what_is_too_old_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut counters = store.counters("old", "6.1", |_| false).await.unwrap();
    store.add_tick(&mut counters, &tick(0, 60, &[(1, 1)]), false).await.unwrap();
    let mut counters = store.counters("new", "6.1", |_| false).await.unwrap();
    let now = 500 * DAY;
    store.add_tick(&mut counters, &tick(now - 60, now, &[(2, 1)]), false).await.unwrap();
    roll_all(&store, now, &KEEP).await;
    store.forget_old(at(now), &KEEP).await.unwrap();
    let left = store.rates(&query(0, now, DAY.unsigned_abs())).await.unwrap();
    assert_eq!(left.series.iter().map(|series| series.probe_uid).collect::<Vec<_>>(), [2]);
    let count = async |connection: &mut sqlx::SqliteConnection| {
        let tables = "SELECT (SELECT count(*) FROM hit_series) || ' ' || (SELECT count(*) FROM hit_span) || ' ' || \
                      (SELECT count(*) FROM hit_minute) || ' ' || (SELECT count(*) FROM hit_hour)";
        Ok(sqlx::query_scalar::<_, String>(tables).fetch_one(connection).await?)
    };
    assert_eq!(store.database.read(count).await.unwrap(), "1 1 1 0");
}

#[tokio::test]
async fn too_many_points_are_refused_with_a_step_that_can_be_had() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let whole_year = query(0, 365 * DAY, 60);
    let Err(StoreError::TooManyPoints { points, most, step_s }) = store.rates(&whole_year).await else {
        panic!()
    };
    assert_eq!((points, most), (525_600, MAX_POINTS));
    store.rates(&RateQuery { step_s, ..whole_year.clone() }).await.unwrap();
    assert!(store.rates(&RateQuery { step_s: step_s - 60, ..whole_year }).await.is_err());
    // Queries that cannot be answered do not panic.
    for (start, end, step) in [(9, 3, 1), (0, 0, 0), (0, i64::MAX / 2_000_000_000, u64::MAX)] {
        assert!(store.rates(&query(start, end, step)).await.unwrap().series.is_empty());
    }
}

/// An action on the history.
#[derive(Clone, Debug)]
enum Happening {
    /// After so many seconds there is a sample with so many more hits of each probe.
    Sample(i64, [u64; 2]),
    /// The daemon is killed and started again.
    Restart,
    /// The host is.
    Boot,
    /// A step of rolling up, with these seconds as the longest that minutes are kept.
    RollUp(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let hits = || prop_oneof![Just(0_u64), 1_u64..50, 1_000_u64..100_000];
    prop_oneof![
        6 => (1_i64..4000, hits(), hits()).prop_map(|(seconds, one, two)| Happening::Sample(seconds, [one, two])),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Boot),
        3 => (0_u64..100_000).prop_map(Happening::RollUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However it is rolled up, the sum of each probe is what the kernel counted, and the time is
    /// what was watched.
    #[test]
    fn sums_are_exact_whenever_it_is_rolled_up(happenings in prop::collection::vec(happening(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let store = open(directory.path()).await;
            let (mut now, mut boot, mut total, mut counter, mut watched) = (1_000_000, 0, [0; 2], [0; 2], 0);
            let mut counters = store.counters("0", "6.1", |_| true).await.unwrap();
            for happening in happenings {
                match happening {
                    Happening::Sample(seconds, hits) => {
                        let since = counters.watched_until().map_or(now, second);
                        now += seconds;
                        for probe in 0..2 {
                            counter[probe] += hits[probe];
                            total[probe] += hits[probe];
                        }
                        watched += now - since;
                        let look = tick(since, now, &[(1, counter[0]), (2, counter[1])]);
                        store.add_tick(&mut counters, &look, true).await.unwrap();
                    }
                    Happening::Restart => {
                        counters = store.counters(&boot.to_string(), "6.1", |_| true).await.unwrap();
                    }
                    Happening::Boot => {
                        (boot, counter) = (boot + 1, [0; 2]);
                        counters = store.counters(&boot.to_string(), "6.1", |_| false).await.unwrap();
                    }
                    Happening::RollUp(minutes) => {
                        let keep = HitRetention { minutes: Duration::from_secs(minutes), ..KEEP };
                        store.roll_up(at(now), &keep).await.unwrap();
                    }
                }
            }
            for step in [1, 7, 60, 3600, 86_400, 10_000_000] {
                let query = query(1_000_000, now, step);
                let Ok(mut page) = store.rates(&query).await else { continue };
                while let Some(after) = page.next {
                    let rest = store.rates(&RateQuery { after, ..query.clone() }).await.unwrap();
                    page.next = rest.next;
                    page.series.extend(rest.series);
                }
                for (uid, total) in [(1, total[0]), (2, total[1])] {
                    let of_one = || page.series.iter().filter(|series| series.probe_uid == uid).flat_map(|series| &series.points);
                    assert_eq!(of_one().map(|point| point.hits).sum::<u64>(), total, "step {step}");
                    assert_eq!(of_one().map(|point| u64::from(point.covered_seconds)).sum::<u64>(), watched.unsigned_abs(), "step {step}");
                    assert!(of_one().all(|point| u64::from(point.covered_seconds) <= page.step_s));
                }
            }
        });
    }
}
