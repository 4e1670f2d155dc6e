//! Meanings of definitions in the database: what each meant on the build that it was made for.
//!
//! Owns their table. Never reads the text: [`crate::control`] does.

use std::collections::HashMap;

use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError};
use kprobed_lang::model::ProbeUid;

/// Writes it within the transaction that makes or changes the row of the probe.
pub(super) async fn write(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    meaning: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO probe_meaning (probe_uid, meaning) VALUES (?, ?) \
         ON CONFLICT (probe_uid) DO UPDATE SET meaning = excluded.meaning",
    )
    .bind(uid.0)
    .bind(meaning)
    .execute(transaction)
    .await?;
    Ok(())
}

impl Store {
    /// The stored meanings of the definitions of all probes that have one.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn meanings(&self) -> Result<HashMap<ProbeUid, String>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows =
                sqlx::query("SELECT probe_uid, meaning FROM probe_meaning").fetch_all(connection).await?;
            let pair = |row: &sqlx::sqlite::SqliteRow| {
                Ok((ProbeUid(row.try_get("probe_uid")?), row.try_get("meaning")?))
            };
            rows.iter().map(pair).collect()
        };
        self.database.read(read).await
    }

    /// Stores what definitions mean from now on.
    ///
    /// # Errors
    /// [`StoreError::Database`], also if there is no such probe. Then nothing is written.
    pub(crate) async fn set_meanings(&self, meanings: &[(ProbeUid, String)]) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for (uid, meaning) in meanings {
                write(transaction, *uid, meaning).await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }
}
