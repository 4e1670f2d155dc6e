//! Connections to the database: the one that writes, and one that only reads. The only code that runs transactions.
//!
//! Owns what makes an acknowledged change durable and a refused one void. Acknowledged: `COMMIT`
//! has returned, in WAL mode with `synchronous = FULL`, so the log was synced (and with the first
//! sync, SQLite syncs the directory in which it made the log). Refused: the transaction is rolled
//! back, and the connection proves that none is open before it does anything else. Never knows what
//! a statement means.
//!
//! A correction that the database does not take is *owed*, and is written to the reserve ([`super::reserve`]). While
//! something is owed, every transaction is preceded by one that pays it, and nothing else is written if that fails: so
//! what is owed does not grow with the changes that are refused. Reads of the daemon itself see the database as if it
//! were paid.
//!
//! Reads that clients ask for have a connection of their own: a WAL lets it read beside the writer, and no change waits
//! for it.
//!
//! Transactions are plain statements here. sqlx's own keep a count of their depth, and SQLite does
//! not: when the disk fails it rolls back by itself (`SQLITE_FULL`, `SQLITE_IOERR`), sqlx's
//! `ROLLBACK` then fails, and its next `begin` becomes a `SAVEPOINT`. If the `RELEASE` of that
//! fails, SQLite stays in a transaction (`OP_Savepoint` in vdbe.c clears `autoCommit`), which takes
//! all later writes and is never committed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use kprobed_audit::Head;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::audit;
use super::bad::{BadValue, LISTED};
use super::error::{DatabaseError, Fault, StoreError, may_be_written};
use super::files::Identity;
use super::reserve::{Owed, Reserve};

/// Most corrections that may be owed: everything that the daemon reads meanwhile applies them first. With more, nothing
/// further is taken on.
const MOST_OWED: usize = 4096;

/// The database.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    options: SqliteConnectOptions,
    link: AsyncMutex<Link>,
    reader: AsyncMutex<Reader>,
    health: Mutex<Health>,
    /// Bad values by table.
    bad: Mutex<BTreeMap<&'static str, Vec<BadValue>>>,
    written: watch::Sender<()>,
}

/// Health of the database.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The last change that could not be stored.
    pub last_failure: Option<Failure>,
    /// Whether nothing was stored since.
    pub failing: bool,
}

/// A change that could not be stored.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When.
    pub time: SystemTime,
    /// What is wrong.
    pub fault: Fault,
    /// All of it, in one sentence.
    pub message: String,
}

#[derive(Debug, Default)]
struct Link {
    /// Absent if it was dropped and there is no new one yet.
    connection: Option<SqliteConnection>,
    /// Whether it is known that no transaction is open. False while one is open: the future that
    /// runs it may be dropped half-way.
    proven: bool,
    /// Closed until the daemon ends.
    closed: bool,
    files: Option<Identity>,
    /// Corrections that must be written before anything else.
    owed: Vec<Owed>,
    /// How many of them, from the first on, are in the reserve.
    kept: usize,
    /// Absent if there was no room to make it.
    reserve: Option<Reserve>,
    /// The head of the audit log. Absent until a commit, and after a failure, when it must be read.
    audit_head: Option<Head>,
}

/// The connection that only reads.
#[derive(Debug, Default)]
struct Reader {
    /// With the files that it has open. Absent before the first read, and after one that failed or was given up.
    connection: Option<(SqliteConnection, Option<Identity>)>,
    /// Until the daemon ends.
    closed: bool,
}

/// An open transaction.
pub(super) struct Transaction<'a> {
    connection: &'a mut SqliteConnection,
    /// The head of the audit log with what the transaction has appended. Absent until it is needed.
    audit_head: Option<Head>,
    /// What the transaction has appended to the audit log: each entry's head, and its record.
    audited: Vec<(Head, String)>,
}

