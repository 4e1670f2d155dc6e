//! Spent processor time in the database: what probes and the daemon have taken, by the day.
//!
//! Owns their tables. Probes are found by name after they are deleted. Never computes a cost.

use std::time::SystemTime;

use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, to_i64};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// What a probe has taken in a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentByProbe {
    /// The probe.
    pub uid: ProbeUid,
    /// Its name.
    pub name: ProbeName,
    /// The principal that made it; empty if that is not known.
    pub creator: String,
    /// Days since 1970, in UTC.
    pub day: u64,
    /// Hits, with the runs that the kernel skipped.
    pub runs: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
}

/// What the daemon itself has taken in a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentByDaemon {
    /// Days since 1970, in UTC.
    pub day: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
}

/// The day that a time lies in.
pub(crate) fn day_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY_S
}

impl Store {
    /// Adds to what was taken.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn add_spent(
        &self,
        probes: &[SpentByProbe],
        daemon: SpentByDaemon,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for SpentByProbe { uid, name, creator, day, runs, cpu_ns } in probes {
                sqlx::query(
                    "INSERT INTO spent_by_probe (day, probe_uid, event_group, event, creator, runs, cpu_ns) \
                     VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, probe_uid) DO UPDATE SET \
                     runs = runs + excluded.runs, cpu_ns = cpu_ns + excluded.cpu_ns",
                )
                .bind(to_i64(*day))
                .bind(uid.0)
                .bind(name.group())
                .bind(name.event())
                .bind(creator)
                .bind(to_i64(*runs))
                .bind(to_i64(*cpu_ns))
                .execute(&mut *transaction)
                .await?;
            }
            sqlx::query(
                "INSERT INTO spent_by_daemon (day, cpu_ns) VALUES (?, ?) \
                 ON CONFLICT (day) DO UPDATE SET cpu_ns = cpu_ns + excluded.cpu_ns",
            )
            .bind(to_i64(daemon.day))
            .bind(to_i64(daemon.cpu_ns))
            .execute(transaction)
            .await?;
            Ok(())
        };
        self.database.write(write).await
    }

    /// What was taken since that day, by name and day.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub(crate) async fn spent(
        &self,
        since_day: u64,
    ) -> Result<(Vec<SpentByProbe>, Vec<SpentByDaemon>), StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query =
                "SELECT * FROM spent_by_probe WHERE day >= ? ORDER BY event_group, event, probe_uid, day";
            let rows = sqlx::query(query).bind(to_i64(since_day)).fetch_all(&mut *connection).await?;
            let number = |row: &sqlx::sqlite::SqliteRow, column: &str| -> Result<u64, StoreError> {
                Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or_default())
            };
            let probe = |row| {
                let (group, event): (String, String) =
                    (row_text(row, "event_group")?, row_text(row, "event")?);
                let name = ProbeName::new(&group, &event)
                    .map_err(|error| StoreError::Corrupt { what: "probe name", value: error.to_string() })?;
                Ok(SpentByProbe {
                    uid: ProbeUid(row.try_get("probe_uid")?),
                    name,
                    creator: row.try_get("creator")?,
                    day: number(row, "day")?,
                    runs: number(row, "runs")?,
                    cpu_ns: number(row, "cpu_ns")?,
                })
            };
            let probes = rows.iter().map(probe).collect::<Result<Vec<_>, StoreError>>()?;
            let query = "SELECT day, cpu_ns FROM spent_by_daemon WHERE day >= ? ORDER BY day";
            let rows = sqlx::query(query).bind(to_i64(since_day)).fetch_all(connection).await?;
            let daemon = |row| Ok(SpentByDaemon { day: number(row, "day")?, cpu_ns: number(row, "cpu_ns")? });
            let daemon = rows.iter().map(daemon).collect::<Result<Vec<_>, StoreError>>()?;
            Ok((probes, daemon))
        };
        self.database.read(read).await
    }

    /// Deletes what was taken before that day.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is deleted.
    pub(crate) async fn forget_spent(&self, before_day: u64) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for table in
                ["DELETE FROM spent_by_probe WHERE day < ?", "DELETE FROM spent_by_daemon WHERE day < ?"]
            {
                sqlx::query(table).bind(to_i64(before_day)).execute(&mut *transaction).await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }
}

fn row_text(row: &sqlx::sqlite::SqliteRow, column: &str) -> Result<String, StoreError> {
    Ok(row.try_get(column)?)
}
