//! Hit rates: hits over time, by intervals of any length.
//!
//! Owns reading the three tables as one: each time is in exactly one of them, so that their counts
//! are added up. The resolution is that of the coarsest table that has counts in the range. Never
//! writes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::packed::{Block, decode_counts};
use super::spread::spread;
use super::watch::{Watched, cover};
use super::{DAY, HOUR, HOURS, MINUTE, MINUTES, as_second, second};
use crate::store::{Store, StoreError};
use kprobed_lang::model::{Glob, Hits, ProbeName, ProbeUid};

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
    /// One for each probe and boot.
    pub series: Vec<RateSeries>,
    /// `after` of the next page. Absent if this was the last.
    pub next: Option<i64>,
}

/// Hits of one probe in one boot.
#[derive(Clone, Debug, PartialEq)]
pub struct RateSeries {
    /// The probe.
    pub uid: ProbeUid,
    /// Its name.
    pub name: ProbeName,
    /// The boot.
    pub boot_id: String,
    /// The kernel of that boot.
    pub kernel_release: String,
    /// Intervals from the first to the last in which it was counted, without a gap.
    pub points: Vec<RatePoint>,
}

/// Hits of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// When it begins.
    pub start: SystemTime,
    /// How many of its seconds were watched.
    pub covered_s: u64,
    /// Hits in those seconds.
    pub hits: Hits,
}

impl RatePoint {
    /// Hits per second, if any second was watched.
    pub(crate) fn hits_per_s(&self) -> Option<f64> {
        (self.covered_s > 0).then(|| self.hits.hits as f64 / self.covered_s as f64)
    }
}

/// A series while it is read: its intervals are numbered from 1970.
struct Found {
    id: i64,
    first_s: i64,
    series: RateSeries,
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

    fn finish(mut self, step: i64) -> RateSeries {
        let mut covered = vec![0; self.hits.len()];
        cover(&self.watched, step, self.intervals.start, &mut covered);
        let points = self.intervals.zip(self.hits.iter().zip(covered));
        self.series.points = points
            .map(|(interval, (hits, covered))| RatePoint {
                start: as_second(interval * step),
                covered_s: u64::try_from(covered).unwrap_or_default(),
                hits: *hits,
            })
            .collect();
        self.series
    }
}

impl Store {
    /// Reads hits by intervals, in an unspecified order of the series.
    ///
    /// # Errors
    /// [`StoreError::TooManyPoints`], [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn rates(&self, query: &RateQuery) -> Result<RatePage, StoreError> {
        let (start, end) = (second(query.start), second(query.end));
        let asked = i64::try_from(query.step_s.max(1)).unwrap_or(i64::MAX);
        let read = async |connection: &mut SqliteConnection| {
            let (mut step, mut shortest) = (asked, 1);
            // The first interval begins before the range, perhaps in a coarser table: there are
            // three.
            for _ in 0..3 {
                shortest = resolution(connection, start.div_euclid(step).saturating_mul(step)).await?;
                step = whole(asked, shortest);
            }
            // Whole intervals.
            let range = start.div_euclid(step)..(end.max(start) - 1).div_euclid(step) + 1;
            let points = (range.end - range.start).max(0).unsigned_abs();
            if points > MAX_POINTS {
                let step_s = range_step(start, end, shortest);
                return Err(StoreError::TooManyPoints { points, most: MAX_POINTS, step_s });
            }
            let mut page = RatePage { step_s: step.unsigned_abs(), series: Vec::new(), next: None };
            let (mut found, next) = select(connection, query, step, &range).await?;
            page.next = next;
            let index: HashMap<_, _> =
                found.iter().enumerate().map(|(index, found)| (found.id, index)).collect();
            let seconds = range.start.saturating_mul(step)..range.end.saturating_mul(step);
            add_ticks(connection, &mut found, &index, step, &seconds).await?;
            for table in [&BY_MINUTE, &BY_HOUR] {
                add_table(connection, table, &mut found, &index, step, &seconds).await?;
            }
            page.series = found.into_iter().map(|found| found.finish(step)).collect();
            Ok(page)
        };
        self.database.read(read).await
    }
}

/// The shortest step for which the range does not have too many points.
fn range_step(start: i64, end: i64, resolution: i64) -> u64 {
    // A range that begins within an interval and ends within one has two more.
    let step = (end - start).div_euclid(MAX_POINTS as i64 - 2) + 1;
    whole(step, resolution).unsigned_abs()
}

/// The next multiple of the resolution.
fn whole(step: i64, resolution: i64) -> i64 {
    (step - 1).div_euclid(resolution).saturating_add(1).saturating_mul(resolution)
}

/// Length of the shortest interval by which all counts from this time on are kept.
async fn resolution(connection: &mut SqliteConnection, start: i64) -> Result<i64, StoreError> {
    for (newest, unit, resolution) in
        [("SELECT max(day) FROM hit_hours", DAY, HOUR), ("SELECT max(hour) FROM hit_minutes", HOUR, MINUTE)]
    {
        let newest: Option<i64> = sqlx::query_scalar(newest).fetch_one(&mut *connection).await?;
        if newest.is_some_and(|newest| newest.saturating_add(1).saturating_mul(unit) > start) {
            return Ok(resolution);
        }
    }
    Ok(1)
}

