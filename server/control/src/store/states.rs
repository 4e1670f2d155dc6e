//! History of states in the database: the latest states of each probe.
//!
//! Owns their table, and how many are kept. Never decides what a state is.

use std::collections::BTreeSet;

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, SqliteConnection};

use super::bad::{BadValue, CheckedRow};
use super::{ROWS, Store, StoreError, from_ns, to_ns};
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
            for states in states.chunks(ROWS) {
                add(transaction, states).await?;
                prune(transaction, states).await?;
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
            let mut found = Vec::new();
            let states = rows.iter().map(|row| record(uid, row, &mut found)).collect();
            self.database.found_some("probe_state", found);
            Ok(states)
        };
        self.database.read_beside(read).await
    }
}

async fn add(transaction: &mut SqliteConnection, states: &[StateRecord]) -> Result<(), StoreError> {
    let mut insert = QueryBuilder::new(
        "INSERT INTO probe_state (probe_uid, time_ns, state, reason, message, hint) SELECT * FROM (",
    );
    insert.push_values(states, |mut row, StateRecord { uid, time, state, reason, message, hint }| {
        row.push_bind(uid.0).push_bind(to_ns(*time)).push_bind(state);
        row.push_bind(reason).push_bind(message).push_bind(hint);
    });
    insert.push(") WHERE column1 IN (SELECT uid FROM probe)");
    insert.build().persistent(states.len() == 1).execute(transaction).await?;
    Ok(())
}

/// Deletes the oldest states of these probes, as far as they have too many.
async fn prune(transaction: &mut SqliteConnection, states: &[StateRecord]) -> Result<(), StoreError> {
    let uids: BTreeSet<_> = states.iter().map(|state| state.uid.0).collect();
    let is_one = uids.len() == 1;
    let mut delete = QueryBuilder::new(
        "DELETE FROM probe_state WHERE id IN (SELECT old.id FROM (SELECT column1 AS uid, \
         (SELECT id FROM probe_state WHERE probe_uid = column1 ORDER BY id DESC LIMIT 1 OFFSET ",
    );
    delete.push_bind(KEPT_STATES).push(") AS last FROM (");
    delete.push_values(uids, |mut row, uid| {
        row.push_bind(uid);
    });
    delete.push(")) JOIN probe_state AS old ON old.probe_uid = uid AND old.id <= last)");
    delete.build().persistent(is_one).execute(transaction).await?;
    Ok(())
}

fn record(uid: ProbeUid, row: &SqliteRow, found: &mut Vec<BadValue>) -> StateRecord {
    let mut row = CheckedRow::new(row, "probe_state", "id", found);
    let time_ns = row.count("time_ns", "it is not known when the probe had this state");
    StateRecord {
        uid,
        time: from_ns(time_ns.unwrap_or_default()),
        state: row.text("state"),
        reason: row.text("reason"),
        message: row.text("message"),
        hint: row.text("hint"),
    }
}
