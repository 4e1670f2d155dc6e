//! Store: the database of everything that must outlive the daemon.
//!
//! Owns all SQL. Its methods are atomic steps of the domain (`settle a new probe and its request`),
//! and do not run arbitrary statements. Never knows what the kernel has.

mod audit;
mod bad;
mod changes;
mod connection;
mod costs;
mod error;
mod exporters;
mod files;
mod hits;
mod integrity;
mod migrations;
mod probes;
mod requests;
mod reserve;
mod states;

pub use audit::{AuditPage, OWN_NAME, StoredEntry};
pub use bad::BadValue;
pub use changes::Edit;
pub use connection::{Failure, Health, TooMuchOwed};
pub use error::{DatabaseError, Fault, StoreError};
pub use files::set_aside_in;
pub use hits::{Counted, Counters, HitRetention, MAX_POINTS, RatePage, RateQuery, Tick, TickOf};
pub use probes::{Interrupted, ProbeSpec, Record, StoredProbe, Trip};
pub use requests::RequestKey;
pub use reserve::Owed;
pub use states::KEPT_STATES;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use connection::Database;
use migrations::MIGRATIONS;
use reserve::Reserve;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

/// The database.
#[derive(Clone, Debug)]
pub struct Store {
    database: Arc<Database>,
}

impl Store {
    /// Opens or makes the database `kprobed.db` in `directory`, for the daemon alone, checks it,
    /// and brings it up to date; makes a copy of it before that. Sets a damaged one aside, and
    /// begins with an empty one. `now` is in the names of these files.
    ///
    /// # Errors
    /// [`StoreError::OtherVersion`] for a database of another version; otherwise whatever keeps it from
    /// being opened.
    pub async fn open(directory: &Path, now: SystemTime) -> Result<Self, StoreError> {
        Self::open_with(directory, &MIGRATIONS, now).await
    }

    /// [`Store::open`] of a version that knows these migrations.
    async fn open_with(directory: &Path, migrations: &Migrator, now: SystemTime) -> Result<Self, StoreError> {
        let path = files::prepare(directory)?;
        let store = match Self::open_file(path.clone(), options(&path), migrations, now).await {
            Err(StoreError::Damaged { damage, .. }) => {
                files::set_aside(directory, &path, &damage, now)?;
                let path = files::prepare(directory)?;
                let store = Self::open_file(path.clone(), options(&path), migrations, now).await?;
                // Other records of an operator about probes would be put into this database here, before
                // the kernel is read. Until then, only the kernel has the probes of the lost database, and
                // they stay in it: see `control::reconcile`.
                store.never_repeat_uids(now).await?;
                store
            }
            opened => opened?,
        };
        store.keep_reserve(|paid| Reserve::open(directory, paid)).await?;
        store.find_orphans().await?;
        Ok(store)
    }

    /// Opens a file that exists.
    async fn open_file(
        path: PathBuf,
        plain: SqliteConnectOptions,
        migrations: &Migrator,
        now: SystemTime,
    ) -> Result<Self, StoreError> {
        let opening = |source| error::opening(&path, source);
        // A connection of its own, which changes nothing and is closed before this goes on: the
        // files may be renamed then, and a connection that is closed later would delete the log of
        // another database.
        let mut connection = plain.connect().await.map_err(opening)?;
        let prepared = match integrity::check(&mut connection, &path, migrations).await {
            Ok(()) => migrations::copy_before(&mut connection, &path, migrations, now).await,
            Err(error) => Err(error),
        };
        let closed = connection.close().await;
        prepared?;
        closed.map_err(opening)?;
        let options = durable(plain);
        let mut connection = options.connect().await.map_err(opening)?;
        let migrated = migrations.run(&mut connection).await;
        migrated.map_err(|source| StoreError::Migrate { path: path.clone(), source })?;
        Ok(Self { database: Arc::new(Database::new(path, options, connection)) })
    }

    /// Opens the reserve, and writes to the database what it has. While there is no room for that, everything that the
    /// daemon reads is as if it were written.
    async fn keep_reserve(
        &self,
        open: impl FnOnce(i64) -> io::Result<(Reserve, Vec<Owed>)>,
    ) -> Result<(), StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let row = sqlx::query("SELECT paid FROM reserve").fetch_optional(connection).await?;
            Ok(row.and_then(|row| row.try_get("paid").ok()))
        };
        // With a bad number, everything that the reserve has is written: it changes nothing to do that again.
        let paid =
            self.database.read(read).await?.filter(|paid| (0..1 << 53).contains(paid)).unwrap_or_default();
        match open(paid) {
            Ok((reserve, owed)) => {
                self.database.set_reserve(reserve, owed).await;
                self.database.pay_or_owe(Vec::new()).await;
            }
            Err(error) => {
                tracing::warn!(%error, "no room can be kept: on a full disk, a probe that is disarmed comes back after a crash");
            }
        }
        Ok(())
    }

    /// Writes to the database, without changing anything, and reads what the next start will read.
    ///
    /// # Errors
    /// The fault of the database.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.database.rewrite().await?;
        if !self.database.has_reserve().await {
            self.keep_reserve(|paid| Reserve::open(self.database.directory(), paid)).await?;
        }
        // What is bad in it is listed.
        self.probes().await?;
        self.journal().await?;
        self.calibration().await?;
        Ok(())
    }

    /// Looks for states of probes that do not exist, which the key of their table excludes.
    async fn find_orphans(&self) -> Result<(), StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("PRAGMA foreign_key_check(probe_state)").fetch_all(connection).await?;
            let ids = rows.iter().map(|row| row.try_get("rowid").unwrap_or_default());
            self.database.found("orphans", bad::orphans(ids));
            Ok(())
        };
        self.database.read(read).await
    }

    /// Values that this daemon does not write, and what each of them costs.
    pub fn bad_values(&self) -> Vec<BadValue> {
        self.database.bad_values()
    }

    /// How many corrections and changes wait until they can be written to the database, and whether there is room for
    /// more on a full disk.
    pub async fn owed(&self) -> (usize, bool) {
        (self.database.owed().await, self.database.has_reserve().await)
    }

    /// The health of the database.
    pub fn health(&self) -> Health {
        self.database.health()
    }

    /// Writes everything to the main file and closes it.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// Options for a look at the database: connecting reads nothing of it.
fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
        // The daemon may make files in its own directory only.
        .pragma("temp_store", "memory")
        // Aggregations find the daemon's own threads by their names.
        .thread_name(|_number| "kprobed-sqlite".to_owned())
}

/// One connection, on which every commit reaches the disk: an acknowledged definition survives a
/// power cut.
fn durable(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full)
}

/// Most rows of one statement: each statement is a round trip to the thread that runs SQLite.
const ROWS: usize = 128;

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
pub(crate) mod tests;
