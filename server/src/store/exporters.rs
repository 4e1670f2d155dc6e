//! Positions of exporters in the log, at which they resume.
//!
//! Owns their table. Never knows what an exporter sends.

use kprobed_audit::Head;
use sqlx::{Row as _, SqliteConnection};

use super::audit::head_of;
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

    /// The entry of the audit log after which an exporter resumes. Absent if its peer has never
    /// acknowledged one.
    ///
    /// # Errors
    /// [`StoreError::Database`]; [`StoreError::Corrupt`] for a row that is not the head of a log.
    pub(crate) async fn exporter_audit(&self, name: &str) -> Result<Option<Head>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query = sqlx::query("SELECT sequence, digest FROM exporter_audit WHERE name = ?");
            query.bind(name).fetch_optional(connection).await?.as_ref().map(head_of).transpose()
        };
        self.database.read(read).await
    }

    /// Stores the positions at which an exporter resumes, as far as they have changed.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn set_exporter_place(
        &self,
        name: &str,
        place: Option<Cursor>,
        audit: Option<Head>,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            if let Some(head) = audit {
                sqlx::query(
                    "INSERT INTO exporter_audit (name, sequence, digest) VALUES (?, ?, ?) ON CONFLICT (name) \
                     DO UPDATE SET sequence = excluded.sequence, digest = excluded.digest",
                )
                .bind(name)
                .bind(to_i64(head.sequence))
                .bind(&head.digest.0[..])
                .execute(&mut *transaction)
                .await?;
            }
            let Some(place) = place else { return Ok(()) };
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
