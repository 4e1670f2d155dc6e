//! Positions of exporters in the log, at which they resume.
//!
//! Owns their table. Never knows what an exporter sends.

use sqlx::SqliteConnection;

use super::bad::CheckedRow;
use super::{Store, StoreError, to_i64};
use kprobed_trace::spool::Cursor;

/// What a bad place costs.
const LOST: &str = "the exporter begins again, and may leave out or repeat events";

/// Absent for a row that is no place.
fn place(row: &mut CheckedRow<'_>) -> Option<Cursor> {
    let (boot_id, epoch): (String, String) = (row.need("boot_id", LOST)?, row.need("epoch", LOST)?);
    let sequence = row.count("sequence", LOST)?;
    let boot_id = boot_id.parse().map_err(|error| row.note("boot_id", &error, LOST)).ok()?;
    let epoch = epoch.parse().map_err(|error| row.note("epoch", &error, LOST)).ok()?;
    Some(Cursor { boot_id, epoch, sequence: sequence.unsigned_abs() })
}

impl Store {
    /// The position at which an exporter resumes. Absent if its peer has never acknowledged
    /// anything.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn exporter_place(&self, name: &str) -> Result<Option<Cursor>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query = sqlx::query("SELECT name, boot_id, epoch, sequence FROM exporter WHERE name = ?");
            let Some(row) = query.bind(name).fetch_optional(connection).await? else { return Ok(None) };
            let mut found = Vec::new();
            let place = place(&mut CheckedRow::new(&row, "exporter", "name", &mut found));
            self.database.found_some("exporter", found);
            Ok(place)
        };
        self.database.read_beside(read).await
    }

    /// Stores the position at which an exporter resumes.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub async fn set_exporter_place(&self, name: &str, place: Cursor) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query(
                "INSERT INTO exporter (name, boot_id, epoch, sequence) VALUES (?, ?, ?, ?) ON CONFLICT (name) \
                 DO UPDATE SET boot_id = excluded.boot_id, epoch = excluded.epoch, sequence = excluded.sequence",
            )
            .bind(name)
            .bind(place.boot_id.to_string())
            .bind(place.epoch.to_string())
            .bind(to_i64(place.sequence))
            .execute(transaction)
            .await?;
            Ok(())
        };
        self.database.write(write).await
    }
}