impl Transaction<'_> {
    /// The connection, for statements.
    pub(super) const fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }

    /// The head of the audit log.
    pub(super) async fn audit_head(&mut self) -> Result<Head, StoreError> {
        if let Some(head) = self.audit_head {
            return Ok(head);
        }
        let head = audit::head(self.connection).await?;
        self.audit_head = Some(head);
        Ok(head)
    }

    /// The audit log was appended to: the head after each entry, and its record.
    pub(super) fn audited(&mut self, entries: Vec<(Head, String)>) {
        self.audit_head = entries.last().map(|(head, _)| *head).or(self.audit_head);
        self.audited.extend(entries);
    }
}

/// A transaction that failed.
struct Failed {
    error: StoreError,
    /// The failure came after its commit was begun.
    at_commit: bool,
}

impl Database {
    pub(super) fn new(path: PathBuf, options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        let files = Identity::of(&path);
        let link = Link { connection: Some(connection), files, ..Link::default() };
        Self {
            path,
            options,
            link: AsyncMutex::new(link),
            reader: AsyncMutex::default(),
            health: Mutex::default(),
            bad: Mutex::default(),
            written: watch::Sender::default(),
        }
    }

    /// Changes with every transaction.
    pub(super) fn written(&self) -> watch::Receiver<()> {
        self.written.subscribe()
    }

    /// The health of the database.
    pub(super) fn health(&self) -> Health {
        self.lock_health().clone()
    }

    /// A table was read: these values are bad, and no others of it.
    pub(super) fn found(&self, table: &'static str, mut found: Vec<BadValue>) {
        found.truncate(LISTED);
        let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        let known = bad.get(table).map(Vec::as_slice).unwrap_or_default();
        for value in found.iter().filter(|value| !known.contains(value)) {
            tracing::error!(
                table,
                row = value.row,
                column = value.column,
                "the database has a bad value: {value}"
            );
        }
        bad.insert(table, found);
    }

    /// Some rows of a table were read, and these values of them are bad.
    pub(super) fn found_some(&self, table: &'static str, found: Vec<BadValue>) {
        if !found.is_empty() {
            self.found(table, found);
        }
    }

