//! Trips in the database: probes that were disarmed since they cost more than their budget.
//!
//! Owns their table. Never decides whether a probe is disarmed: [`crate::control`] does.

use std::collections::HashMap;

use kprobed_audit::Entry;
use sqlx::SqliteConnection;

use super::bad::CheckedRow;
use super::connection::Transaction;
use super::{Store, StoreError, audit};
use kprobed_lang::model::ProbeUid;

/// What is stored of a probe that has cost more than its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTrip {
    /// The probe.
    pub uid: ProbeUid,
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
            let (mut trips, mut found) = (HashMap::with_capacity(rows.len()), Vec::new());
            for row in &rows {
                let mut row = CheckedRow::new(row, "trip", "probe_uid", &mut found);
                let uid = ProbeUid(row.get("probe_uid", "the trip is of no probe"));
                let (code, message) = (row.text("reason"), row.text("message"));
                trips.insert(uid, StoredTrip { uid, code, message });
            }
            self.database.found("trip", found);
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
                    "INSERT INTO trip (probe_uid, reason, message) SELECT uid, ?, ? FROM probe WHERE uid = ? \
                     ON CONFLICT (probe_uid) DO UPDATE SET reason = excluded.reason, message = excluded.message",
                )
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
