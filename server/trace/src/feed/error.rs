//! Why a feed cannot begin, or ends early.

use thiserror::Error;

use crate::history::HistoryError;
use crate::pipeline::End;

/// Why a feed cannot begin, or ends early.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The past was asked for, and the daemon keeps none.
    #[error("this daemon keeps no history")]
    NoHistory,
    /// A cursor that this run of the daemon has not reached.
    #[error("the log is at position {log}, and the cursor at {cursor}")]
    AheadOfLog {
        /// Where the log is.
        log: u64,
        /// Where the cursor is.
        cursor: u64,
    },
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The daemon stops, and everything was given.
    #[error("the daemon stops")]
    Stopping,
    /// The queue of the subscriber was full, and it wanted to be cut off then. This is the first
    /// event that it did not get.
    #[error("the queue was full at log position {sequence}")]
    Overflowed {
        /// Place in the log of this run.
        sequence: u64,
    },
}

impl From<End> for FeedError {
    fn from(end: End) -> Self {
        match end {
            End::Stopping => Self::Stopping,
            End::Overflowed { sequence } => Self::Overflowed { sequence },
        }
    }
}
