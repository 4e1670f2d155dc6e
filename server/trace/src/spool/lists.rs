//! Lists of runs on disk: how much of each has expired, and which of them ended in order.
//!
//! Owns their form: a line of text for each run, and the checksum of the lines. The list of runs that ended in order
//! (`RUN EVENTS`) tells a run whose end was damaged later from one that did not end in order, whose last segment looks
//! the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::index::Index;

/// How many runs that ended in order are kept: the last ones.
const MAX_ENDED: usize = 1024;

/// Encodes the lines of a list.
pub(super) fn encode(mut lines: String) -> Vec<u8> {
    let checksum = crc32fast::hash(lines.as_bytes());
    // Writing to a string cannot fail.
    writeln!(lines, "{checksum:08x}").ok();
    lines.into_bytes()
}

/// Decodes the lines of a list. `None` if it is not one.
pub(super) fn decode(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (lines, checksum) = text.split_at(text.rfind('\n').map_or(0, |end| end + 1));
    let is_good = u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(lines.as_bytes()));
    is_good.then_some(lines)
}

/// Encodes the runs that ended in order, of which the index still has something.
pub(super) fn encode_ended(index: &Index) -> Vec<u8> {
    let is_there =
        |run: u64| index.of_epoch(run).next().is_some() || index.set_aside_of(run).next().is_some();
    let runs: Vec<_> = index.ended.iter().filter(|(run, _)| is_there(**run)).collect();
    let mut lines = String::new();
    for (run, events) in runs.iter().rev().take(MAX_ENDED) {
        writeln!(lines, "{run} {events}").ok();
    }
    encode(lines)
}

/// Decodes the runs that ended in order, with how many events each of them had. `None` if it is no such list.
pub(super) fn decode_ended(bytes: &[u8]) -> Option<BTreeMap<u64, u64>> {
    let run = |line: &str| {
        let (run, events) = line.split_once(' ')?;
        Some((run.parse().ok()?, events.parse().ok()?))
    };
    decode(bytes)?.lines().map(run).collect()
}
