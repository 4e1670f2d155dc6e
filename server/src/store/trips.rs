//! Trips in the database: probes that were disarmed since they cost more than their budget.
//!
//! Owns their table. Never decides whether a probe is disarmed: [`crate::control`] does.

use std::collections::HashMap;
use std::time::SystemTime;

use kprobed_audit::Entry;
use sqlx::{Row as _, SqliteConnection};

use super::connection::Transaction;
use super::{Store, StoreError, audit, from_ns, to_ns};
use kprobed_lang::model::ProbeUid;

/// What is stored of a probe that has cost more than its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTrip {
    /// The probe.
    pub uid: ProbeUid,
    /// How often it was disarmed without a client that has enabled it in between, from 1.
    pub times: u32,
    /// When it was disarmed last.
    pub time: SystemTime,
    /// When it is armed again by itself. Absent for never.
    pub rearm: Option<SystemTime>,
    /// Whether it is disarmed now.
    pub is_open: bool,
    /// Code of the reason.
    pub code: String,
    /// The reason with its figures.
    pub message: String,
}

/// Removes the trip of a probe within the transaction that changes the row of the probe.
pub(super) async fn clear(transaction: &mut SqliteConnection, uid: ProbeUid) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM trip WHERE probe_uid = ?").bind(uid.0).execute(transaction).await?;
    Ok(())
}

impl Store {
    /// The stored trips.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn trips(&self) -> Result<HashMap<ProbeUid, StoredTrip>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM trip").fetch_all(connection).await?;
            let mut trips = HashMap::with_capacity(rows.len());
            for row in rows {
                let uid = ProbeUid(row.try_get("probe_uid")?);
                let trip = StoredTrip {
                    uid,
                    times: row.try_get("times")?,
                    time: from_ns(row.try_get("time_ns")?),
                    rearm: row.try_get::<Option<i64>, _>("rearm_ns")?.map(from_ns),
                    is_open: row.try_get("is_open")?,
                    code: row.try_get("reason")?,
                    message: row.try_get("message")?,
                };
                trips.insert(uid, trip);
            }
            Ok(trips)
        };
        self.database.read(read).await
    }

    /// Stores trips, and what the audit log says of them. Skips trips of probes that have gone.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn set_trips(&self, trips: &[StoredTrip], entries: &[Entry]) -> Result<(), StoreError> {
        let write = async |transaction: &mut Transaction<'_>| {
            for trip in trips {
                sqlx::query(
                    "INSERT INTO trip (probe_uid, times, time_ns, rearm_ns, is_open, reason, message) \
                     SELECT uid, ?, ?, ?, ?, ?, ? FROM probe WHERE uid = ? \
                     ON CONFLICT (probe_uid) DO UPDATE SET times = excluded.times, \
                     time_ns = excluded.time_ns, rearm_ns = excluded.rearm_ns, \
                     is_open = excluded.is_open, reason = excluded.reason, message = excluded.message",
                )
                .bind(trip.times)
                .bind(to_ns(trip.time))
                .bind(trip.rearm.map(to_ns))
                .bind(trip.is_open)
                .bind(&trip.code)
                .bind(&trip.message)
                .bind(trip.uid.0)
                .execute(transaction.connection())
                .await?;
            }
            audit::append(transaction, entries).await
        };
        self.database.write_or_undo(Vec::new, write).await
    }
}
