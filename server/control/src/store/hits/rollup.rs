//! Roll-up of hits: from minutes to hours, and deletion of the oldest.
//!
//! Owns how old each of them gets. Hits that leave a table enter the next one in the same transaction,
//! added to those in it. A step is about one hour, so that it takes some milliseconds, whatever has piled
//! up; its caller says how many steps it has time for. Never decides when to run.

use std::time::{Duration, SystemTime};

use sqlx::SqliteConnection;

use super::{DAY, HOUR, second};
use crate::store::{Store, StoreError};

/// How long each table keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitRetention {
    /// Hits by the minute.
    pub minutes: Duration,
    /// Hits by the hour.
    pub hours: Duration,
}

impl Store {
    /// Does the next step that is due, and returns whether there was one. Minutes are rolled up by the
    /// day, so that most samples write nothing else: they get up to a sixth older than configured, and a
    /// day at most.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing has changed.
    pub async fn roll_up(&self, now: SystemTime, keep: &HitRetention) -> Result<bool, StoreError> {
        let minutes_s = seconds(keep.minutes);
        let until = second(now).saturating_sub(minutes_s);
        let oldest = self.oldest("SELECT min(time_s) FROM hit_minute").await?;
        if let Some(oldest) =
            oldest.filter(|oldest| *oldest <= until.saturating_sub((minutes_s / 6).min(DAY)))
        {
            // Not beyond the end of its hour.
            let until = until.min((oldest.div_euclid(HOUR) + 1) * HOUR - 1);
            let statements = [
                "INSERT INTO hit_hour (time_s, series, hits, nmissed) \
                 SELECT time_s / 3600 * 3600, series, sum(min(hits, 1 << 40)), sum(min(nmissed, 1 << 40)) FROM hit_minute WHERE time_s <= ? GROUP BY 1, 2 \
                 ON CONFLICT DO UPDATE SET hits = min(hits, 1 << 40) + excluded.hits, nmissed = min(nmissed, 1 << 40) + excluded.nmissed",
                "DELETE FROM hit_minute WHERE time_s <= ?",
            ];
            self.carry_out(&statements, until).await?;
            return Ok(true);
        }
        // An hour is deleted when its end is too old.
        let until = second(now).saturating_sub(seconds(keep.hours)).saturating_sub(HOUR);
        let oldest = self.oldest("SELECT min(time_s) FROM hit_hour").await?;
        if let Some(oldest) = oldest.filter(|oldest| *oldest <= until) {
            self.carry_out(&["DELETE FROM hit_hour WHERE time_s <= ?"], oldest).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Deletes series and spans that have no hits left, so many of each as one step takes. To be called now
    /// and then: keeping them costs little.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn forget_old(&self, now: SystemTime, keep: &HitRetention) -> Result<(), StoreError> {
        let longest = seconds(keep.hours.max(keep.minutes));
        let oldest = second(now).saturating_sub(longest).saturating_sub(DAY);
        let statements = [
            "DELETE FROM hit_span WHERE id IN (SELECT id FROM hit_span WHERE end_s < ? LIMIT 4096)",
            "DELETE FROM hit_series WHERE id IN (SELECT id FROM hit_series WHERE last_s < ? LIMIT 4096)",
        ];
        self.carry_out(&statements, oldest).await
    }

    async fn oldest(&self, query: &'static str) -> Result<Option<i64>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            Ok(sqlx::query_scalar(query).fetch_one(connection).await?)
        };
        self.database.read(read).await
    }

    /// Carries out statements about the time until then, all or none.
    async fn carry_out(&self, statements: &[&'static str], until: i64) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for statement in statements {
                sqlx::query(*statement).bind(until).execute(&mut *transaction).await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}
