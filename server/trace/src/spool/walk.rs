//! Walk over the records of a segment.
//!
//! Owns reading in large pieces, and the rule that each record continues the one before it. Never
//! decides what to do with a segment that is damaged.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::error::ReadError;
use super::record::{HEAD_BYTES, Record, truncated};
use super::segment::{HEADER_BYTES, SegmentFacts};

/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 256 << 10;

/// Source of bytes that can be read at any offset.
pub(super) trait ReadAt {
    /// Reads some bytes; none at the end.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
}

impl ReadAt for Arc<File> {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        File::read_at(self, buffer, at)
    }
}

impl ReadAt for &[u8] {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let bytes = buffer.iter_mut().zip(rest);
        Ok(bytes.map(|(to, from)| *to = *from).count())
    }
}

/// A walk over the records of a segment.
#[derive(Debug)]
pub(super) struct Walk<R> {
    source: R,
    /// The facts of the records so far: the next record begins at `bytes`.
    pub(super) facts: SegmentFacts,
    /// The end of the records that may be read.
    limit: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<R: ReadAt> Walk<R> {
    /// Begins with the first record. Reads nothing at or after `limit`.
    pub(super) fn new(source: R, start: SegmentFacts, limit: u64) -> Self {
        Self { source, facts: start, limit, window: Vec::new(), window_at: HEADER_BYTES }
    }

    /// Raises the limit after more was written.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The next record, and its offset. `None` at the limit. An error ends the walk: further calls
    /// return the same error.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Record<'_>)>, ReadError> {
        let at = self.facts.bytes;
        if at >= self.limit {
            return Ok(None);
        }
        let size = Record::size(self.fill(at, HEAD_BYTES)?)?;
        self.fill(at, size)?;
        let Self { facts, window, window_at, .. } = self;
        let record = Record::decode(behind(window, *window_at, at), facts.seed)?;
        facts.add(&record)?;
        Ok(Some((at, record)))
    }

    /// The record at the offset at which one begins.
    pub(super) fn record_at(&mut self, at: u64) -> Result<Record<'_>, ReadError> {
        let size = Record::size(self.fill(at, HEAD_BYTES)?)?;
        self.fill(at, size)?;
        Ok(Record::decode(behind(&self.window, self.window_at, at), self.facts.seed)?)
    }

    /// The bytes from `at` on: at least `wanted`, if there are that many before the limit.
    fn fill(&mut self, at: u64, wanted: u64) -> Result<&[u8], ReadError> {
        let available = self.limit.saturating_sub(at);
        if (behind(&self.window, self.window_at, at).len() as u64) < wanted.min(available) {
            let size = wanted.max(WINDOW_BYTES).min(available);
            self.window.resize(usize::try_from(size).unwrap_or(0), 0);
            self.window_at = at;
            let read = read_up_to(&self.source, &mut self.window, at);
            self.window.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        if available < wanted {
            return Err(truncated(wanted, available).into());
        }
        Ok(behind(&self.window, self.window_at, at))
    }
}

/// The bytes from `at` on in a window that begins at `window_at`.
fn behind(window: &[u8], window_at: u64, at: u64) -> &[u8] {
    let offset = at.checked_sub(window_at).and_then(|offset| usize::try_from(offset).ok());
    offset.and_then(|offset| window.get(offset..)).unwrap_or_default()
}

/// Fills the buffer with the bytes that there are.
pub(super) fn read_up_to(source: &impl ReadAt, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0_usize;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read_at(rest, at.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(bytes) => filled = filled.saturating_add(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
