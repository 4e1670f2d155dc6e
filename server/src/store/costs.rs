//! Costs in the database: what a hit takes on this host.
//!
//! Owns their tables. Never reads the figures: [`crate::control`] does.

use std::time::SystemTime;

use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, to_ns};

/// What was measured, and on what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCalibration {
    /// Kernel and processor.
    pub host: String,
    /// The figures, as JSON.
    pub figures: String,
}

impl Store {
    /// The last calibration. Absent if there was none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn calibration(&self) -> Result<Option<StoredCalibration>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let row = sqlx::query("SELECT host, figures FROM calibration").fetch_optional(connection).await?;
            row.map(|row| {
                Ok(StoredCalibration { host: row.try_get("host")?, figures: row.try_get("figures")? })
            })
            .transpose()
        };
        self.database.read(read).await
    }

    /// Stores a calibration in place of the last one.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn set_calibration(
        &self,
        calibration: &StoredCalibration,
        time: SystemTime,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query(
                "INSERT INTO calibration (id, host, time_ns, figures) VALUES (1, ?, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET host = excluded.host, time_ns = excluded.time_ns, \
                 figures = excluded.figures",
            )
            .bind(&calibration.host)
            .bind(to_ns(time))
            .bind(&calibration.figures)
            .execute(transaction)
            .await?;
            Ok(())
        };
        self.database.write(write).await
    }
}