    /// All bad values that are known.
    pub(super) fn bad_values(&self) -> Vec<BadValue> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).values().flatten().cloned().collect()
    }

    fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reserve, and the corrections in it that the database does not have yet.
    pub(super) async fn set_reserve(&self, reserve: Reserve, owed: Vec<Owed>) {
        let mut link = self.link.lock().await;
        // What is owed since it could not be opened comes after that.
        link.kept = owed.len();
        drop(link.owed.splice(0..0, owed));
        link.reserve = Some(reserve);
    }

    /// The directory of the database.
    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// How many corrections are owed.
    pub(super) async fn owed(&self) -> usize {
        self.link.lock().await.owed.len()
    }

    /// Whether there is room for corrections on a full disk.
    pub(super) async fn has_reserve(&self) -> bool {
        self.link.lock().await.reserve.is_some()
    }

    /// Reads what the daemon itself needs, with everything that is owed. Waits for changes that are being written.
    pub(super) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut link = self.link.lock().await;
        let owed = link.owed.clone();
        let outcome = match link.ready(&self.options).await {
            Ok(connection) if owed.is_empty() => work(connection).await,
            Ok(_) => link.read_as_if_paid(&owed, work).await,
            Err(error) => Err(error),
        };
        if let Err(StoreError::Sql(_)) = &outcome {
            link.proven = false;
        }
        outcome.map_err(|error| self.unread(error))
    }

    /// Reads what a client asks for, as it is at one moment. No change waits for it.
    pub(super) async fn read_beside<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut reader = self.reader.lock().await;
        let outcome = reader.read(&self.options, work).await;
        outcome.map_err(|error| self.unread(error))
    }

    fn unread(&self, error: StoreError) -> StoreError {
        let error = self.located("read", error, false);
        let failing = self.lock_health().failing;
        self.note(&error, failing);
        error
    }

    /// Runs a transaction, after what is owed is paid. If this returns `Ok`, it is on the disk;
    /// otherwise nothing of it is in the database.
    pub(super) async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.write_or_undo(Vec::new, async |transaction: &mut Transaction<'_>| {
            work(transaction.connection()).await
        })
        .await
    }

    /// Like `write`, for changes that the audit log has. If the disk does not say whether it has the
    /// change, `undo` is owed.
    pub(super) async fn write_or_undo<T>(
        &self,
        undo: impl FnOnce() -> Vec<Owed>,
        work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut link = self.link.lock().await;
        let outcome = match self.pay(&mut link).await {
            Ok(()) => self.transaction(&mut link, work).await,
            // Nothing of this change was written, whatever the disk has of what is owed.
            Err(Failed { error, .. }) => Err(Failed { error, at_commit: false }),
        };
        let Failed { error, at_commit } = match outcome {
            Ok(value) => {
                self.stored();
                return Ok(value);
            }
            Err(failed) => failed,
        };
        let mut in_doubt = at_commit
            && matches!(&error, StoreError::Sql(error) if may_be_written(error))
            && link.void(&self.options).await.is_err();
        if in_doubt {
            let undo = undo();
            // With its correction in the reserve, a crash does not bring the change back.
            let has_correction = !undo.is_empty();
            link.owed.extend(undo);
            in_doubt = link.keep().is_err() || !has_correction;
        }
        Err(self.failed(&mut link, error, in_doubt).await)
    }

    /// Writes what is owed, in a transaction of its own.
    async fn pay(&self, link: &mut Link) -> Result<(), Failed> {
        if link.owed.is_empty() {
            return Ok(());
        }
        // Found out with one page: whoever asks again and again costs no more than that.
        let rewrite =
            async |transaction: &mut Transaction<'_>| execute(transaction.connection(), REWRITE).await;
        self.transaction(link, rewrite).await?;
        let (owed, last) = (link.owed.clone(), link.reserve.as_ref().map(Reserve::last));
        let write = async |transaction: &mut Transaction<'_>| {
            for one in &owed {
                one.apply(transaction).await?;
            }
            if let Some(last) = last {
                // A crash before the reserve is emptied does not pay twice.
                sqlx::query("UPDATE reserve SET paid = ?")
                    .bind(last)
                    .execute(transaction.connection())
                    .await?;
            }
            Ok(())
        };
        self.transaction(link, write).await?;
        self.stored();
        link.owed.clear();
        link.kept = 0;
        if let Some(reserve) = &mut link.reserve {
            reserve.empty();
        }
        Ok(())
    }

    async fn failed(&self, link: &mut Link, error: StoreError, in_doubt: bool) -> StoreError {
        // An open transaction is rolled back now, not at the next access: it holds a lock.
        if let Err(error) = link.ready(&self.options).await {
            tracing::debug!(%error, "the connection to the database is not in order");
        }
        let error = self.located("write", error, in_doubt);
        self.note(&error, true);
        error
    }

    async fn transaction<T>(
        &self,
        link: &mut Link,
        work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, Failed> {
        let early = |error| Failed { error, at_commit: false };
        link.ready(&self.options).await.map_err(early)?;
        if link.files != Identity::of(&self.path) {
            let moved = StoreError::refused("write", &self.path, Fault::Moved, sqlx::Error::WorkerCrashed);
            return Err(early(moved));
        }
        link.proven = false;
        let audit_head = link.audit_head.take();
        let connection = link.connection.as_mut().ok_or_else(|| early(closed()))?;
        execute(connection, "BEGIN IMMEDIATE").await.map_err(early)?;
        let mut transaction = Transaction { connection, audit_head, audited: Vec::new() };
        let value = work(&mut transaction).await.map_err(early)?;
        let Transaction { connection, audit_head, audited } = transaction;
        execute(connection, "COMMIT").await.map_err(|error| Failed { error, at_commit: true })?;
        link.proven = true;
        link.audit_head = audit_head;
        // While the connection is still held: the daemon's log has them in the order of the audit log.
        for (Head { sequence, digest }, record) in audited {
            tracing::info!(target: "kprobed::audit", sequence, %digest, record, "audit entry");
        }
        Ok(value)
    }

    /// What was to be stored is. A page that only shows whether that is possible is not meant.
    fn stored(&self) {
        self.lock_health().failing = false;
        self.written.send_replace(());
    }

    /// Writes corrections: now, or before the next transaction that succeeds. Until then the reserve has them.
    pub(super) async fn pay_or_owe(&self, owed: Vec<Owed>) {
        let mut link = self.link.lock().await;
        link.owed.extend(owed);
        if let Err(Failed { error, .. }) = self.pay(&mut link).await {
            let error = self.failed(&mut link, error, false).await;
            let kept = link.keep();
            tracing::warn!(owed = link.owed.len(), ?kept, %error, "owes the database corrections");
        }
    }

    /// Takes on changes that the database has no room for: from here on they are owed. Returns whether a crash
    /// keeps them.
    ///
    /// # Errors
    /// When so much is owed that no more is taken on.
    pub(super) async fn owe(&self, owed: Vec<Owed>) -> Result<io::Result<()>, TooMuchOwed> {
        let mut link = self.link.lock().await;
        if link.owed.len().saturating_add(owed.len()) > MOST_OWED {
            return Err(TooMuchOwed);
        }
        link.owed.extend(owed);
        Ok(link.keep())
    }

    /// Writes a page that changes nothing.
    pub(super) async fn rewrite(&self) -> Result<(), StoreError> {
        self.write(async |transaction| execute(transaction, REWRITE).await).await
    }

    /// Writes everything to the main file and closes it.
    pub(super) async fn close(&self) {
        // The last connection that is closed writes the log to the main file: that must be the one that can.
        self.reader.lock().await.close().await;
        let mut link = self.link.lock().await;
        link.closed = true;
        // Whoever waits for a change finds that out.
        self.written.send_replace(());
        if let Some(connection) = link.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "cannot close the database");
        }
    }

    fn located(&self, action: &'static str, error: StoreError, in_doubt: bool) -> StoreError {
        match error {
            StoreError::Sql(source) => {
                let (path, fault) = (self.path.clone(), Fault::of(&source));
                StoreError::Database(Box::new(DatabaseError { action, path, fault, in_doubt, source }))
            }
            other => other,
        }
    }

    fn note(&self, error: &StoreError, failing: bool) {
        let StoreError::Database(failed) = error else { return };
        if !matches!(failed.fault, Fault::Constraint | Fault::BadRow) {
            let failure =
                Failure { time: SystemTime::now(), fault: failed.fault, message: error.to_string() };
            *self.lock_health() = Health { last_failure: Some(failure), failing };
        }
    }
}

