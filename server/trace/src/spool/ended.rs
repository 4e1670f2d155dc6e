//! List of runs that ended in order: how many events each of them had.
//!
//! Owns the list and its form on disk: a line `RUN EVENTS` for each run, and their checksum. It tells a run whose end
//! was damaged later from one that did not end in order, whose last segment looks the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::index::Index;

/// How many runs the list keeps: the last ones.
const MAX_RUNS: usize = 1024;

/// Encodes the runs of which the index still has something.
pub(super) fn encode(index: &Index) -> Vec<u8> {
    let is_there =
        |run: u64| index.of_epoch(run).next().is_some() || index.set_aside_of(run).next().is_some();
    let runs: Vec<_> = index.ended.iter().filter(|(run, _)| is_there(**run)).collect();
    let mut text = String::new();
    for (run, events) in runs.iter().rev().take(MAX_RUNS) {
        // Writing to a string cannot fail.
        writeln!(text, "{run} {events}").ok();
    }
    let checksum = crc32fast::hash(text.as_bytes());
    writeln!(text, "{checksum:08x}").ok();
    text.into_bytes()
}

/// Decodes a list. `None` if it is not one.
pub(super) fn decode(bytes: &[u8]) -> Option<BTreeMap<u64, u64>> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (lines, checksum) = match text.rsplit_once('\n') {
        Some((lines, checksum)) => (format!("{lines}\n"), checksum),
        None => (String::new(), text),
    };
    if u32::from_str_radix(checksum, 16) != Ok(crc32fast::hash(lines.as_bytes())) {
        return None;
    }
    lines
        .lines()
        .map(|line| {
            line.split_once(' ').and_then(|(run, events)| Some((run.parse().ok()?, events.parse().ok()?)))
        })
        .collect()
}