/// The series of a page, and the number of its last one if there are more.
async fn select(
    connection: &mut SqliteConnection,
    query: &RateQuery,
    step: i64,
    range: &Range<i64>,
) -> Result<(Vec<Found>, Option<i64>), StoreError> {
    let watched = Watched::read(connection).await?;
    let seconds = range.start.saturating_mul(step)..range.end.saturating_mul(step);
    let rows = sqlx::query(
        "SELECT s.id, s.probe_uid, s.boot, s.first_s, s.last_s, p.event_group, p.event, b.boot_id, b.kernel_release \
         FROM hit_series AS s JOIN hit_probe AS p ON p.uid = s.probe_uid JOIN hit_boot AS b ON b.id = s.boot \
         WHERE s.id > ? AND s.first_s < ? AND (s.last_s IS NULL OR s.last_s >= ?) ORDER BY s.id",
    )
    .bind(query.after)
    .bind(seconds.end)
    .bind(seconds.start)
    .fetch_all(connection)
    .await?;
    let (mut found, mut points) = (Vec::<Found>::new(), 0);
    for row in &rows {
        let uid = ProbeUid(row.try_get("probe_uid")?);
        let name = super::name(row)?;
        let is_wanted = query.uids.as_ref().is_none_or(|uids| uids.contains(&uid))
            && query.names.as_ref().is_none_or(|glob| glob.matches_name(&name));
        if !is_wanted {
            continue;
        }
        let (boot, first_s): (i64, i64) = (row.try_get("boot")?, row.try_get("first_s")?);
        let last_s =
            row.try_get::<Option<i64>, _>("last_s")?.or_else(|| watched.end(boot)).unwrap_or(first_s);
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
            first_s,
            series: RateSeries {
                uid,
                name,
                boot_id: row.try_get("boot_id")?,
                kernel_release: row.try_get("kernel_release")?,
                points: Vec::new(),
            },
            watched: watched.within(boot, &(first_s..last_s.min(seconds.end).max(first_s))),
            intervals,
            hits: vec![Hits::default(); length],
        });
    }
    Ok((found, None))
}

async fn add_ticks(
    connection: &mut SqliteConnection,
    found: &mut [Found],
    index: &HashMap<i64, usize>,
    step: i64,
    seconds: &Range<i64>,
) -> Result<(), StoreError> {
    let ticks =
        sqlx::query("SELECT since_s, time_s, counts FROM hit_tick WHERE time_s >= ? AND since_s <= ?")
            .bind(seconds.start)
            .bind(seconds.end)
            .fetch_all(connection)
            .await?;
    let wanted = seconds.start.div_euclid(step)..seconds.end.div_euclid(step);
    for tick in ticks {
        let (since, time): (i64, i64) = (tick.try_get("since_s")?, tick.try_get("time_s")?);
        for count in decode_counts(tick.try_get("counts")?)? {
            if let Some(found) = index.get(&count.series).and_then(|index| found.get_mut(*index)) {
                let since = since.max(found.first_s);
                spread(count.happened, (since, time), step, &wanted, |interval, hits| {
                    found.add(interval, hits);
                });
            }
        }
    }
    Ok(())
}

/// A table with counts by intervals.
struct Table {
    ends: &'static str,
    select: &'static str,
    block_s: i64,
    slots: usize,
}

const BY_MINUTE: Table = Table {
    ends: "SELECT min(hour) AS first, max(hour) AS last FROM hit_minutes",
    select: "WITH RECURSIVE block (number) AS (VALUES (?1) UNION ALL SELECT number + 1 FROM block WHERE number < ?2) \
             SELECT number, series, counts FROM block CROSS JOIN json_each(?3) AS wanted \
             CROSS JOIN hit_minutes ON hour = number AND series = wanted.value",
    block_s: HOUR,
    slots: MINUTES,
};

const BY_HOUR: Table = Table {
    ends: "SELECT min(day) AS first, max(day) AS last FROM hit_hours",
    select: "WITH RECURSIVE block (number) AS (VALUES (?1) UNION ALL SELECT number + 1 FROM block WHERE number < ?2) \
             SELECT number, series, counts FROM block CROSS JOIN json_each(?3) AS wanted \
             CROSS JOIN hit_hours ON day = number AND series = wanted.value",
    block_s: DAY,
    slots: HOURS,
};

async fn add_table(
    connection: &mut SqliteConnection,
    table: &Table,
    found: &mut [Found],
    index: &HashMap<i64, usize>,
    step: i64,
    seconds: &Range<i64>,
) -> Result<(), StoreError> {
    let ends: SqliteRow = sqlx::query(table.ends).fetch_one(&mut *connection).await?;
    let (Some(first), Some(last)) = (ends.try_get::<Option<i64>, _>("first")?, ends.try_get("last")?) else {
        return Ok(());
    };
    let last: Option<i64> = last;
    let first = first.max(seconds.start.div_euclid(table.block_s));
    let last = last.unwrap_or(first).min((seconds.end - 1).div_euclid(table.block_s));
    if first > last {
        return Ok(());
    }
    let ids: Vec<_> = found.iter().map(|found| found.id.to_string()).collect();
    let rows = sqlx::query(table.select)
        .bind(first)
        .bind(last)
        .bind(format!("[{}]", ids.join(",")))
        .fetch_all(connection)
        .await?;
    for row in rows {
        let series: i64 = row.try_get("series")?;
        let Some(found) = index.get(&series).and_then(|index| found.get_mut(*index)) else { continue };
        let begin = row.try_get::<i64, _>("number")?.saturating_mul(table.block_s);
        for (slot, hits) in Block::decode(table.slots, row.try_get("counts")?)?.slots() {
            let at = begin + slot as i64 * (table.block_s / table.slots as i64);
            if seconds.contains(&at) {
                found.add(at.div_euclid(step), hits);
            }
        }
    }
    Ok(())
}
