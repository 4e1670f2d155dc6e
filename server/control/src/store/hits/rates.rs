//! Hit rates: hits over time, by intervals of any length.
//!
//! Owns reading both tables as one: their hits are added up. The resolution is that of the coarser table
//! if it has hits in the range. Also the difference between "not hit" and "not known": the time in which the daemon
//! read the counters. Times are whole seconds since 1970; the time from `start` to `end` has `end - start` seconds.
//! Never writes, and never reads a clock.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::SystemTime;

use kprobed_proto::v1;
use sqlx::{Row as _, SqliteConnection};

use super::{DAY, HOUR, MINUTE, NOT_SHOWN, as_second, second, unsigned};
use crate::store::bad::{BadValue, CheckedRow};
use crate::store::{Store, StoreError};
use kprobed_lang::model::{Glob, Hits, ProbeUid};

/// Most points of one series.
pub const MAX_POINTS: u64 = 50_000;

/// Points on a page, unless one series has more.
const PAGE_POINTS: usize = 100_000;

/// Which hits to read.
#[derive(Clone, Debug)]
pub struct RateQuery {
    /// Begin of the range: the interval that contains this time is the first one.
    pub start: SystemTime,
    /// End of the range, excluded.
    pub end: SystemTime,
    /// Length of an interval in seconds, at least 1. Intervals begin at its multiples since 1970.
    pub step_s: u64,
    /// Only probes of these names.
    pub names: Option<Glob>,
    /// Only these probes.
    pub uids: Option<HashSet<ProbeUid>>,
    /// Only series after this one: `next` of the page before, or 0.
    pub after: i64,
}

/// Hits of probes by intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct RatePage {
    /// Length of an interval in seconds: as requested, or the next longer one that the tables have.
    pub step_s: u64,
    /// One for each probe and boot, with the intervals from the first to the last in which it was counted, without a
    /// gap.
    pub series: Vec<v1::HitSeries>,
    /// `after` of the next page. Absent if this was the last.
    pub next: Option<i64>,
}

/// A series while it is read: its intervals are numbered from 1970.
struct Found {
    id: i64,
    series: v1::HitSeries,
    watched: Vec<Range<i64>>,
    intervals: Range<i64>,
    hits: Vec<Hits>,
}

impl Found {
    /// Adds to an interval. All hits of a series lie in its intervals: only a clock that was set
    /// can make it look otherwise.
    fn add(&mut self, interval: i64, hits: Hits) {
        let nearest = interval.clamp(self.intervals.start, self.intervals.end - 1) - self.intervals.start;
        if let Some(sum) = usize::try_from(nearest).ok().and_then(|index| self.hits.get_mut(index)) {
            sum.hits = sum.hits.saturating_add(hits.hits);
            sum.nmissed = sum.nmissed.saturating_add(hits.nmissed);
        }
    }

    fn finish(mut self, step: i64) -> v1::HitSeries {
        let mut covered = vec![0; self.hits.len()];
        cover(&self.watched, step, self.intervals.start, &mut covered);
        let points = self.intervals.zip(self.hits.iter().zip(covered));
        self.series.points = points
            .map(|(interval, (hits, covered))| v1::HitRate {
                start_time: Some(as_second(interval * step).into()),
                covered_seconds: u32::try_from(covered).unwrap_or_default(),
                hits: hits.hits,
                nmissed: hits.nmissed,
                hits_per_second: (covered > 0).then(|| hits.hits as f64 / covered as f64),
            })
            .collect();
        self.series
    }
}

impl Store {
    /// Reads hits by intervals, in an unspecified order of the series.
    ///
    /// # Errors
    /// [`StoreError::TooManyPoints`], [`StoreError::Database`].
    pub async fn rates(&self, query: &RateQuery) -> Result<RatePage, StoreError> {
        let (start, end) = (second(query.start), second(query.end));
        let asked = i64::try_from(query.step_s.max(1)).unwrap_or(i64::MAX);
        let read = async |connection: &mut SqliteConnection| {
            let (mut step, mut shortest) = (asked, MINUTE);
            // The first interval begins before the range, perhaps where only hours are kept.
            for _ in 0..2 {
                shortest = resolution(connection, start.div_euclid(step).saturating_mul(step)).await?;
                step = whole(asked, shortest);
            }
            // Whole intervals.
            let range = start.div_euclid(step)..(end.max(start) - 1).div_euclid(step) + 1;
            let points = (range.end - range.start).max(0).unsigned_abs();
            if points > MAX_POINTS {
                // The shortest step for which the range does not have too many: one that begins within an interval
                // and ends within one has two more.
                let least = (end - start).div_euclid(MAX_POINTS as i64 - 2) + 1;
                let step_s = whole(least, shortest).unsigned_abs();
                return Err(StoreError::TooManyPoints { points, most: MAX_POINTS, step_s });
            }
            let mut bad = Vec::new();
            let (found, next) = select(connection, query, step, &range, &mut bad).await?;
            self.database.found_some("hit_series", bad);
            Ok((step, range, found, next))
        };
        let (step, range, mut found, next) = self.database.read_beside(read).await?;
        let first = found.iter().map(|found| found.intervals.start).min().unwrap_or(range.end);
        // A day at a time: other readers wait for the connection.
        let part = (DAY / step).max(1);
        let mut intervals = first..first;
        while intervals.end < range.end {
            intervals = intervals.end..range.end.min(intervals.end.saturating_add(part));
            let read = async |connection: &mut SqliteConnection| {
                add_hits(connection, &mut found, step, &intervals).await
            };
            self.database.read_beside(read).await?;
        }
        let series = found.into_iter().map(|found| found.finish(step)).collect();
        Ok(RatePage { step_s: step.unsigned_abs(), series, next })
    }
}

