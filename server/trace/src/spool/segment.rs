//! Segment: one file of the spool, with its name, header, and sums.
//!
//! Owns the facts of a segment other than its records. Never reads or writes a file.
//!
//! ```text
//! header:  0 "kprobedS" | 8 version u32 | 12 checksum u32 | 16 boot id | 32 epoch u64
//!          40 number u64 | 48 first sequence u64 | 56 created_wall_ns u64
//! records: see `record`
//! end:     a record without events, whose payload is
//!          0 offset u64 | 8 events u64 | 16 first_wall_ns u64 | 24 last_wall_ns u64
//!          32 highest owner of a schema u64 | 40 whether the run ended here u32
//! ```
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

use bytes::Buf as _;

use super::record::{HEAD_SIZE, Record, RecordKind};
use super::{BootId, Cursor, Damage, EntryKind};

const MAGIC: [u8; 8] = *b"kprobedS";

/// The version of the format. The daemon reads no other version.
const VERSION: u32 = 2;

/// Bytes of the header.
pub const HEADER_BYTES: u64 = HEADER_SIZE as u64;
pub(super) const HEADER_SIZE: usize = 64;

/// Bytes of the payload of the last record.
const SUMS_SIZE: usize = 44;

/// Bytes of the last record of a segment that was closed.
pub(super) const END_BYTES: u64 = END_SIZE as u64;
pub(super) const END_SIZE: usize = HEAD_SIZE.saturating_add(SUMS_SIZE);

/// A segment's place in the order of all segments: the run of the daemon, and its index in that
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// The run.
    pub epoch: u64,
    /// Its number in the run, from 0.
    pub number: u64,
}

impl fmt::Display for SegmentId {
    /// The name of its file, which sorts as segments do: 20 digits have room for every number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:020}.seg", self.epoch, self.number)
    }
}

impl SegmentId {
    /// The segment whose file has this name. `None` if it is not the name of a segment.
    pub fn parse(name: &str) -> Option<Self> {
        let (epoch, number) = name.strip_suffix(".seg")?.split_once('-')?;
        let id = Self { epoch: epoch.parse().ok()?, number: number.parse().ok()? };
        (id.to_string() == name).then_some(id)
    }
}

/// Header of a segment, which precedes its first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The boot.
    pub boot_id: BootId,
    /// The run, and the number in it.
    pub id: SegmentId,
    /// Number of its first event in the run.
    pub first_sequence: u64,
    /// Time of its first entry when it was made, in nanoseconds since 1970.
    pub created_wall_ns: u64,
}

impl Header {
    /// The bytes of the header, and the seed of the records' checksums.
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let mut body = Vec::with_capacity(48);
        body.extend_from_slice(&self.boot_id.0);
        for number in [self.id.epoch, self.id.number, self.first_sequence, self.created_wall_ns] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32fast::hash(&body);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&body);
        (bytes, checksum)
    }

    /// Reads the header at the beginning of the bytes, and the seed of the records' checksums.
    ///
    /// # Errors
    /// Why they are not one.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), Damage> {
        let truncated = || Damage(format!("the file has {} bytes, fewer than a header", bytes.len()));
        let header = bytes.first_chunk::<HEADER_SIZE>().ok_or_else(truncated)?;
        let is_other = || Damage("it does not begin as a segment of the spool does".to_owned());
        let mut rest = header.strip_prefix(&MAGIC).ok_or_else(is_other)?;
        let version = rest.try_get_u32_le().map_err(|_missing| truncated())?;
        if version != VERSION {
            let message = format!("it has version {version} of the format, which this kprobed does not read");
            return Err(Damage(message));
        }
        let checksum = rest.try_get_u32_le().map_err(|_missing| truncated())?;
        if crc32fast::hash(rest) != checksum {
            return Err(Damage("the checksum of the header is wrong".to_owned()));
        }
        let (boot_id, mut rest) = rest.split_first_chunk().ok_or_else(truncated)?;
        let boot_id = BootId(*boot_id);
        let mut number = || rest.try_get_u64_le().map_err(|_missing| truncated());
        let id = SegmentId { epoch: number()?, number: number()? };
        let header = Self { boot_id, id, first_sequence: number()?, created_wall_ns: number()? };
        Ok((header, checksum))
    }
}

