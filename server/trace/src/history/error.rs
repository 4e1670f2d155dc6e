//! Errors of reading the history.
//!
//! Owns their text. The errors of its files are those of the spool.

use thiserror::Error;

use crate::spool::SpoolError;

/// Why the history cannot be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The spool failed.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The thread that writes the history has ended.
    #[error("the history is not written any more: the daemon stops, or its log says why")]
    Ended,
    /// The task that reads the history has panicked.
    #[error("reading the history failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}
