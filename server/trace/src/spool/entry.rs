//! What is put into the spool, and what comes out of it.
//!
//! Owns the plain data. What is in a payload is the business of whoever puts it in.

use bytes::Bytes;

use super::BootId;

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// What the columns of events mean. Needed to read the events that name it.
    Schema,
    /// Events.
    Events,
    /// A report of events that were lost before they could be read.
    Loss,
}

/// One entry: some facts, and bytes that the spool does not look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it holds.
    pub kind: EntryKind,
    /// Number of its first event in the run of the daemon; of the next event when it has none.
    pub sequence: u64,
    /// How many events it covers: those from `sequence` on. A schema has none.
    pub events: u32,
    /// Time stamp of the first event, in nanoseconds of the trace clock.
    pub first_ns: u64,
    /// Time stamp of the last event, in nanoseconds of the trace clock.
    pub last_ns: u64,
    /// What has to be added to a time stamp for nanoseconds since 1970.
    pub wall_offset_ns: i64,
    /// Of a schema, its id; otherwise the CPU.
    pub key: u32,
    /// The rest.
    pub payload: Bytes,
}

impl Entry {
    /// Number of the first event behind it. `None` where there is no such number.
    pub fn end(&self) -> Option<u64> {
        self.sequence.checked_add(u64::from(self.events))
    }
}

/// What a reader gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolItem {
    /// What follows is of this run of the daemon. Comes first of all, too.
    EpochStart(EpochStart),
    /// Events of this run that were asked for and are not there.
    Missing(Missing),
    /// An entry.
    Entry(Entry),
}

/// The beginning of a run of the daemon, or of what is read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The boot.
    pub boot_id: BootId,
    /// The run.
    pub epoch: u64,
    /// Whether the run before it wrote everything down before it ended. False: it was killed, or
    /// the power failed, and its last events may be missing, nobody knows how many. Absent when
    /// nothing is known of a run before.
    pub previous_ended_cleanly: Option<bool>,
}

/// Events that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The run that they are of: that of the last [`EpochStart`].
    pub epoch: u64,
    /// Number of the first one. Absent when it is not known which of those before `to` were asked
    /// for.
    pub from: Option<u64>,
    /// Number of the first event that is not missing. Absent when it is not known how many there
    /// were.
    pub to: Option<u64>,
    /// Why.
    pub cause: MissingCause,
}

impl Missing {
    /// How many, where that is known. 0 when a report of lost events is missing.
    pub fn events(&self) -> Option<u64> {
        Some(self.to?.saturating_sub(self.from?))
    }
}

/// Why events are not in the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCause {
    /// They were, and had to make room or were too old.
    Expired,
    /// They never were: the disk was full or failed, or the writer was too slow.
    NotStored,
    /// They were, and their bytes are no longer what was written.
    Damaged,
}