/// Nothing further can be owed.
#[derive(Clone, Copy, Debug)]
pub struct TooMuchOwed;

impl Reader {
    async fn read<T>(
        &mut self,
        options: &SqliteConnectOptions,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let files = Identity::of(options.get_filename());
        // It is put back only if no transaction is open: the future that reads may be dropped half-way.
        let mut connection = match self.connection.take() {
            _ if self.closed => return Err(closed()),
            Some((connection, of)) if of == files => connection,
            _ => options.clone().read_only(true).connect().await?,
        };
        execute(&mut connection, "BEGIN").await?;
        let value = work(&mut connection).await;
        execute(&mut connection, "COMMIT").await?;
        self.connection = Some((connection, files));
        value
    }

    async fn close(&mut self) {
        self.closed = true;
        if let Some((connection, _)) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the connection that reads had ended");
        }
    }
}

impl Link {
    /// Writes to the reserve what is owed and not there yet.
    fn keep(&mut self) -> io::Result<()> {
        let owed = self.owed.get(self.kept..).unwrap_or_default();
        if owed.is_empty() {
            return Ok(());
        }
        let none = || io::Error::other("there was no room to make the reserve");
        self.reserve.as_mut().ok_or_else(none)?.append(owed)?;
        self.kept = self.owed.len();
        Ok(())
    }