/// The next multiple of the resolution.
fn whole(step: i64, resolution: i64) -> i64 {
    (step - 1).div_euclid(resolution).saturating_add(1).saturating_mul(resolution)
}

/// Hits of some series by intervals of ?1 seconds, numbered from 1970.
const HITS: &str = "SELECT series, time_s / ?1 AS interval, sum(min(hits, 1 << 40)) AS hits, sum(min(nmissed, 1 << 40)) AS nmissed FROM (\
     SELECT * FROM hit_minute WHERE time_s >= ?2 AND time_s < ?3 AND series BETWEEN ?4 AND ?5 UNION ALL \
     SELECT * FROM hit_hour WHERE time_s >= ?2 AND time_s < ?3 AND series BETWEEN ?4 AND ?5) GROUP BY 1, 2";

/// Adds the hits of these intervals to the series, which are in the order of their numbers.
async fn add_hits(
    connection: &mut SqliteConnection,
    found: &mut [Found],
    step: i64,
    intervals: &Range<i64>,
) -> Result<(), StoreError> {
    let id = |found: Option<&Found>| found.map_or(0, |found| found.id);
    let rows = sqlx::query(HITS)
        .bind(step)
        .bind(intervals.start.saturating_mul(step))
        .bind(intervals.end.saturating_mul(step))
        .bind(id(found.first()))
        .bind(id(found.last()))
        .fetch_all(connection)
        .await?;
    for row in rows {
        let series: i64 = row.try_get("series")?;
        let Ok(index) = found.binary_search_by_key(&series, |found| found.id) else { continue };
        let (hits, nmissed) = (unsigned(row.try_get("hits")?), unsigned(row.try_get("nmissed")?));
        if let Some(found) = found.get_mut(index) {
            found.add(row.try_get("interval")?, Hits { hits, nmissed });
        }
    }
    Ok(())
}

/// Length of the shortest interval by which all hits from this time on are kept.
async fn resolution(connection: &mut SqliteConnection, start: i64) -> Result<i64, StoreError> {
    let newest: Option<i64> =
        sqlx::query_scalar("SELECT max(time_s) FROM hit_hour").fetch_one(connection).await?;
    let has_hours = newest.is_some_and(|newest| newest.saturating_add(HOUR) > start);
    Ok(if has_hours { HOUR } else { MINUTE })
}

/// The series of a page, and the number of its last one if there are more.
async fn select(
    connection: &mut SqliteConnection,
    query: &RateQuery,
    step: i64,
    range: &Range<i64>,
    bad: &mut Vec<BadValue>,
) -> Result<(Vec<Found>, Option<i64>), StoreError> {
    let watched = Watched::read(connection).await?;
    let seconds = range.start.saturating_mul(step)..range.end.saturating_mul(step);
    let rows = sqlx::query(
        "SELECT * FROM hit_series WHERE id > ? AND (first_s < ? OR typeof(first_s) != 'integer') AND (last_s IS NULL OR last_s >= ?) ORDER BY id",
    )
    .bind(query.after)
    .bind(seconds.end)
    .bind(seconds.start)
    .fetch_all(connection)
    .await?;
    let (mut found, mut points) = (Vec::<Found>::new(), 0);
    for row in &rows {
        let mut checked = CheckedRow::new(row, "hit_series", "id", bad);
        let uid = ProbeUid(checked.get("probe_uid", NOT_SHOWN));
        let Some(name) = super::name(&mut checked) else { continue };
        let is_wanted = query.uids.as_ref().is_none_or(|uids| uids.contains(&uid))
            && query.names.as_ref().is_none_or(|glob| glob.matches_name(&name));
        if !is_wanted {
            continue;
        }
        let boot_id: Option<String> = checked.need("boot_id", NOT_SHOWN);
        let (Some(boot_id), Some(kernel_release)) = (boot_id, checked.need("kernel_release", NOT_SHOWN))
        else {
            continue;
        };
        let (first_s, last_s) =
            (checked.need::<i64>("first_s", NOT_SHOWN), checked.need::<Option<i64>>("last_s", NOT_SHOWN));
        let (Some(first_s), Some(last_s)) = (first_s, last_s) else { continue };
        for column in ["hits", "nmissed"] {
            checked.get::<i64>(column, "further hits are in a series of their own");
        }
        let last_s = last_s.or_else(|| watched.end(&boot_id)).unwrap_or(first_s);
        let (from, until) = (first_s.max(seconds.start), last_s.max(first_s + 1).min(seconds.end));
        if from >= until {
            continue;
        }
        let intervals = from.div_euclid(step)..(until - 1).div_euclid(step) + 1;
        let length = usize::try_from(intervals.end - intervals.start).unwrap_or_default();
        if points + length > PAGE_POINTS && points > 0 {
            let last = found.last().map(|last| last.id);
            return Ok((found, last));
        }
        points += length;
        found.push(Found {
            id: row.try_get("id")?,
            watched: watched.within(&boot_id, &(first_s..last_s.min(seconds.end).max(first_s))),
            series: v1::HitSeries {
                probe: name.to_string(),
                probe_uid: uid.0,
                boot_id,
                kernel_release,
                points: Vec::new(),
            },
            intervals,
            hits: vec![Hits::default(); length],
        });
    }
    Ok((found, None))
}

