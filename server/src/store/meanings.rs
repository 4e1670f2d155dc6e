//! Meanings of definitions in the database: what each meant on the build that it was made for.
//!
//! Owns their table. Never reads the text: [`crate::control`] does.

use std::collections::HashMap;

use sqlx::{QueryBuilder, SqliteConnection};

use super::bad::CheckedRow;
use super::{ROWS, Store, StoreError};
use kprobed_lang::model::ProbeUid;

/// What a bad meaning costs.
const HELD_BACK: &str =
    "the probe is held back, until `kprobectl accept` says that it means what it means now";

/// Writes them within the transaction that makes or changes the rows of their probes.
pub(super) async fn write(
    transaction: &mut SqliteConnection,
    meanings: &[(ProbeUid, &str)],
) -> Result<(), StoreError> {
    for meanings in meanings.chunks(ROWS) {
        let mut insert = QueryBuilder::new("INSERT INTO probe_meaning (probe_uid, meaning) ");
        insert.push_values(meanings, |mut row, (uid, meaning)| {
            row.push_bind(uid.0).push_bind(*meaning);
        });
        insert.push(" ON CONFLICT (probe_uid) DO UPDATE SET meaning = excluded.meaning");
        insert.build().persistent(meanings.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

impl Store {
    /// The stored meanings of the definitions of all probes that have one.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn meanings(&self) -> Result<HashMap<ProbeUid, Option<String>>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows =
                sqlx::query("SELECT probe_uid, meaning FROM probe_meaning").fetch_all(connection).await?;
            let (mut meanings, mut found) = (HashMap::with_capacity(rows.len()), Vec::new());
            for row in &rows {
                let mut row = CheckedRow::new(row, "probe_meaning", "probe_uid", &mut found);
                let uid: i64 = row.get("probe_uid", HELD_BACK);
                let text = row.need::<String>("meaning", HELD_BACK).filter(|text| {
                    let read = serde_json::from_str::<serde::de::IgnoredAny>(text);
                    read.inspect_err(|error| row.note("meaning", error, HELD_BACK)).is_ok()
                });
                meanings.insert(ProbeUid(uid), text);
            }
            self.database.found("probe_meaning", found);
            Ok(meanings)
        };
        self.database.read(read).await
    }

    /// Stores what definitions mean from now on.
    ///
    /// # Errors
    /// [`StoreError::Database`], also if there is no such probe. Then nothing is written.
    pub(crate) async fn set_meanings(&self, meanings: &[(ProbeUid, String)]) -> Result<(), StoreError> {
        let meanings: Vec<_> = meanings.iter().map(|(uid, meaning)| (*uid, meaning.as_str())).collect();
        self.database
            .write(async |transaction: &mut SqliteConnection| write(transaction, &meanings).await)
            .await
    }
}
