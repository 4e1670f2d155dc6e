//! Roll-up of hits: from samples to minutes, from minutes to hours, and deletion of the oldest.
//!
//! Owns how old each of them gets. Counts that leave a table enter the next one in the same
//! transaction, added to those in it: a step that a crash interrupts has not happened, and a step
//! that is repeated finds nothing to do. The rows of a step are limited so that it takes some
//! milliseconds, whatever has piled up; its caller says how many steps it has time for. Never
//! decides when to run.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::packed::{Block, decode_counts};
use super::record::keep_counters;
use super::spread::spread;
use super::{DAY, HOUR, HOURS, MINUTE, MINUTES, second};
use crate::store::{Store, StoreError};

/// Most counts of samples in a step.
const STEP_COUNTS: usize = 100_000;

/// Most samples in a step, whatever they contain.
const STEP_TICKS: i64 = 240;

/// Series in a step from minutes to hours, each with up to 24 rows.
const STEP_SERIES: i64 = 128;

/// Most rows in a step that only deletes.
const STEP_ROWS: i64 = 4096;

/// Rows in a statement: SQLite takes 32,766 values.
const ROWS: usize = 1000;

/// A sample that is so far ahead was taken with a wrong clock. The roll-up does not wait for it.
const FUTURE_S: i64 = DAY;

/// How long each table keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitRetention {
    /// Samples.
    pub samples: Duration,
    /// Counts by the minute.
    pub minutes: Duration,
    /// Counts by the hour.
    pub hours: Duration,
}

/// A table of counts by intervals: a row for each series and each block of intervals.
struct Table {
    name: &'static str,
    select: &'static str,
    insert: &'static str,
    slots: usize,
}

const MINUTE_TABLE: Table = Table {
    name: "hit_minutes",
    select: "SELECT series, counts FROM hit_minutes WHERE hour = ? AND series BETWEEN ? AND ?",
    insert: "INSERT OR REPLACE INTO hit_minutes (hour, series, counts) ",
    slots: MINUTES,
};

const HOUR_TABLE: Table = Table {
    name: "hit_hours",
    select: "SELECT series, counts FROM hit_hours WHERE day = ? AND series BETWEEN ? AND ?",
    insert: "INSERT OR REPLACE INTO hit_hours (day, series, counts) ",
    slots: HOURS,
};

