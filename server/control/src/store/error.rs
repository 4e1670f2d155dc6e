//! Errors of the database, with what an operator can do about them.
//!
//! Owns the texts, what SQLite's result codes mean, and how each fails a request.

use std::path::{Path, PathBuf};

use sqlx::migrate::MigrateError;
use thiserror::Error;

use crate::error::{self, Reason};

/// Why a read or write of the database failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another version of the daemon has made or changed the database. It is neither converted nor
    /// deleted.
    #[error("`{path}` was made by another version of kprobed: its migration {migration} is not known here", path = path.display())]
    OtherVersion {
        /// The database.
        path: PathBuf,
        /// The number of the migration that this version does not know, or knows with other contents.
        migration: i64,
    },
    /// A migration failed or was changed after it was applied.
    #[error("cannot bring `{path}` up to date: {source}", path = path.display())]
    Migrate {
        /// The database.
        path: PathBuf,
        /// Why.
        source: MigrateError,
    },
    /// The database was not brought up to date, because no copy of it can be kept.
    #[error(
        "cannot copy the database `{path}` before it is brought up to date: {reason}",
        path = path.display(),
        reason = Fault::of(source).reason(source)
    )]
    Backup {
        /// The database.
        path: PathBuf,
        /// Why.
        source: sqlx::Error,
    },
    /// The file is not a database, or its pages do not fit together. It is set aside when the
    /// daemon starts.
    #[error("the database `{path}` is damaged: {damage}", path = path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found, in SQLite's words.
        damage: String,
    },
    /// The client asked for hits by more intervals than the daemon makes.
    #[error("the range has {points} points for each probe, and may have {most}")]
    TooManyPoints {
        /// Intervals of the range.
        points: u64,
        /// The most.
        most: u64,
        /// The shortest interval that can be requested, in seconds.
        step_s: u64,
    },
    /// The directory or the file of the database cannot be created.
    #[error("cannot {action} `{path}`: {source}", path = path.display())]
    Directory {
        /// The action that failed.
        action: &'static str,
        /// The directory or the file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error(transparent)]
    Database(Box<DatabaseError>),
    /// A statement failed. The code that runs statements adds the database: clients never see this.
    #[error("database: {0}")]
    Sql(#[from] sqlx::Error),
    /// A row holds a value that this daemon does not write.
    #[error("the database holds a bad {what}: {value}")]
    Corrupt {
        /// The kind of value.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// The request id was used before for another request.
    #[error("request id `{0}` was used for another request")]
    RequestReused(String),
}

/// An action that SQLite refused. A change that was refused is not in the database.
#[derive(Debug, Error)]
#[error(
    "cannot {action} the database `{path}`: {reason}{doubt}",
    path = path.display(),
    reason = fault.reason(source),
    doubt = if *in_doubt { "; a crash before the next change may bring this one back" } else { "" }
)]
pub struct DatabaseError {
    /// `open`, `read` or `write`.
    pub action: &'static str,
    /// The database.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
    /// The disk does not say whether it has the change, and the change could not be overwritten.
    pub in_doubt: bool,
    /// What SQLite says.
    pub source: sqlx::Error,
}

impl StoreError {
    /// SQLite, or the disk below it, has refused an action on this database. It is not in doubt.
    pub(super) fn refused(action: &'static str, path: &Path, fault: Fault, source: sqlx::Error) -> Self {
        Self::Database(Box::new(DatabaseError {
            action,
            path: path.to_owned(),
            fault,
            in_doubt: false,
            source,
        }))
    }

    /// The error of an action on this directory or file.
    pub(super) fn directory(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Directory { action, path, source }
    }

    /// Whether the disk has no room or fails, so that no change can be written, whatever it is.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        matches!(self, Self::Database(error) if matches!(error.fault, Fault::Full | Fault::Io | Fault::ReadOnly))
    }
}

/// A database that cannot be opened, or cannot be read to be checked.
pub(super) fn opening(path: &Path, source: sqlx::Error) -> StoreError {
    let fault = Fault::of(&source);
    if fault == Fault::Corrupt {
        return StoreError::Damaged { path: path.to_owned(), damage: said(&source) };
    }
    StoreError::refused("open", path, fault, source)
}

/// Kinds of faults of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its file system is full.
    Full,
    /// The disk fails.
    Io,
    /// The file, or its file system, cannot be written to.
    ReadOnly,
    /// The file is damaged.
    Corrupt,
    /// Another process holds it.
    Busy,
    /// The file was moved or removed while the daemon runs.
    Moved,
    /// A row that was to be changed holds a value that its column cannot have, after a disk has changed some
    /// bytes: SQLite checks all columns of a row that it writes.
    BadRow,
    /// A constraint of the tables is violated: such a row exists already.
    Constraint,
    /// Something else.
    Other,
}

impl From<StoreError> for error::Error {
    fn from(source: StoreError) -> Self {
        let why = source.to_string();
        let error = match &source {
            StoreError::RequestReused(_) => Self::new(Reason::REQUEST_ID_REUSED, why).field("request_id"),
            StoreError::TooManyPoints { step_s, .. } => Self::new(Reason::TOO_MANY_POINTS, why)
                .field("step_seconds")
                .fix(&format!("ask for a step of at least {step_s} seconds, or for a shorter range")),
            StoreError::Database(error) => Self::new(error.fault.failure(), why)
                .with("path", &error.path.display())
                .fix(error.fault.fix()),
            StoreError::Corrupt { .. } => Self::new(Reason::DATABASE_CORRUPT, why),
            _ => Self::new(Reason::DATABASE, why),
        };
        error.because(source)
    }
}

