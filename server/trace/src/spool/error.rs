//! Errors of the spool: of its files and their bytes, of cursors, and of entries that are not stored.
//!
//! Owns their text. Never decides whether to try again: the writer does.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{BootId, Cursor};

/// What is wrong with bytes that should be a header or a record of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Damage(pub(super) String);

/// Why bytes of a segment cannot be used.
#[derive(Debug, Error)]
pub(super) enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file can be read, and there is no valid header or record.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

/// Error of an operation of the spool.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// A system call failed.
    #[error("cannot {action} `{path}`: {source}", path = path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another daemon uses the directory.
    #[error("another kprobed uses `{path}`", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A cursor that this spool cannot have issued.
    #[error(
        "the cursor is not of this host's history (boot {boot}, run {epoch}; it is now boot {now_boot}, run {now_epoch}): \
         begin without one",
        boot = cursor.boot_id,
        epoch = cursor.epoch
    )]
    ForeignCursor {
        /// The cursor.
        cursor: Cursor,
        /// The boot of the run that the cursor names, or of this run.
        now_boot: BootId,
        /// This run.
        now_epoch: u64,
    },
}

impl SpoolError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// Why an entry was not stored. Its events count as not stored, and readers get a report of that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The disk is full or fails. [`SpoolWriter::tick`](super::SpoolWriter::tick) tries again.
    #[error("the spool does not store anything at present: {0}")]
    Failing(String),
    /// The entry does not fit into a segment.
    #[error(
        "an entry of {bytes} bytes is larger than a segment of the spool can hold ({limit} bytes): raise `spool.max_mib`"
    )]
    TooLarge {
        /// Bytes of the entry and of the schemas that it needs.
        bytes: u64,
        /// The most bytes that a segment has room for.
        limit: u64,
    },
    /// The entry names a schema that was not appended before.
    #[error("the entry uses schema {0}, which the spool has not been given")]
    UnknownSchema(u32),
    /// Its events precede events that are already stored.
    #[error("the entry begins with event {found}, where {expected} is the next")]
    OutOfOrder {
        /// The next event.
        expected: u64,
        /// Where the entry begins.
        found: u64,
    },
}