/// Spans of time by boot, in order and without overlaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Watched(HashMap<String, Vec<Range<i64>>>);

impl Watched {
    async fn read(connection: &mut SqliteConnection) -> Result<Self, StoreError> {
        let rows = sqlx::query("SELECT boot_id, start_s, end_s FROM hit_span").fetch_all(connection).await?;
        let mut spans = HashMap::<String, Vec<Range<i64>>>::new();
        for row in rows {
            // What cannot be read was not watched.
            let (Ok(start_s), Ok(end_s)) = (row.try_get("start_s"), row.try_get("end_s")) else { continue };
            let Ok(boot_id) = row.try_get("boot_id") else { continue };
            spans.entry(boot_id).or_default().push(start_s..end_s);
        }
        Ok(Self(spans.into_iter().map(|(boot, spans)| (boot, joined(spans))).collect()))
    }

    /// The spans of a boot within these limits.
    fn within(&self, boot_id: &str, limits: &Range<i64>) -> Vec<Range<i64>> {
        let spans = self.0.get(boot_id).map(Vec::as_slice).unwrap_or_default();
        let cut = spans.iter().map(|span| span.start.max(limits.start)..span.end.min(limits.end));
        cut.filter(|span| !span.is_empty()).collect()
    }

    /// The end of the watched time of a boot.
    fn end(&self, boot_id: &str) -> Option<i64> {
        self.0.get(boot_id).and_then(|spans| spans.last()).map(|span| span.end)
    }
}

/// Joins spans that overlap: a clock that was set back shows the same time twice.
fn joined(mut spans: Vec<Range<i64>>) -> Vec<Range<i64>> {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut joined: Vec<Range<i64>> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => joined.push(span),
        }
    }
    joined
}

/// Adds the seconds of these spans to intervals of `width` seconds. The first one has the number
/// `first`, counted from 1970. Seconds of other intervals are left out.
fn cover(spans: &[Range<i64>], width: i64, first: i64, covered: &mut [i64]) {
    for span in spans {
        let from = span.start.div_euclid(width).max(first);
        let until = (span.end - 1).div_euclid(width).min(first.saturating_add(covered.len() as i64) - 1);
        for interval in from..=until {
            let (start, end) = (interval * width, (interval + 1) * width);
            let seconds = span.end.min(end) - span.start.max(start);
            let index = usize::try_from(interval - first).ok();
            if let Some(sum) = index.and_then(|index| covered.get_mut(index)) {
                *sum += seconds;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span() -> impl Strategy<Value = Range<i64>> {
        (0_i64..500, 0_i64..60).prop_map(|(start, length)| start..start + length)
    }

    proptest! {
        #[test]
        fn seconds_are_counted_once(
            spans in prop::collection::vec(span(), 0..12), limits in span(), width in 1_i64..70, first in -3_i64..20,
            intervals in 0_usize..40,
        ) {
            let watched = Watched(HashMap::from([("1".to_owned(), joined(spans.clone()))]));
            let within = watched.within("1", &limits);
            let mut covered = vec![0; intervals];
            cover(&within, width, first, &mut covered);
            let is_watched = |second: &i64| {
                limits.contains(second) && spans.iter().any(|span| span.contains(second))
            };
            for (interval, found) in (first..).zip(&covered) {
                let seconds = interval * width..(interval + 1) * width;
                prop_assert_eq!(seconds.filter(is_watched).count() as i64, *found);
            }
            prop_assert_eq!(watched.within("2", &limits), Vec::<Range<i64>>::new());
        }
    }
}
