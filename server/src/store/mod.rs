//! The database: what must outlive the daemon.
//!
//! Owns all SQL. Its methods are atomic steps of the domain (`settle a new probe and its request`), not statement runners. Never
//! knows what the kernel has.

mod attachments;
mod changes;
mod connection;
mod error;
mod files;
mod labels;
mod probes;
mod requests;
mod samples;
mod undo;

pub use attachments::StoredAttachment;
pub use changes::{Intent, Settled};
pub use connection::{Failure, Health};
pub use error::{DatabaseError, Fault, StoreError};
pub use probes::{NewProbe, Phase, Settings, StoredProbe};
pub use requests::{Fingerprint, RequestKey};
pub use samples::{SamplePage, SampleQuery};
pub use undo::Undo;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use connection::Database;
use sqlx::ConnectOptions as _;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    database: Arc<Database>,
}

impl Store {
    /// Opens or makes the database `kprobed.db` in `directory`, for the daemon alone, and brings it up to date.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for a database of a later version; otherwise whatever keeps it from being opened.
    pub async fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = files::prepare(directory)?;
        Self::open_file(path.clone(), options(&path)).await
    }

    /// Opens a file that exists.
    async fn open_file(path: PathBuf, options: SqliteConnectOptions) -> Result<Self, StoreError> {
        let mut connection = options.connect().await.map_err(|source| {
            let (path, fault) = (path.clone(), Fault::of(&source));
            StoreError::Database(Box::new(DatabaseError {
                action: "open",
                path,
                fault,
                in_doubt: false,
                source,
            }))
        })?;
        MIGRATIONS.run(&mut connection).await.map_err(|source| match source {
            MigrateError::VersionMissing(version) => StoreError::Newer { path: path.clone(), version },
            source => StoreError::Migrate { path: path.clone(), source },
        })?;
        Ok(Self { database: Arc::new(Database::new(path, options, connection)) })
    }

    /// Puts something right: now, or with the next change that can be stored. Nothing can be done about it when that fails.
    pub async fn undo(&self, undo: Undo) {
        self.undo_all(vec![undo]).await;
    }

    /// The same for several things, in one transaction.
    pub async fn undo_all(&self, undo: Vec<Undo>) {
        if !undo.is_empty() {
            self.database.undo(undo).await;
        }
    }

    /// Writes to the database, without changing anything, and reads what the next start will.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.database.rewrite().await?;
        self.probes().await?;
        self.attachments().await?;
        Ok(())
    }

    /// How the database does.
    pub fn health(&self) -> Health {
        self.database.health()
    }

    /// Writes everything to the main file and closes it.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// One connection, on which every commit reaches the disk: an acknowledged definition survives a power cut.
fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
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
