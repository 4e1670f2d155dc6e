//! Spool: a bounded log of events on disk, which clients read to see the past or to resume.
//!
//! Owns its files: their format, limits, repair, and reading them while they are written. It stores
//! entries with the few facts that it needs, and never interprets their payload: it knows neither
//! events nor subscribers nor what they select.
//!
//! ```text
//! writer --entries--> memory --pieces--> segment, segment, … --> readers
//!                                        the oldest one is removed, and listed as expired
//! ```
//!
//! Guarantees:
//!
//! - A reader gets an entry as it was written, or not at all. Records have checksums, and each
//!   continues the one before it.
//! - A reader gets every event that it asked for, or a report that it is missing, with the reason: a file that was set
//!   aside is part of the log, and its events are damaged.
//!   The only exception is the end of a run that did not end in order: an unknown number of events
//!   that were in memory are missing, and the beginning of the next run reports that.
//! - A segment can be read alone: the schemas that its entries name are in it.
//! - The writer never waits for readers, and a failing disk costs the history only. Events that
//!   could not be stored are counted and reported.
//! - All files together stay below the limit. The spool touches only files with names of its own,
//!   and removes no file that could hold an entry unless the entry has expired.

mod cursor;
mod entry;
mod error;
mod files;
mod handle;
mod index;
mod lists;
mod reader;
mod record;
mod recover;
mod scan;
mod segment;
mod start;
mod state;
mod tail;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

pub use cursor::{BootId, BootIdError, Cursor, HistoryStart};
pub use entry::{EntryKind, EpochStart, Missing, MissingCause, SpoolEntry, SpoolItem};
pub use error::{AppendError, Damage, SpoolError};
pub use handle::{Spool, SpoolOptions, SpoolStats};
pub use lists::{Expired, ExpiredEpoch};
pub use reader::SpoolReader;
pub use record::{MAX_PAYLOAD_BYTES, Record, RecordKind};
pub use recover::Recovery;
pub use scan::{Scan, scan_bytes};
pub use segment::{HEADER_BYTES, Header, SegmentFacts, SegmentId};
pub use state::Limit;
pub use writer::SpoolWriter;