    /// Reads the database as if what is owed were paid: in a transaction that is rolled back, and writes nothing.
    async fn read_as_if_paid<T>(
        &mut self,
        owed: &[Owed],
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Rolled back by the next `ready`, also if this future is dropped.
        self.proven = false;
        let connection = self.connection.as_mut().ok_or_else(closed)?;
        // Pages that do not fit the cache would go to the log.
        execute(connection, "PRAGMA cache_spill = 0").await?;
        execute(connection, "BEGIN IMMEDIATE").await?;
        let mut transaction = Transaction { connection, audit_head: None, audited: Vec::new() };
        for one in owed {
            one.apply(&mut transaction).await?;
        }
        let value = work(transaction.connection()).await?;
        execute(transaction.connection(), "ROLLBACK").await?;
        execute(transaction.connection(), "PRAGMA cache_spill = 1").await?;
        Ok(value)
    }

    /// A connection without an open transaction: the present one if it proves that, otherwise a new
    /// one.
    async fn ready(&mut self, options: &SqliteConnectOptions) -> Result<&mut SqliteConnection, StoreError> {
        if let Some(connection) = &mut self.connection
            && !self.proven
        {
            // It fails if SQLite has rolled back by itself, which is the usual case.
            let rolled_back = execute(connection, "ROLLBACK").await;
            match prove(connection).await {
                Ok(()) => self.proven = true,
                Err(error) => {
                    tracing::warn!(%error, ?rolled_back, "opening the database again");
                    self.give_up().await;
                }
            }
        }
        match &mut self.connection {
            Some(connection) => Ok(connection),
            None if self.closed => Err(closed()),
            empty => {
                let mut connection = options.connect().await?;
                prove(&mut connection).await?;
                self.proven = true;
                self.files = Identity::of(options.get_filename());
                // It may be another file.
                self.audit_head = None;
                Ok(empty.insert(connection))
            }
        }
    }

    async fn give_up(&mut self) {
        self.proven = false;
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the connection to the database had ended");
        }
    }

    /// Prevents a crash from bringing back what a failed commit wrote. All of it may be in the log,
    /// only not synced, and the next start would read it. A commit that overwrites it ends that:
    /// its checksums continue those of the last good one.
    async fn void(&mut self, options: &SqliteConnectOptions) -> Result<(), StoreError> {
        let connection = self.ready(options).await?;
        let voided = async {
            execute(connection, "BEGIN IMMEDIATE").await?;
            execute(connection, REWRITE).await?;
            execute(connection, "COMMIT").await
        };
        let voided = voided.await;
        self.proven = voided.is_ok();
        voided
    }
}

/// Writes a page without changing anything: SQLite does not check whether the number is the same.
const REWRITE: &str = "PRAGMA user_version = 0";

/// Proves that no transaction is open, and that the tables can be read.
async fn prove(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    // SQLite refuses it within a transaction.
    execute(connection, "BEGIN").await?;
    let read = sqlx::query("SELECT count(*) FROM probe").fetch_one(&mut *connection).await;
    execute(connection, "ROLLBACK").await?;
    read?;
    Ok(())
}

async fn execute(connection: &mut SqliteConnection, statement: &'static str) -> Result<(), StoreError> {
    sqlx::query(statement).execute(connection).await?;
    Ok(())
}

fn closed() -> StoreError {
    sqlx::Error::WorkerCrashed.into()
}
