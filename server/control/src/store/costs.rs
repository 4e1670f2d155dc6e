//! Costs in the database: what a hit takes on this host.
//!
//! Owns their tables. Never reads the figures: [`crate::budget`] does.

use sqlx::SqliteConnection;

use super::bad::CheckedRow;
use super::{Store, StoreError};

/// What a bad calibration costs.
const MEASURED: &str = "the next start measures it again";

impl Store {
    /// The last calibration: its host, which is kernel and processor, and its figures, as JSON. Absent if there was
    /// none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn calibration(&self) -> Result<Option<(String, String)>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let row = sqlx::query("SELECT host, figures FROM calibration").fetch_optional(connection).await?;
            let mut found = Vec::new();
            let stored = row.and_then(|row| {
                let mut row = CheckedRow::new(&row, "calibration", "host", &mut found);
                let (host, figures): (String, String) =
                    (row.need("host", MEASURED)?, row.need("figures", MEASURED)?);
                let read = serde_json::from_str::<serde::de::IgnoredAny>(&figures);
                read.map_err(|error| row.note("figures", &error, MEASURED)).ok()?;
                Some((host, figures))
            });
            self.database.found("calibration", found);
            Ok(stored)
        };
        self.database.read(read).await
    }

    /// Stores a calibration in place of the last one.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn set_calibration(&self, host: &str, figures: &str) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query(
                "INSERT INTO calibration (id, host, figures) VALUES (1, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET host = excluded.host, figures = excluded.figures",
            )
            .bind(host)
            .bind(figures)
            .execute(transaction)
            .await?;
            Ok(())
        };
        self.database.write(write).await
    }
}
