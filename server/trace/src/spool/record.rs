//! Record of an entry in a segment: its layout and checksum.
//!
//! Owns the bytes of one record: 52 bytes of facts, then the payload. The checksum covers all of it
//! and begins with that of the segment's header, so that a record of another segment, left over on
//! the disk, is not taken for one of this segment. Never reads or writes a file.
//!
//! ```text
//! 0 checksum u32 | 4 payload bytes u32 | 8 kind u32 | 12 key u32 | 16 events u32
//! 20 sequence u64 | 28 first_ns u64 | 36 last_ns u64 | 44 wall_offset_ns i64 | 52 payload
//! ```
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use bytes::{Buf as _, Bytes};
use crc32fast::Hasher;

use super::{Damage, EntryKind, SpoolEntry};

/// Bytes before the payload.
pub(super) const HEAD_BYTES: u64 = HEAD_SIZE as u64;
pub(super) const HEAD_SIZE: usize = 52;

/// The largest payload, in bytes. A larger length is damage, and is not read into memory.
pub const MAX_PAYLOAD_BYTES: u32 = 64 << 20;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// An entry.
    Entry(EntryKind),
    /// Events that were not stored. The payload is their number, 8 bytes.
    NotStored,
    /// The last record of a segment, with sums over all of it.
    End,
}

const KINDS: [(u32, RecordKind); 5] = [
    (1, RecordKind::Entry(EntryKind::Schema)),
    (2, RecordKind::Entry(EntryKind::Events)),
    (3, RecordKind::Entry(EntryKind::Loss)),
    (4, RecordKind::NotStored),
    (5, RecordKind::End),
];

/// One record. The fields are those of [`SpoolEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The kind.
    pub kind: RecordKind,
    /// Schema id, or CPU.
    pub key: u32,
    /// How many events it covers.
    pub events: u32,
    /// Number of the first one.
    pub sequence: u64,
    /// Trace clock, in nanoseconds.
    pub first_ns: u64,
    /// Trace clock, in nanoseconds.
    pub last_ns: u64,
    /// Wall clock minus trace clock, in nanoseconds.
    pub wall_offset_ns: i64,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record of an entry.
    pub(super) fn of(entry: &'a SpoolEntry) -> Self {
        Self {
            kind: RecordKind::Entry(entry.kind),
            key: entry.key,
            events: entry.events,
            sequence: entry.sequence,
            first_ns: entry.first_ns,
            last_ns: entry.last_ns,
            wall_offset_ns: entry.wall_offset_ns,
            payload: &entry.payload,
        }
    }

    /// A record without events, of a time in nanoseconds since 1970.
    pub(super) const fn without_events(
        kind: RecordKind,
        sequence: u64,
        wall_ns: u64,
        payload: &'a [u8],
    ) -> Self {
        let (key, events, wall_offset_ns) = (0, 0, 0);
        Self { kind, key, events, sequence, first_ns: wall_ns, last_ns: wall_ns, wall_offset_ns, payload }
    }

    /// The entry, if it is the record of one.
    pub fn to_entry(&self) -> Option<SpoolEntry> {
        let RecordKind::Entry(kind) = self.kind else { return None };
        Some(SpoolEntry {
            kind,
            sequence: self.sequence,
            events: self.events,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            wall_offset_ns: self.wall_offset_ns,
            key: self.key,
            payload: Bytes::copy_from_slice(self.payload),
        })
    }

    /// Number of the first event after it. `None` if there is no such number, or if a record of
    /// this kind cannot cover events.
    pub(super) fn end(&self) -> Option<u64> {
        let covered = match self.kind {
            RecordKind::Entry(EntryKind::Events | EntryKind::Loss) => u64::from(self.events),
            RecordKind::NotStored if self.events == 0 => u64::from_le_bytes(self.payload.try_into().ok()?),
            RecordKind::Entry(EntryKind::Schema) | RecordKind::End if self.events == 0 => 0,
            _ => return None,
        };
        self.sequence.checked_add(covered)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        HEAD_BYTES.saturating_add(self.payload.len() as u64)
    }

    /// Time of the first event, in nanoseconds since 1970.
    pub(super) fn first_wall_ns(&self) -> u64 {
        self.first_ns.saturating_add_signed(self.wall_offset_ns)
    }

    /// Time of the last event, in nanoseconds since 1970.
    pub(super) fn last_wall_ns(&self) -> u64 {
        self.last_ns.saturating_add_signed(self.wall_offset_ns)
    }

    /// Appends the bytes to `buffer`. The payload must have at most [`MAX_PAYLOAD_BYTES`]: the
    /// caller that makes a record ensures it.
    pub fn encode(&self, seed: u32, buffer: &mut Vec<u8>) {
        let start = buffer.len();
        let kind = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or(0, |(number, _)| *number);
        let payload_bytes = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        buffer.extend_from_slice(&[0; 4]);
        for number in [payload_bytes, kind, self.key, self.events] {
            buffer.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.sequence, self.first_ns, self.last_ns] {
            buffer.extend_from_slice(&number.to_le_bytes());
        }
        buffer.extend_from_slice(&self.wall_offset_ns.to_le_bytes());
        buffer.extend_from_slice(self.payload);
        if let Some((checksum, rest)) =
            buffer.get_mut(start..).and_then(|record| record.split_first_chunk_mut())
        {
            *checksum = checksum_of(seed, rest).to_le_bytes();
        }
    }

    /// Size in bytes of the record that begins with these bytes.
    ///
    /// # Errors
    /// They end before its length, or no record is as long.
    pub(super) fn size(bytes: &[u8]) -> Result<u64, Damage> {
        let length = bytes.get(4..).and_then(<[u8]>::first_chunk).copied().map(u32::from_le_bytes);
        let length = length.ok_or_else(|| truncated(HEAD_BYTES, bytes.len() as u64))?;
        if length > MAX_PAYLOAD_BYTES {
            return Err(Damage(format!("the record says that its payload has {length} bytes")));
        }
        Ok(HEAD_BYTES.saturating_add(u64::from(length)))
    }

    /// Reads the record that these bytes begin with.
    ///
    /// # Errors
    /// Why they are not one.
    pub fn decode(bytes: &'a [u8], seed: u32) -> Result<Self, Damage> {
        let needed = Self::size(bytes)?;
        let available = bytes.len() as u64;
        let truncated = || truncated(needed, available);
        let mut rest =
            usize::try_from(needed).ok().and_then(|size| bytes.get(..size)).ok_or_else(truncated)?;
        let checksum = rest.try_get_u32_le().map_err(|_missing| truncated())?;
        if checksum_of(seed, rest) != checksum {
            return Err(Damage("the checksum is wrong".to_owned()));
        }
        let mut short = || rest.try_get_u32_le().map_err(|_missing| truncated());
        let [_length, number, key, events] = [short()?, short()?, short()?, short()?];
        let unknown = || Damage(format!("there is no kind {number} of record"));
        let (_, kind) = KINDS.iter().find(|(known, _)| *known == number).ok_or_else(unknown)?;
        let mut long = || rest.try_get_u64_le().map_err(|_missing| truncated());
        let [sequence, first_ns, last_ns] = [long()?, long()?, long()?];
        let wall_offset_ns = long()?.cast_signed();
        Ok(Self { kind: *kind, key, events, sequence, first_ns, last_ns, wall_offset_ns, payload: rest })
    }
}

/// That a record ends too early.
pub(super) fn truncated(needed: u64, available: u64) -> Damage {
    Damage(format!("the record has {needed} bytes, where {available} are left"))
}

fn checksum_of(seed: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(bytes);
    hasher.finalize()
}
