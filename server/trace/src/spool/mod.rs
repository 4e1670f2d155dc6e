//! A bounded log of events on the disk, so that clients can ask for what was, and for what they
//! have missed.
//!
//! Owns the files of it: their format, limits, repair, and reading them while they are written. It
//! stores entries whose bytes it does not look into, with the few facts that it needs. Never knows
//! what an event is, who reads, or what they select.
//!
//! ```text
//! writer --entries--> memory --pieces--> segment, segment, … --> readers
//!                                        the oldest one goes, and is remembered as expired
//! ```
//!
//! What is promised:
//!
//! - An entry is read as it was put in, or not at all. Records have checksums, each continues the
//!   one before it.
//! - Every event that was asked for is given, or told as missing with the reason. The only
//!   exception is the end of a run that did not end in order: what was in memory then is missing,
//!   nobody knows how many; the beginning of the next run says so.
//! - A segment can be read alone: the schemas that its entries name are in it.
//! - Putting in never waits for readers, and a failing disk costs the history only. What could not
//!   be stored is counted and told.
//! - All files together stay below the limit. Nothing but files with our names is touched; nothing
//!   that could hold an entry is removed unless it has expired.

mod cursor;
mod entry;
mod error;
mod expired;
mod fields;
mod files;
mod handle;
mod index;
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

pub use cursor::{BootId, BootIdError, Cursor, Position};
pub use entry::{Entry, EntryKind, EpochStart, Missing, MissingCause, SpoolItem};
pub use error::{AppendError, SpoolError};
pub use expired::{BrokenExpired, Expired, ExpiredEpoch};
pub use handle::{Spool, SpoolOptions, SpoolStats};
pub use reader::SpoolReader;
pub use record::{BrokenRecord, MAX_PAYLOAD_BYTES, Record, RecordKind};
pub use recover::Recovery;
pub use scan::{Scan, scan_bytes};
pub use segment::{BrokenHeader, HEADER_BYTES, Header, SegmentFacts, SegmentId};
pub use state::Limit;
pub use writer::SpoolWriter;
