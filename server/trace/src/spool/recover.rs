//! Recovery of a spool on disk: which files are kept, cut, or set aside when it is opened.
//!
//! Owns the repair of each file: it keeps a good one, cuts off a torn end, and sets a file aside
//! that is not a segment. It reports everything that it changes, and never removes a file that
//! could hold an entry, unless the entry had expired.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::error::ReadError;
use super::files::{ENDED, EXPIRED, Files};
use super::index::Index;
use super::lists::{self, Expired, ExpiredEpoch};
use super::scan::{Scan, scan};
use super::segment::{HEADER_BYTES, SegmentFacts, SegmentId};
use super::{Damage, SpoolError};

/// Result of a recovery: the files that it found, and the repairs that it made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments that can be read.
    pub segments: u64,
    /// Events in them.
    pub events: u64,
    /// Segments that had a broken end, which was cut off.
    pub cut_segments: u64,
    /// Bytes that were cut off.
    pub cut_bytes: u64,
    /// Files that have the name of a segment and are not one; they were renamed.
    pub set_aside: u64,
    /// The reasons, a sentence for each file.
    pub reasons: Vec<String>,
    /// What is damaged, a sentence for each file. The torn end of a run that did not end in order is none of it: the
    /// beginning of the next run reports that.
    pub damaged: Vec<String>,
}

/// Reads the files of the spool, and repairs them.
///
/// # Errors
/// [`SpoolError::Io`]. A segment that cannot be read or repaired is an error: the daemon does not
/// judge bytes that it could not read.
pub(super) fn recover(files: &Files) -> Result<(Index, Recovery), SpoolError> {
    let mut recovery = Recovery::default();
    let expired = list(files, EXPIRED, "what has expired", Expired::decode, &mut recovery)?;
    let is_known = expired.is_some();
    let ended = list(files, ENDED, "the runs that ended in order", lists::decode_ended, &mut recovery)?;
    let (expired, ended) = (expired.unwrap_or_default(), ended.unwrap_or_default());
    let mut index = Index { expired, ended, ..Index::default() };
    for id in files.segments()? {
        let has_ended = index.ended.contains_key(&id.epoch);
        let known = recovery.reasons.len();
        let facts = segment(files, id, &mut recovery)?;
        if has_ended && facts.is_some() {
            recovery.damaged.extend(recovery.reasons.iter().skip(known).cloned());
        }
        if let Some(facts) = facts {
            index.segments.insert(id, facts);
        }
    }
    for (id, name, wall_ns) in files.segments_aside()? {
        index.aside.insert(id, (name, wall_ns));
    }
    finish_expiry(files, &mut index)?;
    recovery.note_aside(&index);
    if !is_known {
        guess_expired(&mut index);
    }
    recovery.segments = index.segments.len() as u64;
    recovery.events = index.segments.values().map(|facts| facts.events).sum();
    Ok((index, recovery))
}

/// A list, which is empty before it is first written. `None` if the file is not that list, and is set aside.
fn list<T: Default>(
    files: &Files,
    name: &str,
    of: &str,
    decode: impl FnOnce(&[u8]) -> Option<T>,
    recovery: &mut Recovery,
) -> Result<Option<T>, SpoolError> {
    let Some(bytes) = files.list(name)? else { return Ok(Some(T::default())) };
    let list = decode(&bytes);
    if list.is_none() {
        set_aside(files, name, &format!("it is not the list of {of}"), recovery)?;
    }
    Ok(list)
}

impl Recovery {
    /// Names the segments that an earlier start has set aside.
    fn note_aside(&mut self, index: &Index) {
        let is_new = |name: &str| self.reasons.iter().any(|reason| reason.ends_with(&format!(" {name}")));
        let earlier = index.aside.values().filter(|(name, _)| !is_new(name));
        let earlier: Vec<_> =
            earlier.map(|(name, _)| format!("{name} was set aside at an earlier start")).collect();
        self.damaged.extend(earlier);
    }
}

fn set_aside(files: &Files, name: &str, why: &str, recovery: &mut Recovery) -> Result<(), SpoolError> {
    let aside = files.set_aside(name)?;
    recovery.set_aside += 1;
    let reason = format!("{name}: {why}; it is now {aside}");
    recovery.reasons.push(reason.clone());
    recovery.damaged.push(reason);
    Ok(())
}

