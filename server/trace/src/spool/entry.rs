//! Entries of the spool, and the items that a reader gets.
//!
//! Owns the plain data. Never interprets a payload: that is for the module that writes entries
//! (`history`).

use bytes::Bytes;

use super::Cursor;

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// The meaning of the columns of events. A reader needs it for the events that name it.
    Schema,
    /// Events.
    Events,
    /// A report of events that were lost before they could be read.
    Loss,
}

/// One entry: some facts, and a payload that the spool does not interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolEntry {
    /// The kind.
    pub kind: EntryKind,
    /// Number of its first event in the run of the daemon; of the next event if it has none.
    pub sequence: u64,
    /// How many events it covers: those from `sequence` on. A schema has none.
    pub events: u32,
    /// Time stamp of the first event, in nanoseconds of the trace clock. Of a schema, the number of its
    /// owner: the spool knows the highest one without reading payloads.
    pub first_ns: u64,
    /// Time stamp of the last event, in nanoseconds of the trace clock.
    pub last_ns: u64,
    /// Wall clock minus trace clock, in nanoseconds: added to a time stamp it gives nanoseconds
    /// since 1970.
    pub wall_offset_ns: i64,
    /// Of a schema, its id; otherwise the CPU.
    pub key: u32,
    /// The payload.
    pub payload: Bytes,
}

impl SpoolEntry {
    /// Number of the first event after it. `None` if there is no such number.
    pub fn end(&self) -> Option<u64> {
        self.sequence.checked_add(u64::from(self.events))
    }
}

/// Item that a reader returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolItem {
    /// The items that follow are of this run of the daemon. It is also the first item of all.
    EpochStart(EpochStart),
    /// Events of this run that the reader asked for and that are not in the spool.
    Missing(Missing),
    /// An entry.
    Entry(SpoolEntry),
}

/// The beginning of a run of the daemon, or of the part of it that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The run, and the event that the items after it begin with.
    pub at: Cursor,
    /// Whether the previous run wrote all its events before it ended. False: it was killed, or the
    /// power failed, and an unknown number of its last events may be missing. Absent if no previous
    /// run is known.
    pub previous_ended_cleanly: Option<bool>,
}

/// Missing events of the run of the last [`EpochStart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Number of the first one. Absent if it is unknown which of those before `to` the reader asked
    /// for.
    pub from: Option<u64>,
    /// Number of the first event that is not missing. Absent if the number of missing events is
    /// unknown.
    pub to: Option<u64>,
    /// Why.
    pub cause: MissingCause,
}

impl Missing {
    /// How many, if that is known. 0 if a report of lost events is missing.
    pub fn events(&self) -> Option<u64> {
        Some(self.to?.saturating_sub(self.from?))
    }
}

/// Why events are not in the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCause {
    /// They were stored, and were removed to make room or because of their age.
    Expired,
    /// They were never stored: the disk was full or failed, or the writer was too slow.
    NotStored,
    /// They were stored, and their bytes have changed since.
    Damaged,
}
