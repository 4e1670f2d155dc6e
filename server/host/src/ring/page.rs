//! Sub-buffer header: time stamp, commit word, and the number of lost events.
//!
//! Owns their parsing, and the checks of a page's bounds. Never reads a record: `record` does.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::layout::PageLayout;
use super::record::Records;
use crate::little_endian::u64_at;

/// Bits of the commit word that count bytes (kernel/trace/ring_buffer.c:RB_WRITE_MASK). The two
/// flags above them are added as signed 32-bit constants to a 64-bit counter, so that all bits
/// above bit 31 are copies of it and mean nothing.
pub(super) const COMMIT_MASK: u64 = 0xf_ffff;

/// Events were lost before this page (RB_MISSED_EVENTS).
const MISSED: u64 = 1 << 31;

/// The number of lost events follows the data (RB_MISSED_STORED).
const MISSED_STORED: u64 = 1 << 30;

/// One sub-buffer, its header parsed and the bounds of its data checked.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    timestamp_ns: u64,
    lost: Lost,
    data: &'a [u8],
}

/// Events that the kernel reports as overwritten between the previously read page and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing was lost.
    None,
    /// This number of events, of all probes together.
    Count(u64),
    /// Some events; the page was too full to hold their number.
    Unknown,
}

/// How a page breaks the rules. `at` is an offset in bytes into the data area of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// There are fewer bytes than the page header has.
    #[error("page of {bytes} bytes is shorter than its header")]
    HeaderTruncated {
        /// Bytes of the page.
        bytes: usize,
    },
    /// The commit word counts more bytes than the page has.
    #[error("page commits {committed} bytes of data but has {available}")]
    CommitBeyondPage {
        /// Bytes that the commit word counts.
        committed: usize,
        /// Bytes of the data area.
        available: usize,
    },
    /// The number of lost events is announced, but there is no room for it.
    #[error("page announces a count of lost events at {at}, where it has no room for it")]
    LostCountTruncated {
        /// Offset at which the count would be.
        at: usize,
    },
    /// A header, a word of a record, or a record of time that the data ends in.
    #[error("{part} at {at} is cut short")]
    CutShort {
        /// What it is.
        part: &'static str,
        /// Where the record begins.
        at: usize,
    },
    /// A length word that is too small to cover itself, or that would break the alignment of all
    /// later records.
    #[error("record at {at} has the impossible length {length}")]
    LengthInvalid {
        /// Where the record begins.
        at: usize,
        /// The length word.
        length: u32,
    },
    /// A record, or a discarded event, that reaches beyond the committed data.
    #[error("{part} at {at} has {needed} bytes, where {available} are left")]
    BeyondData {
        /// What it is.
        part: &'static str,
        /// Where it begins.
        at: usize,
        /// Its size in bytes, with its header.
        needed: usize,
        /// Bytes from there to the end of the data.
        available: usize,
    },
}

impl<'a> Page<'a> {
    /// Reads the header of a sub-buffer (kernel/trace/ring_buffer.c:struct buffer_data_page). Bytes
    /// after the committed data are ignored, except for the count of lost events.
    pub fn parse(bytes: &'a [u8], layout: &PageLayout) -> Result<Self, PageError> {
        let truncated = PageError::HeaderTruncated { bytes: bytes.len() };
        let timestamp_ns = u64_at(bytes, layout.timestamp_at).ok_or(truncated)?;
        let commit = u64_at(bytes, layout.commit_at).ok_or(truncated)?;
        let area = bytes.get(layout.data_at..).ok_or(truncated)?;
        let area = area.get(..layout.data_capacity_bytes()).unwrap_or(area);

        // 20 bits always fit.
        let committed = usize::try_from(commit & COMMIT_MASK).unwrap_or(usize::MAX);
        let data =
            area.get(..committed).ok_or(PageError::CommitBeyondPage { committed, available: area.len() })?;
        let lost = match (commit & MISSED != 0, commit & MISSED_STORED != 0) {
            (false, _) => Lost::None,
            (true, false) => Lost::Unknown,
            (true, true) => {
                Lost::Count(u64_at(area, committed).ok_or(PageError::LostCountTruncated { at: committed })?)
            }
        };
        Ok(Self { timestamp_ns, lost, data })
    }

    /// Time of the page, in nanoseconds of the trace clock: the base that the deltas of its records
    /// count from. The kernel stamps a page anew after a partial read, so that nothing carries over
    /// from an earlier read.
    pub const fn timestamp_ns(&self) -> u64 {
        self.timestamp_ns
    }

    /// The events lost before this page.
    pub const fn lost(&self) -> Lost {
        self.lost
    }

    /// Bytes of committed records. A page on which this is far below
    /// [`PageLayout::data_capacity_bytes`] was most likely read while the writer was still on it:
    /// the reader has caught up.
    pub const fn data_bytes(&self) -> usize {
        self.data.len()
    }

    /// The records, in the order in which they were written.
    pub const fn records(&self) -> Records<'a> {
        Records::new(self.timestamp_ns, self.data)
    }
}
