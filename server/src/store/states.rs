//! History of states in the database: the latest states of each probe.
//!
//! Owns their table, and how many are kept. Never decides what a state is.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, from_ns, to_ns};
use kprobed_lang::model::{ProbeUid, StateRecord};

/// Most states that are kept of each probe.
pub const KEPT_STATES: u32 = 64;

impl Store {
    /// Adds states to the histories of their probes. States of probes that are gone are left out.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn add_states(&self, states: &[StateRecord]) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for state in states {
                add(transaction, state).await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }

    /// The states that a probe has had, the latest first.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn states_of(&self, uid: ProbeUid) -> Result<Vec<StateRecord>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM probe_state WHERE probe_uid = ? ORDER BY id DESC")
                .bind(uid.0)
                .fetch_all(connection)
                .await?;
            rows.iter().map(|row| record(uid, row)).collect()
        };
        self.database.read(read).await
    }
}

async fn add(transaction: &mut SqliteConnection, state: &StateRecord) -> Result<(), StoreError> {
    let added = sqlx::query(
        "INSERT INTO probe_state (probe_uid, time_ns, state, reason, message, hint) \
         SELECT uid, ?, ?, ?, ?, ? FROM probe WHERE uid = ?",
    )
    .bind(to_ns(state.time))
    .bind(&state.state)
    .bind(&state.reason)
    .bind(&state.message)
    .bind(&state.hint)
    .bind(state.uid.0)
    .execute(&mut *transaction)
    .await?;
    if added.rows_affected() == 0 {
        return Ok(());
    }
    sqlx::query(
        "DELETE FROM probe_state WHERE probe_uid = ?1 AND id <= \
         (SELECT id FROM probe_state WHERE probe_uid = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(state.uid.0)
    .bind(KEPT_STATES)
    .execute(transaction)
    .await?;
    Ok(())
}

fn record(uid: ProbeUid, row: &SqliteRow) -> Result<StateRecord, StoreError> {
    Ok(StateRecord {
        uid,
        time: from_ns(row.try_get("time_ns")?),
        state: row.try_get("state")?,
        reason: row.try_get("reason")?,
        message: row.try_get("message")?,
        hint: row.try_get("hint")?,
    })
}
