//! Positions of exporters in the log, at which they resume.
//!
//! Owns their table. Never knows what an exporter sends.

use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, to_i64};
use kprobed_trace::spool::Cursor;

impl Store {
    /// The position at which an exporter resumes. Absent if its peer has never acknowledged
    /// anything.
    ///
    /// # Errors
    /// [`StoreError::Database`]; [`StoreError::Corrupt`] for a row that is not a position.
    pub(crate) async fn exporter_place(&self, name: &str) -> Result<Option<Cursor>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query = sqlx::query("SELECT boot_id, epoch, sequence FROM exporter WHERE name = ?");
            let Some(row) = query.bind(name).fetch_optional(connection).await? else { return Ok(None) };
            let (boot_id, epoch): (String, String) = (row.try_get("boot_id")?, row.try_get("epoch")?);
            let corrupt =
                |value: &str| StoreError::Corrupt { what: "place of an exporter", value: value.to_owned() };
            Ok(Some(Cursor {
                boot_id: boot_id.parse().map_err(|_error| corrupt(&boot_id))?,
                epoch: epoch.parse().map_err(|_error| corrupt(&epoch))?,
                sequence: u64::try_from(row.try_get::<i64, _>("sequence")?).unwrap_or_default(),
            }))
        };
        self.database.read(read).await
    }

    /// Stores the position at which an exporter resumes.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn set_exporter_place(&self, name: &str, place: Cursor) -> Result<(), StoreError> {
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