/// Result codes of SQLite: <https://www.sqlite.org/rescode.html>.
mod code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    /// Other processes hold the locks whenever SQLite tries.
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const CONSTRAINT_CHECK: i32 = CONSTRAINT | (1 << 8);
    pub(super) const CONSTRAINT_NOTNULL: i32 = CONSTRAINT | (5 << 8);
    pub(super) const CONSTRAINT_DATATYPE: i32 = CONSTRAINT | (12 << 8);
    pub(super) const NOTADB: i32 = 26;
    pub(super) const IOERR_WRITE: i32 = IOERR | (3 << 8);
    /// The file that is mapped into memory could not be made larger.
    pub(super) const IOERR_SHMSIZE: i32 = IOERR | (19 << 8);
}

/// What SQLite says, or sqlx if that failed.
fn said(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// The extended result code, if SQLite failed.
fn code_of(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

impl Fault {
    /// What an error of SQLite means.
    pub fn of(error: &sqlx::Error) -> Self {
        let Some(extended) = code_of(error) else { return Self::Other };
        match (extended, extended & 0xff) {
            (code::IOERR_SHMSIZE, _) | (_, code::FULL) => Self::Full,
            (code::CONSTRAINT_CHECK | code::CONSTRAINT_NOTNULL | code::CONSTRAINT_DATATYPE, _) => {
                Self::BadRow
            }
            (_, code::IOERR) => Self::Io,
            (_, code::READONLY) => Self::ReadOnly,
            (_, code::CORRUPT | code::NOTADB) => Self::Corrupt,
            (_, code::BUSY | code::LOCKED | code::PROTOCOL) => Self::Busy,
            (_, code::CONSTRAINT) => Self::Constraint,
            _ => Self::Other,
        }
    }

    fn reason(self, error: &sqlx::Error) -> String {
        let plain = match self {
            Self::Full => "its disk is full",
            Self::Io => "its disk reports an I/O error",
            Self::ReadOnly => "it is read-only",
            Self::Corrupt => "the file is damaged",
            Self::Busy => "another process holds its lock",
            Self::Moved => "the file was moved or removed",
            Self::BadRow => return format!("a row of it is damaged and cannot be changed: {}", said(error)),
            Self::Constraint | Self::Other => return said(error),
        };
        match code_of(error) {
            // The kind of I/O error distinguishes a disk from a network.
            Some(code) if self == Self::Io => format!("{plain} (SQLite {code})"),
            _ => plain.to_owned(),
        }
    }

    /// The reason of a request that it fails.
    const fn failure(self) -> Reason {
        match self {
            Self::Full => Reason::DATABASE_FULL,
            // Not UNAVAILABLE: clients take that for a daemon that does not answer, and try again at once.
            Self::Io => Reason::DATABASE_IO,
            Self::ReadOnly => Reason::DATABASE_READ_ONLY,
            Self::Busy => Reason::DATABASE_BUSY,
            Self::Moved => Reason::DATABASE_MOVED,
            Self::Corrupt | Self::BadRow => Reason::DATABASE_CORRUPT,
            Self::Constraint | Self::Other => Reason::DATABASE,
        }
    }

    /// What to do about it; empty if nothing is known.
    pub fn fix(self) -> &'static str {
        match self {
            Self::Full => {
                "make room on the file system of the state directory: the daemon then continues automatically"
            }
            Self::Io => "look for the disk's errors in the kernel log (`dmesg`)",
            Self::ReadOnly => {
                "make the state directory writable for the daemon: mount its file system read-write"
            }
            Self::Corrupt => {
                "restart the daemon: it sets `kprobed.db` aside, and begins with an empty database; `sqlite3 FILE .recover` shows what can be \
                 read of a damaged one"
            }
            Self::Busy => "close the other program that has `kprobed.db` open",
            Self::Moved => {
                "put `kprobed.db` and `kprobed.db-wal` back, or restart the daemon to begin with what is there"
            }
            Self::BadRow => {
                "a damaged row can only be deleted, and `kprobectl doctor` names it: keep the text of the probe (`kprobectl get NAME -o yaml`), \
                 `kprobectl delete NAME`, and apply the text"
            }
            Self::Constraint | Self::Other => "",
        }
    }
}

/// Whether a commit that failed so may have written everything. Otherwise the end of what was
/// written is missing, and SQLite never reads it: the mark of a commit is in the last frame
/// (walFrames in wal.c).
pub(super) fn may_be_written(error: &sqlx::Error) -> bool {
    code_of(error).is_none_or(|extended| {
        extended != code::IOERR_WRITE
            && ![code::FULL, code::READONLY, code::BUSY].contains(&(extended & 0xff))
    })
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn what_an_operator_can_mend_is_no_internal_error() {
        let of = |fault| {
            let path = PathBuf::from("/var/lib/kprobed/kprobed.db");
            let source = sqlx::Error::WorkerCrashed;
            let error = DatabaseError { action: "write", path, fault, in_doubt: false, source };
            error::Error::from(StoreError::Database(Box::new(error)))
        };
        let full = of(Fault::Full);
        assert_eq!((full.reason.code, full.reason.name), (Code::ResourceExhausted, "DATABASE_FULL"));
        assert_eq!(full.message, "cannot write the database `/var/lib/kprobed/kprobed.db`: its disk is full");
        for fault in [
            Fault::Full,
            Fault::Io,
            Fault::ReadOnly,
            Fault::Busy,
            Fault::Moved,
            Fault::Corrupt,
            Fault::BadRow,
        ] {
            let error = of(fault);
            assert_ne!(error.reason.code, Code::Internal);
            assert!(error.value("fix").is_some_and(|fix| !fix.is_empty()), "{fault:?}");
        }
    }
}