/// Facts of a segment: its header, and sums over its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// The header.
    pub header: Header,
    /// Seed of the records' checksums.
    pub(super) seed: u32,
    /// Number of the first event after it.
    pub next_sequence: u64,
    /// Events in it.
    pub events: u64,
    /// Earliest time of a first event, in nanoseconds since 1970; the time of its creation if it
    /// has no event.
    pub first_wall_ns: u64,
    /// Latest time of a last event, in nanoseconds since 1970; the time of its creation if it has
    /// no event.
    pub last_wall_ns: u64,
    /// Highest number of an owner of its schemas; 0 if it has none.
    pub highest_owner: u64,
    /// Bytes of header and records.
    pub bytes: u64,
    /// Whether it has its last record, so that no other will follow.
    pub closed: bool,
    /// Whether the run of the daemon ended with it, and had written all its events.
    pub ends_epoch: bool,
}

impl SegmentFacts {
    /// The facts of a segment without records.
    pub(super) fn new(header: Header, seed: u32) -> Self {
        Self {
            header,
            seed,
            next_sequence: header.first_sequence,
            events: 0,
            first_wall_ns: header.created_wall_ns,
            last_wall_ns: header.created_wall_ns,
            highest_owner: 0,
            bytes: HEADER_BYTES,
            closed: false,
            ends_epoch: false,
        }
    }

    /// The segment.
    pub(super) fn id(&self) -> SegmentId {
        self.header.id
    }

    /// The position of its first event.
    pub(super) fn begin(&self) -> Cursor {
        let Header { boot_id, id, first_sequence, .. } = self.header;
        Cursor { boot_id, epoch: id.epoch, sequence: first_sequence }
    }

    /// Counts the next record. Returns an error, and counts nothing, if the record cannot follow
    /// here.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Result<(), Damage> {
        if self.closed {
            return Err(Damage("there are bytes behind the end".to_owned()));
        }
        if record.sequence != self.next_sequence {
            let (expected, found) = (self.next_sequence, record.sequence);
            let message = format!("the record begins with event {found}, where {expected} is the next");
            return Err(Damage(message));
        }
        let wrong = || Damage("the number of events of the record is wrong".to_owned());
        let next_sequence = record.end().ok_or_else(wrong)?;
        if record.kind == RecordKind::End {
            let mut claimed = *self;
            claimed.take_sums(record)?;
            let same = Self { closed: true, ends_epoch: claimed.ends_epoch, ..*self };
            if claimed != same {
                return Err(wrong_sums());
            }
            *self = claimed;
        }
        self.next_sequence = next_sequence;
        if let RecordKind::Entry(EntryKind::Events | EntryKind::Loss) = record.kind {
            self.first_wall_ns = self.first_wall_ns.min(record.first_wall_ns());
            self.last_wall_ns = self.last_wall_ns.max(record.last_wall_ns());
        }
        if record.kind == RecordKind::Entry(EntryKind::Schema) {
            self.highest_owner = self.highest_owner.max(record.first_ns);
        }
        if record.kind == RecordKind::Entry(EntryKind::Events) {
            self.events = self.events.saturating_add(u64::from(record.events));
        }
        self.bytes = self.bytes.saturating_add(record.bytes());
        Ok(())
    }

    /// The payload of the last record.
    pub(super) fn sums(&self, ends_epoch: bool) -> [u8; SUMS_SIZE] {
        let mut sums = [0; SUMS_SIZE];
        let numbers = [self.bytes, self.events, self.first_wall_ns, self.last_wall_ns, self.highest_owner];
        for (place, number) in sums.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        if let Some(last) = sums.last_chunk_mut() {
            *last = u32::from(ends_epoch).to_le_bytes();
        }
        sums
    }

    /// The last record.
    pub(super) fn end_record<'a>(&self, sums: &'a [u8; SUMS_SIZE]) -> Record<'a> {
        Record::without_events(RecordKind::End, self.next_sequence, 0, sums)
    }

    /// Takes the sums of the last record as those of the segment; `bytes` become those before it.
    pub(super) fn take_sums(&mut self, end: &Record<'_>) -> Result<(), Damage> {
        let mut rest = end.payload;
        let mut number = || rest.try_get_u64_le().map_err(|_missing| wrong_sums());
        self.bytes = number()?;
        self.events = number()?;
        self.first_wall_ns = number()?;
        self.last_wall_ns = number()?;
        self.highest_owner = number()?;
        self.ends_epoch = match rest.try_get_u32_le() {
            Ok(flag @ (0 | 1)) if rest.is_empty() => flag == 1,
            _ => return Err(wrong_sums()),
        };
        self.next_sequence = end.sequence;
        self.closed = true;
        Ok(())
    }
}

fn wrong_sums() -> Damage {
    Damage("the sums at the end are not those of the segment".to_owned())
}
