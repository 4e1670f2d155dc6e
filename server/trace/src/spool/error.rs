//! What can go wrong with the spool.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{BootId, Cursor};

/// Why the spool did not do what it should.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// The system refused.
    #[error("cannot {action} `{path}`: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another daemon writes there.
    #[error("another kprobed uses `{path}`", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A cursor that this spool cannot have given.
    #[error(
        "the cursor is not of this host's history (boot {boot}, run {epoch}; it is now boot {now_boot}, run {now_epoch}): \
         begin without one",
        boot = cursor.boot_id,
        epoch = cursor.epoch
    )]
    ForeignCursor {
        /// The cursor.
        cursor: Cursor,
        /// The boot of the run that it names, or of this run.
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

/// Why an entry was not stored. Its events count as not stored, and readers are told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The disk is full or fails. It is tried again when the writer is asked to tick.
    #[error("the spool does not store anything at present: {0}")]
    Failing(String),
    /// The entry does not fit into a segment.
    #[error(
        "an entry of {bytes} bytes is larger than a segment of the spool can hold ({limit} bytes): raise `spool.max_mib`"
    )]
    TooLarge {
        /// Bytes of the entry with the schemas that it needs.
        bytes: u64,
        /// What a segment has room for.
        limit: u64,
    },
    /// The entry names a schema that was not put in before.
    #[error("the entry uses schema {0}, which the spool has not been given")]
    UnknownSchema(u32),
    /// Its events are before those that are already there.
    #[error("the entry begins with event {found}, where {expected} is the next")]
    OutOfOrder {
        /// The next event.
        expected: u64,
        /// Where the entry begins.
        found: u64,
    },
}
