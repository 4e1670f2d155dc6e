//! Why the history cannot be read.

use thiserror::Error;

use crate::spool::SpoolError;

/// Why the history cannot be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The thread that writes has ended.
    #[error("the history is not written any more: the daemon stops, or its log says why")]
    Ended,
    /// The task that reads has panicked.
    #[error("reading the history failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}