impl Store {
    /// Does the next step that is due, and returns whether there was one. Samples are rolled up by
    /// the hour and minutes by the day, so that each block is written once: each gets up to a sixth
    /// older than configured, minutes a day at most.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`]. Then nothing has changed.
    pub async fn roll_up(&self, now: SystemTime, keep: &HitRetention) -> Result<bool, StoreError> {
        let now = second(now);
        let seconds = |keep: Duration| i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
        let due =
            Due { now, until: now.saturating_sub(seconds(keep.samples)), slack: seconds(keep.samples) / 6 };
        if self.leaves("SELECT time_s FROM hit_tick ORDER BY id LIMIT 1", 1, &due).await? {
            self.database
                .write(async |transaction: &mut SqliteConnection| ticks_to_minutes(transaction, &due).await)
                .await?;
            return Ok(true);
        }
        let until = now.saturating_sub(seconds(keep.minutes));
        let due = Due { now, until, slack: (seconds(keep.minutes) / 6).min(DAY) };
        if self.leaves("SELECT min(hour) FROM hit_minutes", HOUR, &due).await? {
            self.database
                .write(async |transaction: &mut SqliteConnection| minutes_to_hours(transaction, &due).await)
                .await?;
            return Ok(true);
        }
        // A day is deleted when its end is too old.
        let until = now.saturating_sub(seconds(keep.hours)).saturating_sub(DAY);
        let due = Due { now, until, slack: 0 };
        if self.leaves("SELECT min(day) FROM hit_hours", DAY, &due).await? {
            self.database
                .write(async |transaction: &mut SqliteConnection| drop_hours(transaction).await)
                .await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Deletes probes and boots that have no counts left, as far as one step goes. To be called now
    /// and then: keeping them costs little.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn forget_old(&self, now: SystemTime, keep: &HitRetention) -> Result<(), StoreError> {
        let longest = keep.hours.max(keep.minutes).max(keep.samples);
        let oldest = second(now.checked_sub(longest).unwrap_or(SystemTime::UNIX_EPOCH)).saturating_sub(DAY);
        let forget = [
            "DELETE FROM hit_span WHERE id IN (SELECT id FROM hit_span WHERE end_s < ?1 LIMIT ?2)",
            "DELETE FROM hit_series WHERE id IN (SELECT id FROM hit_series WHERE last_s < ?1 LIMIT ?2)",
            "DELETE FROM hit_probe WHERE uid IN (SELECT uid FROM hit_probe WHERE uid NOT IN (SELECT probe_uid FROM hit_series) LIMIT ?2)",
            // The present boot has a span before it has anything else.
            "DELETE FROM hit_boot WHERE id IN (SELECT id FROM hit_boot WHERE id NOT IN (SELECT boot FROM hit_series) \
             AND id NOT IN (SELECT boot FROM hit_span) LIMIT ?2)",
        ];
        let write = async |transaction: &mut SqliteConnection| {
            for statement in forget {
                sqlx::query(statement).bind(oldest).bind(STEP_ROWS).execute(&mut *transaction).await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }

    /// Whether the oldest row of a table leaves it. Its time is a multiple of `unit` seconds.
    async fn leaves(&self, oldest: &'static str, unit: i64, due: &Due) -> Result<bool, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let oldest: Option<Option<i64>> = sqlx::query_scalar(oldest).fetch_optional(connection).await?;
            Ok(oldest.flatten())
        };
        let oldest = self.database.read(read).await?;
        Ok(oldest.is_some_and(|oldest| due.begins_with(oldest.saturating_mul(unit))))
    }
}

/// The rows that leave a table.
struct Due {
    /// The present, in seconds since 1970.
    now: i64,
    /// Rows up to this time.
    until: i64,
    /// How much longer rows may stay, so that more of them leave at once.
    slack: i64,
}

impl Due {
    fn begins_with(&self, oldest_s: i64) -> bool {
        oldest_s <= self.until.saturating_sub(self.slack) || self.is_of_the_future(oldest_s)
    }

    fn includes(&self, time_s: i64) -> bool {
        time_s <= self.until || self.is_of_the_future(time_s)
    }

    fn is_of_the_future(&self, time_s: i64) -> bool {
        time_s > self.now.saturating_add(FUTURE_S)
    }
}

async fn ticks_to_minutes(transaction: &mut SqliteConnection, due: &Due) -> Result<(), StoreError> {
    let first_seconds =
        sqlx::query("SELECT id, first_s FROM hit_series").fetch_all(&mut *transaction).await?;
    let first_seconds = first_seconds.iter().map(|row| Ok((row.try_get("id")?, row.try_get("first_s")?)));
    let first_seconds = first_seconds.collect::<Result<HashMap<i64, i64>, StoreError>>()?;
    let ticks = sqlx::query("SELECT id, since_s, time_s, counts FROM hit_tick ORDER BY id LIMIT ?")
        .bind(STEP_TICKS)
        .fetch_all(&mut *transaction)
        .await?;
    let mut blocks = BTreeMap::<(i64, i64), Block>::new();
    let mut counters = HashMap::new();
    let (mut last, mut taken, mut hour) = (None, 0, None);
    for tick in &ticks {
        let (since, time): (i64, i64) = (tick.try_get("since_s")?, tick.try_get("time_s")?);
        // Up to the end of an hour, whose row is written once then. A sample on the hour belongs to
        // the one before.
        let ends_in = (time - 1).div_euclid(HOUR);
        if taken >= STEP_COUNTS || !due.includes(time) || hour.is_some_and(|hour| hour != ends_in) {
            break;
        }
        let counts = or_dropped(decode_counts(tick.try_get("counts")?)).unwrap_or_default();
        taken += counts.len();
        for count in counts {
            let since = first_seconds.get(&count.series).map_or(since, |first| since.max(*first));
            spread(count.happened, (since, time), MINUTE, &(i64::MIN..i64::MAX), |minute, hits| {
                let slot = usize::try_from(minute.rem_euclid(MINUTES as i64)).unwrap_or(0);
                let key = (minute.div_euclid(MINUTES as i64), count.series);
                blocks.entry(key).or_insert_with(|| Block::new(MINUTES)).add(slot, hits);
            });
            counters.insert(count.series, count.now);
        }
        (last, hour) = (Some(tick.try_get::<i64, _>("id")?), Some(ends_in));
    }
    add_blocks(transaction, &MINUTE_TABLE, &mut blocks).await?;
    keep_counters(transaction, &counters).await?;
    sqlx::query("DELETE FROM hit_tick WHERE id <= ?").bind(last).execute(transaction).await?;
    Ok(())
}

/// Counts that can be read. Counts that cannot be read are dropped: otherwise they would keep
/// everything else from being rolled up.
pub(super) fn or_dropped<T>(counts: Result<T, StoreError>) -> Option<T> {
    counts.inspect_err(|error| tracing::error!(%error, "dropped counts of hits that cannot be read")).ok()
}

async fn minutes_to_hours(transaction: &mut SqliteConnection, due: &Due) -> Result<(), StoreError> {
    let oldest: i64 =
        sqlx::query_scalar("SELECT min(hour) FROM hit_minutes").fetch_one(&mut *transaction).await?;
    let day = oldest.div_euclid(HOURS as i64);
    let hours = (oldest..(day + 1) * HOURS as i64).filter(|hour| due.includes(hour * HOUR));
    let hours = hours.collect::<Vec<_>>();
    let mut first = i64::MAX;
    for hour in &hours {
        let series: Option<i64> = sqlx::query_scalar("SELECT min(series) FROM hit_minutes WHERE hour = ?")
            .bind(hour)
            .fetch_one(&mut *transaction)
            .await?;
        first = first.min(series.unwrap_or(i64::MAX));
    }
    let last = first.saturating_add(STEP_SERIES);
    let mut blocks = BTreeMap::<(i64, i64), Block>::new();
    for hour in &hours {
        let slot = usize::try_from(hour.rem_euclid(HOURS as i64)).unwrap_or(0);
        let rows = sqlx::query(MINUTE_TABLE.select)
            .bind(hour)
            .bind(first)
            .bind(last)
            .fetch_all(&mut *transaction)
            .await?;
        for row in rows {
            let Some(minutes) = or_dropped(Block::decode(MINUTES, row.try_get("counts")?)) else { continue };
            let key = (day, row.try_get("series")?);
            blocks.entry(key).or_insert_with(|| Block::new(HOURS)).add(slot, minutes.sum());
        }
        sqlx::query("DELETE FROM hit_minutes WHERE hour = ? AND series BETWEEN ? AND ?")
            .bind(hour)
            .bind(first)
            .bind(last)
            .execute(&mut *transaction)
            .await?;
    }
    add_blocks(transaction, &HOUR_TABLE, &mut blocks).await
}

async fn drop_hours(transaction: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM hit_hours WHERE day = (SELECT min(day) FROM hit_hours) AND series <= \
         (SELECT max(series) FROM (SELECT series FROM hit_hours WHERE day = (SELECT min(day) FROM hit_hours) ORDER BY series LIMIT ?))",
    )
    .bind(STEP_ROWS)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Adds blocks, which are in the order of the table, to those in it.
async fn add_blocks(
    transaction: &mut SqliteConnection,
    table: &Table,
    blocks: &mut BTreeMap<(i64, i64), Block>,
) -> Result<(), StoreError> {
    let mut ranges = BTreeMap::<i64, (i64, i64)>::new();
    for (number, series) in blocks.keys() {
        let range = ranges.entry(*number).or_insert((*series, *series));
        range.1 = range.1.max(*series);
    }
    for (number, (first, last)) in ranges {
        let rows = sqlx::query(table.select)
            .bind(number)
            .bind(first)
            .bind(last)
            .fetch_all(&mut *transaction)
            .await?;
        for row in rows {
            if let Some(block) = blocks.get_mut(&(number, row.try_get("series")?))
                && let Some(other) = or_dropped(Block::decode(table.slots, row.try_get("counts")?))
            {
                block.merge(&other);
            }
        }
    }
    let rows: Vec<_> =
        blocks.iter().map(|((number, series), block)| (*number, *series, block.encode())).collect();
    for rows in rows.chunks(ROWS) {
        let mut insert = QueryBuilder::<Sqlite>::new(table.insert);
        insert.push_values(rows, |mut row, (number, series, counts)| {
            row.push_bind(number).push_bind(series).push_bind(counts.as_slice());
        });
        insert.build().execute(&mut *transaction).await?;
    }
    tracing::trace!(table = table.name, rows = rows.len(), "rolled up hits");
    Ok(())
}
