//! The one connection to the database: the only code that runs transactions.
//!
//! Owns what makes an acknowledged change durable and a refused one void. Acknowledged: `COMMIT`
//! has returned, in WAL mode with `synchronous = FULL`, so the log was synced (and with the first
//! sync, SQLite syncs the directory in which it made the log). Refused: the transaction is rolled
//! back, and the connection proves that none is open before it does anything else. Never knows what
//! a statement means.
//!
//! Transactions are plain statements here. sqlx's own keep a count of their depth, and SQLite does
//! not: when the disk fails it rolls back by itself (`SQLITE_FULL`, `SQLITE_IOERR`), sqlx's
//! `ROLLBACK` then fails, and its next `begin` becomes a `SAVEPOINT`. If the `RELEASE` of that
//! fails, SQLite stays in a transaction (`OP_Savepoint` in vdbe.c clears `autoCommit`), which takes
//! all later writes and is never committed.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use kprobed_audit::Head;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::audit;
use super::error::{DatabaseError, Fault, StoreError, may_be_written};
use super::files::Identity;
use super::undo::Undo;

/// The database.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    options: SqliteConnectOptions,
    link: AsyncMutex<Link>,
    health: Mutex<Health>,
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

#[derive(Debug)]
struct Link {
    /// Absent if it was dropped and there is no new one yet.
    connection: Option<SqliteConnection>,
    /// Whether it is known that no transaction is open. False while one is open: the future that
    /// runs it may be dropped half-way.
    proven: bool,
    /// Closed until the daemon ends.
    closed: bool,
    files: Option<Identity>,
    /// Undos that the next transaction must begin with.
    owed: Vec<Undo>,
    /// The head of the audit log. Absent until a commit, and after a failure, when it must be read.
    audit_head: Option<Head>,
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

/// A transaction that is on the disk.
struct Committed<T> {
    value: T,
    audit_head: Option<Head>,
    audited: Vec<(Head, String)>,
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
        let connection = Some(connection);
        let link =
            Link { connection, proven: false, closed: false, files, owed: Vec::new(), audit_head: None };
        Self {
            path,
            options,
            link: AsyncMutex::new(link),
            health: Mutex::default(),
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

    fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads with a connection that has no open transaction.
    pub(super) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut link = self.link.lock().await;
        let outcome = match link.ready(&self.options).await {
            Ok(connection) => work(connection).await,
            Err(error) => Err(error),
        };
        if let Err(StoreError::Sql(_)) = &outcome {
            link.proven = false;
        }
        outcome.map_err(|error| {
            let error = self.located("read", error, false);
            let failing = self.lock_health().failing;
            self.note(&error, failing);
            error
        })
    }

    /// Runs a transaction, after the undos that are owed. If this returns `Ok`, it is on the disk;
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
        undo: impl FnOnce() -> Vec<Undo>,
        work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut link = self.link.lock().await;
        let outcome = self.transaction(&mut link, work).await;
        let Failed { error, at_commit } = match outcome {
            Ok(Committed { value, audit_head, audited }) => {
                link.proven = true;
                link.audit_head = audit_head;
                link.owed.clear();
                self.lock_health().failing = false;
                // While the connection is still held: the daemon's log has them in the order of the audit log.
                for (Head { sequence, digest }, record) in audited {
                    tracing::info!(target: "kprobed::audit", sequence, %digest, record, "audit entry");
                }
                self.written.send_replace(());
                return Ok(value);
            }
            Err(failed) => failed,
        };
        let in_doubt = at_commit
            && matches!(&error, StoreError::Sql(error) if may_be_written(error))
            && link.void(&self.options).await.is_err();
        if in_doubt {
            link.owed.extend(undo());
        }
        // An open transaction is rolled back now, not at the next access: it holds a lock.
        if let Err(error) = link.ready(&self.options).await {
            tracing::debug!(%error, "the connection to the database is not in order");
        }
        let error = self.located("write", error, in_doubt);
        self.note(&error, true);
        Err(error)
    }

    async fn transaction<T>(
        &self,
        link: &mut Link,
        work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<Committed<T>, Failed> {
        let early = |error| Failed { error, at_commit: false };
        link.ready(&self.options).await.map_err(early)?;
        if link.files != Identity::of(&self.path) {
            return Err(early(self.moved()));
        }
        let owed = link.owed.clone();
        link.proven = false;
        let audit_head = link.audit_head.take();
        let connection = link.connection.as_mut().ok_or_else(|| early(closed()))?;
        execute(connection, "BEGIN IMMEDIATE").await.map_err(early)?;
        let mut transaction = Transaction { connection, audit_head, audited: Vec::new() };
        for undo in &owed {
            undo.apply(&mut transaction).await.map_err(early)?;
        }
        let value = work(&mut transaction).await.map_err(early)?;
        let Transaction { connection, audit_head, audited } = transaction;
        execute(connection, "COMMIT").await.map_err(|error| Failed { error, at_commit: true })?;
        Ok(Committed { value, audit_head, audited })
    }

    /// Writes undos: now, or with the next transaction that succeeds.
    pub(super) async fn undo(&self, undo: Vec<Undo>) {
        self.link.lock().await.owed.extend_from_slice(&undo);
        if let Err(error) = self.write(async |_| Ok(())).await {
            tracing::warn!(?undo, %error, "owes the database corrections");
        }
    }

    /// Writes a page that changes nothing.
    pub(super) async fn rewrite(&self) -> Result<(), StoreError> {
        self.write(async |transaction| execute(transaction, REWRITE).await).await
    }

    /// Writes everything to the main file and closes it.
    pub(super) async fn close(&self) {
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

    fn moved(&self) -> StoreError {
        let (path, source) = (self.path.clone(), sqlx::Error::WorkerCrashed);
        let fault = Fault::Moved;
        StoreError::Database(Box::new(DatabaseError {
            action: "write",
            path,
            fault,
            in_doubt: false,
            source,
        }))
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
        if failed.fault != Fault::Constraint {
            let failure =
                Failure { time: SystemTime::now(), fault: failed.fault, message: error.to_string() };
            *self.lock_health() = Health { last_failure: Some(failure), failing };
        }
    }
}

impl Link {
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
                    tracing::warn!(%error, ?rolled_back, "opening the database anew");
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
