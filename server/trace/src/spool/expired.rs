//! List of expired events: how much of each run was removed from the spool.
//!
//! Owns the list and its form on disk. The spool writes the list before it removes segments, so
//! that it can complete a removal that was interrupted. Never removes a file itself.
//!
//! ```text
//! 0 "kprobedX" | 8 version u32 | 12 checksum u32 | 16 events u64 | 24 count u32
//! then for each run of the daemon, oldest first:
//! boot id | epoch u64 | last segment u64 | up_to u64 | last_wall_ns u64 | ended in order u32
//! ```
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use thiserror::Error;

use super::BootId;
use super::fields::Fields;
use super::segment::SegmentFacts;

const MAGIC: [u8; 8] = *b"kprobedX";
const VERSION: u32 = 1;

/// How many runs with expired events the list keeps. Of older runs it keeps only the sum of events.
const MAX_EPOCHS: usize = 64;

/// Expired part of one run of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredEpoch {
    /// The boot.
    pub boot_id: BootId,
    /// The run.
    pub epoch: u64,
    /// Number of the last segment that was removed. Several segments can end with the same event.
    pub last_segment: u64,
    /// Events before this one have expired.
    pub up_to: u64,
    /// Time of the last of them, in nanoseconds since 1970.
    pub last_wall_ns: u64,
    /// Whether the last removed segment was the last one of the run, and the run had written all
    /// its events.
    pub ended_cleanly: bool,
}

/// Expired part of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Events that were stored and have expired.
    pub events: u64,
    /// By run, oldest first.
    pub epochs: Vec<ExpiredEpoch>,
}

/// Why bytes are not a list of expired events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BrokenExpired {
    /// There are fewer or more bytes than the list has.
    #[error("the file has the wrong size")]
    Size,
    /// They do not begin as the list does, or they are of another version.
    #[error("it does not begin as the list of what has expired does")]
    Magic,
    /// The checksum does not match.
    #[error("the checksum is wrong")]
    Checksum,
    /// The runs are not in order, or there are too many.
    #[error("the runs are not in order")]
    Order,
}

impl Expired {
    /// Adds the oldest segment, which is about to be removed.
    pub(super) fn add(&mut self, facts: &SegmentFacts) {
        self.events = self.events.saturating_add(facts.events);
        let gone = ExpiredEpoch {
            boot_id: facts.header.boot_id,
            epoch: facts.header.id.epoch,
            last_segment: facts.header.id.number,
            up_to: facts.next_sequence,
            last_wall_ns: facts.last_wall_ns,
            ended_cleanly: facts.ends_epoch,
        };
        match self.epochs.last_mut().filter(|last| last.epoch == gone.epoch) {
            Some(last) => {
                *last = ExpiredEpoch { last_wall_ns: last.last_wall_ns.max(gone.last_wall_ns), ..gone };
            }
            None => self.epochs.push(gone),
        }
        if self.epochs.len() > MAX_EPOCHS {
            self.epochs.remove(0);
        }
    }

    /// The expired part of a run.
    pub(super) fn epoch(&self, epoch: u64) -> Option<&ExpiredEpoch> {
        self.epochs.iter().find(|gone| gone.epoch == epoch)
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.events.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::try_from(self.epochs.len()).unwrap_or(u32::MAX).to_le_bytes());
        for epoch in &self.epochs {
            body.extend_from_slice(&epoch.boot_id.0);
            for number in [epoch.epoch, epoch.last_segment, epoch.up_to, epoch.last_wall_ns] {
                body.extend_from_slice(&number.to_le_bytes());
            }
            body.extend_from_slice(&u32::from(epoch.ended_cleanly).to_le_bytes());
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Decodes the list.
    ///
    /// # Errors
    /// See [`BrokenExpired`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BrokenExpired> {
        let mut fields = Fields(bytes);
        let begins = fields.bytes() == Some(MAGIC) && fields.u32() == Some(VERSION);
        let checksum = fields.u32().filter(|_| begins).ok_or(BrokenExpired::Magic)?;
        if crc32fast::hash(fields.0) != checksum {
            return Err(BrokenExpired::Checksum);
        }
        let size = BrokenExpired::Size;
        let events = fields.u64().ok_or(size)?;
        let count = fields.u32().ok_or(size)?;
        if count > u32::try_from(MAX_EPOCHS).unwrap_or(u32::MAX) {
            return Err(BrokenExpired::Order);
        }
        let mut epochs: Vec<ExpiredEpoch> = Vec::new();
        for _ in 0..count {
            let epoch = ExpiredEpoch {
                boot_id: BootId(fields.bytes().ok_or(size)?),
                epoch: fields.u64().ok_or(size)?,
                last_segment: fields.u64().ok_or(size)?,
                up_to: fields.u64().ok_or(size)?,
                last_wall_ns: fields.u64().ok_or(size)?,
                ended_cleanly: fields.u32().ok_or(size)? == 1,
            };
            if epochs.last().is_some_and(|last| last.epoch >= epoch.epoch) {
                return Err(BrokenExpired::Order);
            }
            epochs.push(epoch);
        }
        if fields.0.is_empty() { Ok(Self { events, epochs }) } else { Err(size) }
    }
}
