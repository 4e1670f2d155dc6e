//! The database: what must outlive the daemon.
//!
//! Owns all SQL. Its methods are atomic steps of the domain (`settle a new probe and its request`), not statement runners. Never
//! knows what the kernel has.

mod attachments;
mod labels;
mod probes;
mod requests;
mod samples;

pub use attachments::StoredAttachment;
pub use probes::{NewProbe, Phase, StoredProbe, Wanted};
pub use requests::{Fingerprint, RequestKey};
pub use samples::{SamplePage, SampleQuery};

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use thiserror::Error;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// Why the database did not do what it should.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database was written by a later version of the daemon. It is neither downgraded nor deleted.
    #[error("`{path}` was written by a later version of kprobed: it has migration {version}", path = path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// The migration that this version does not know.
        version: i64,
    },
    /// A migration failed or was changed after it was applied.
    #[error("cannot bring `{path}` up to date: {source}", path = path.display())]
    Migrate {
        /// The database.
        path: PathBuf,
        /// Why.
        source: MigrateError,
    },
    /// The directory of the database cannot be made.
    #[error("cannot make `{path}`: {source}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("database: {0}")]
    Sql(#[from] sqlx::Error),
    /// A row holds something that this daemon would not have written.
    #[error("the database holds a bad {what}: {value}")]
    Corrupt {
        /// What is bad.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// A request id was used before for something else.
    #[error("request id `{0}` was used for another request")]
    RequestReused(String),
}

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
}

impl Store {
    /// Opens or makes the database `kprobed.db` in `directory` and brings it up to date.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for a database of a later version; otherwise whatever keeps it from being opened.
    pub async fn open(directory: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(directory)
            .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
        let path = directory.join("kprobed.db");
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // An acknowledged definition survives a power cut: every commit reaches the disk.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        // One connection: all writes come from the control thread, and nothing here takes long.
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        MIGRATIONS.run(&pool).await.map_err(|source| match source {
            MigrateError::VersionMissing(version) => StoreError::Newer { path: path.clone(), version },
            source => StoreError::Migrate { path: path.clone(), source },
        })?;
        Ok(Self { pool })
    }

    /// Writes everything to the main file and closes it.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Nanoseconds since 1970, as stored. Times before and after what fits (1970 to 2262) are cut.
fn to_ns(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn from_ns(ns: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(ns).unwrap_or_default())
}

/// Counters are u64 in the kernel and i64 in SQLite; a counter past 2^63 would take centuries.
fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
