//! Scan of a segment file: the part of it that is intact.
//!
//! Owns the decision up to where its bytes are good. Never changes them.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io;

use thiserror::Error;

use super::Shares;
use super::record::{BrokenRecord, Record, RecordKind};
use super::segment::{BrokenHeader, END_BYTES, END_SIZE, HEADER_BYTES, HEADER_SIZE, Header, SegmentFacts};
use super::walk::{ReadAt, Walk, WalkError, read_up_to};

/// The good part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Facts of the segment. `bytes` counts the good ones.
    pub facts: SegmentFacts,
    /// Why the bytes that follow are not good. Absent if none follow.
    pub broken: Option<BrokenRecord>,
}

/// Says what accounts have of a record: it gets all records of a segment, in order.
pub(super) type Attribute<'a> = dyn FnMut(&Record<'_>) -> Shares + 'a;

/// Why no part of a file is good.
#[derive(Debug, Error)]
pub(super) enum ScanError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not a segment.
    #[error(transparent)]
    Header(#[from] BrokenHeader),
}

/// Scans a whole segment in memory, and calls `each` with every good record and its offset.
///
/// # Errors
/// See [`BrokenHeader`].
pub fn scan_bytes(bytes: &[u8], mut each: impl FnMut(u64, &Record<'_>)) -> Result<Scan, BrokenHeader> {
    let (header, seed) = Header::decode(bytes)?;
    let length = bytes.len() as u64;
    let scanned = walk_through(bytes, SegmentFacts::new(header, seed), length, &mut each);
    // Reading memory does not fail; if it did, the scan would leave out everything after the
    // header.
    Ok(scanned.unwrap_or_else(|_| Scan { facts: SegmentFacts::new(header, seed), broken: None }))
}

/// Scans a file of `length` bytes, and finds out what each account has of it. Of a closed segment it
/// takes the sums of the last records; readers check each record all the same.
///
/// # Errors
/// See [`ScanError`].
pub(super) fn scan<R: ReadAt + Clone>(
    source: R,
    length: u64,
    attribute: &mut Attribute<'_>,
) -> Result<(Scan, Shares), ScanError> {
    let mut header = [0; HEADER_SIZE];
    let read = read_up_to(&source, &mut header, 0)?;
    let (header, seed) = Header::decode(header.get(..read).unwrap_or_default())?;
    let start = SegmentFacts::new(header, seed);
    let closed = closed(&source, &start, length)?;
    if let Some((facts, before_end)) = closed
        && let Some(shares) = shares(&source, &facts, before_end)?
    {
        return Ok((Scan { facts, broken: None }, shares));
    }
    let mut shares = Shares::default();
    // What the segment says itself counts.
    let mut each = |_, record: &Record<'_>| match record.kind {
        RecordKind::Shares => shares = Shares::decode(record.payload).unwrap_or_default(),
        RecordKind::End if record.key == 0 => shares = Shares::default(),
        _ => shares.add_all(&attribute(record)),
    };
    let scan = walk_through(source, start, length, &mut each)?;
    // A reader that finds damage before a good last record reports it: nothing of that segment is cut off.
    Ok((closed.map_or(scan, |(facts, _)| Scan { facts, broken: None }), shares))
}

/// The shares of a closed segment, whose record has so many bytes and is the last one before the end. `None` if that
/// record is damaged.
fn shares<R: ReadAt>(source: &R, facts: &SegmentFacts, bytes: u32) -> io::Result<Option<Shares>> {
    if bytes == 0 {
        return Ok(Some(Shares::default()));
    }
    let at = facts.bytes.checked_sub(END_BYTES).and_then(|end| end.checked_sub(bytes.into()));
    let Some(at) = at.filter(|at| *at >= HEADER_BYTES) else { return Ok(None) };
    let mut record = vec![0; usize::try_from(bytes).unwrap_or(0)];
    read_up_to(source, &mut record, at)?;
    let record = Record::decode(&record, facts.seed).ok();
    let record =
        record.filter(|record| record.kind == RecordKind::Shares && record.bytes() == u64::from(bytes));
    Ok(record.and_then(|record| Shares::decode(record.payload)))
}

/// The sums of the last record, if there is one, and the bytes of the record of shares before it.
fn closed<R: ReadAt>(
    source: &R,
    start: &SegmentFacts,
    length: u64,
) -> io::Result<Option<(SegmentFacts, u32)>> {
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
    Ok(believable.then_some((facts, end.key)))
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
            Err(WalkError::Broken(broken)) => break Some(broken),
            Err(WalkError::Io(error)) => return Err(error),
        }
    };
    Ok(Scan { facts: *walk.facts(), broken })
}
