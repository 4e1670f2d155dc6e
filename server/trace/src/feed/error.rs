//! Errors of an event feed: why it cannot begin, or ends early.
//!
//! Owns their text. Never decides whether a client resumes.

use thiserror::Error;

use crate::history::HistoryError;
use crate::pipeline::End;

/// Why a feed cannot begin, or ends early.
#[derive(Debug, Error)]
pub enum FeedError {
    /// The subscriber asked for the past, and the daemon keeps no history.
    #[error("this daemon keeps no history")]
    NoHistory,
    /// The cursor is ahead of the log of this run.
    #[error("the log is at position {log}, and the cursor at {cursor}")]
    AheadOfLog {
        /// Position of the log.
        log: u64,
        /// Position of the cursor.
        cursor: u64,
    },
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The daemon stops, and everything was delivered.
    #[error("the daemon stops")]
    Stopping,
    /// The queue of the subscriber was full, and it asked to be disconnected in that case.
    #[error("the queue was full at log position {sequence}")]
    Overflowed {
        /// Log position of the first event that it did not receive.
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
