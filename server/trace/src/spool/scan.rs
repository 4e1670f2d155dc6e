//! Scan of a segment file: the part of it that is intact.
//!
//! Owns the decision up to where its bytes are good. Never changes them.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io;

use super::Damage;
use super::error::ReadError;
use super::record::{Record, RecordKind};
use super::segment::{END_BYTES, END_SIZE, HEADER_BYTES, HEADER_SIZE, Header, SegmentFacts};
use super::walk::{ReadAt, Walk, read_up_to};

/// The good part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Facts of the segment. `bytes` counts the good ones.
    pub facts: SegmentFacts,
    /// Why the bytes that follow are not good. Absent if none follow.
    pub broken: Option<Damage>,
}

/// Scans a whole segment in memory, and calls `each` with every good record and its offset.
///
/// # Errors
/// Why they do not begin with a header.
pub fn scan_bytes(bytes: &[u8], mut each: impl FnMut(u64, &Record<'_>)) -> Result<Scan, Damage> {
    let (header, seed) = Header::decode(bytes)?;
    let length = bytes.len() as u64;
    let scanned = walk_through(bytes, SegmentFacts::new(header, seed), length, &mut each);
    // Reading memory does not fail; if it did, the scan would leave out everything after the
    // header.
    Ok(scanned.unwrap_or_else(|_| Scan { facts: SegmentFacts::new(header, seed), broken: None }))
}

/// Scans a file of `length` bytes. Of a closed segment it takes the sums of the last record;
/// readers check each record all the same.
///
/// # Errors
/// See [`ReadError`].
pub(super) fn scan<R: ReadAt>(source: R, length: u64) -> Result<Scan, ReadError> {
    let mut header = [0; HEADER_SIZE];
    let read = read_up_to(&source, &mut header, 0)?;
    let (header, seed) = Header::decode(header.get(..read).unwrap_or_default())?;
    let start = SegmentFacts::new(header, seed);
    if let Some(facts) = closed(&source, &start, length)? {
        return Ok(Scan { facts, broken: None });
    }
    Ok(walk_through(source, start, length, &mut |_, _| {})?)
}

/// The sums of the last record, if there is one.
fn closed<R: ReadAt>(source: &R, start: &SegmentFacts, length: u64) -> io::Result<Option<SegmentFacts>> {
    let mut bytes = [0; END_SIZE];
    let Some(at) = length.checked_sub(END_BYTES).filter(|at| *at >= HEADER_BYTES) else { return Ok(None) };
    if read_up_to(source, &mut bytes, at)? < bytes.len() {
        return Ok(None);
    }
    let Ok(end) = Record::decode(&bytes, start.seed) else { return Ok(None) };
    let mut facts = *start;
    let believable = end.kind == RecordKind::End
        && facts.take_sums(&end).is_ok()
        && facts.bytes == at
        && facts.next_sequence >= facts.header.first_sequence;
    facts.bytes = length;
    Ok(believable.then_some(facts))
}

fn walk_through<R: ReadAt>(
    source: R,
    start: SegmentFacts,
    length: u64,
    each: &mut impl FnMut(u64, &Record<'_>),
) -> io::Result<Scan> {
    let mut walk = Walk::new(source, start, length);
    let broken = loop {
        match walk.next() {
            Ok(Some((at, record))) => each(at, &record),
            Ok(None) => break None,
            Err(ReadError::Damaged(damage)) => break Some(damage),
            Err(ReadError::Io(error)) => return Err(error),
        }
    };
    Ok(Scan { facts: walk.facts, broken })
}