/// The good part of a segment, after the rest was cut off.
fn segment(
    files: &Files,
    id: SegmentId,
    recovery: &mut Recovery,
) -> Result<Option<SegmentFacts>, SpoolError> {
    let path = files.segment(id);
    let file = files.open_segment(id, true)?;
    let length = file.metadata().map_err(SpoolError::io("read", &path))?.len();
    let scanned = match scan(Arc::clone(&file), length) {
        // No run has the largest number: the next run would have none.
        Ok(scan) if scan.facts.header.id != id || id.epoch == u64::MAX => {
            let named = scan.facts.header.id;
            Err(Damage(format!("it is the segment `{named}`, under another name")).into())
        }
        scanned => scanned,
    };
    match scanned {
        Ok(scan) => repaired(files, id, &file, length, &scan, recovery).map(Some),
        Err(ReadError::Io(source)) => Err(SpoolError::io("read", &path)(source)),
        // The power failed while the file was created: it never had an entry.
        Err(ReadError::Damaged(_)) if length < HEADER_BYTES => {
            files.remove(id)?;
            recovery.cut_segments += 1;
            recovery.cut_bytes += length;
            recovery.reasons.push(format!("{id}: has {length} bytes and was never begun; it is removed"));
            Ok(None)
        }
        Err(ReadError::Damaged(damage)) => {
            set_aside(files, &id.to_string(), &damage.to_string(), recovery)?;
            Ok(None)
        }
    }
}

/// Cuts off the damaged end, and closes the segment, so that it need not be read through again.
fn repaired(
    files: &Files,
    id: SegmentId,
    file: &File,
    length: u64,
    scan: &Scan,
    recovery: &mut Recovery,
) -> Result<SegmentFacts, SpoolError> {
    let mut facts = scan.facts;
    let path = files.segment(id);
    let cut = length.saturating_sub(facts.bytes);
    if cut > 0 {
        file.set_len(facts.bytes).map_err(SpoolError::io("cut the end off", &path))?;
        recovery.cut_segments += 1;
        recovery.cut_bytes += cut;
        let why = scan.broken.as_ref().map_or_else(String::new, |broken| format!(": {broken}"));
        recovery.reasons.push(format!("{id}: its last {cut} bytes were cut off{why}"));
    }
    if !facts.closed {
        let mut bytes = Vec::new();
        let sums = facts.sums(false);
        let end = facts.end_record(&sums);
        end.encode(facts.seed, &mut bytes);
        // If the disk has no room for the end record, the segment is as good without it.
        if file.write_all_at(&bytes, facts.bytes).is_ok() && facts.add(&end).is_err() {
            file.set_len(facts.bytes).map_err(SpoolError::io("cut the end off", &path))?;
        }
    }
    if cut > 0 || facts.bytes != length {
        file.sync_data().map_err(SpoolError::io("sync", &path))?;
    }
    Ok(facts)
}

/// Removes expired segments that the daemon had not yet removed when it was stopped.
fn finish_expiry(files: &Files, index: &mut Index) -> Result<(), SpoolError> {
    let Some(last) = index.expired.epochs.last() else { return Ok(()) };
    let last = SegmentId { epoch: last.epoch, number: last.last_segment };
    let gone: Vec<_> = index.segments.range(..=last).map(|(id, _)| *id).collect();
    for id in gone {
        files.remove(id)?;
        index.segments.remove(&id);
    }
    index.aside.retain(|id, _| *id > last);
    Ok(())
}

/// Derives the expired part of the oldest run if the list is lost: the oldest segments are removed
/// first.
fn guess_expired(index: &mut Index) {
    let Some(oldest) = index.segments.values().next() else { return };
    let Some(last_segment) = oldest.header.id.number.checked_sub(1) else { return };
    index.expired.epochs.push(ExpiredEpoch {
        boot_id: oldest.header.boot_id,
        epoch: oldest.header.id.epoch,
        last_segment,
        up_to: oldest.header.first_sequence,
        last_wall_ns: oldest.header.created_wall_ns,
        ended_cleanly: false,
    });
}
