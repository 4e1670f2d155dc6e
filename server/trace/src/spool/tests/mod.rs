mod crash;
mod failures;
mod format;
mod limits;
mod reading;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;

/// A moment of 2024, in nanoseconds since 1970.
const NOW_NS: u64 = 1_717_200_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const BOOT: BootId = BootId([7; 16]);

/// Segments of 4 KiB, 64 KiB in all, for an hour.
fn options(directory: &Path) -> SpoolOptions {
    let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
    let options = SpoolOptions::new(directory, 64 << 10, hour, second);
    SpoolOptions { segment_bytes: 4 << 10, ..options }
}

fn open(directory: &Path) -> (Spool, SpoolWriter, Recovery) {
    Spool::open(options(directory), BOOT, NOW_NS).unwrap()
}

fn fresh() -> (TempDir, Spool, SpoolWriter) {
    let directory = tempfile::tempdir().unwrap();
    let (spool, writer, recovery) = open(&directory.path().join("spool"));
    assert_eq!(recovery, Recovery::default());
    (directory, spool, writer)
}

/// Events one second apart, with a payload that identifies them.
fn events(sequence: u64, count: u32, payload_bytes: usize) -> SpoolEntry {
    let text = sequence.to_le_bytes();
    SpoolEntry {
        kind: EntryKind::Events,
        sequence,
        events: count,
        first_ns: sequence * SECOND_NS,
        last_ns: (sequence + u64::from(count)).saturating_sub(1) * SECOND_NS,
        wall_offset_ns: NOW_NS as i64,
        key: 3,
        payload: text.iter().copied().cycle().take(payload_bytes).collect(),
    }
}

fn loss(sequence: u64) -> SpoolEntry {
    SpoolEntry { kind: EntryKind::Loss, ..events(sequence, 0, 9) }
}

fn schema(key: u32, text: &'static str) -> SpoolEntry {
    let payload = Bytes::from_static(text.as_bytes());
    SpoolEntry { kind: EntryKind::Schema, key, payload, events: 0, ..events(0, 0, 0) }
}

/// All items that the reader returns until its end.
fn rest(reader: &mut SpoolReader) -> Vec<SpoolItem> {
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

fn reader(spool: &Spool, from: HistoryStart) -> SpoolReader {
    spool.reader(from, |entry| entry.events.into()).unwrap()
}

fn read(spool: &Spool, from: HistoryStart) -> Vec<SpoolItem> {
    rest(&mut reader(spool, from))
}

/// Items in short: `e` an entry with events, `l` a loss, `s` a schema, `x` expired, `n` not stored,
/// `d` damaged, `|` a run.
fn brief(items: &[SpoolItem]) -> String {
    let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let words = items.iter().map(|item| match item {
        SpoolItem::EpochStart(EpochStart { previous_ended_cleanly: None, .. }) => "|".to_owned(),
        SpoolItem::EpochStart(EpochStart { previous_ended_cleanly: Some(true), .. }) => "|clean".to_owned(),
        SpoolItem::EpochStart(EpochStart { previous_ended_cleanly: Some(false), .. }) => "|torn".to_owned(),
        SpoolItem::Missing(Missing { from, to, cause, .. }) => {
            let cause = match cause {
                MissingCause::Expired => "x",
                MissingCause::NotStored => "n",
                MissingCause::Damaged => "d",
            };
            format!("{cause}{}-{}", number(*from), number(*to))
        }
        SpoolItem::Entry(entry) => match entry.kind {
            EntryKind::Schema => format!("s{}", entry.key),
            EntryKind::Loss => format!("l{}", entry.sequence),
            EntryKind::Events => format!("e{}-{}", entry.sequence, entry.end().unwrap()),
        },
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The files with this end of the name, in order.
fn files(directory: &Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect();
    files.sort();
    files
}

/// A copy of the files, as a crash at this moment would leave them.
fn crashed(directory: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in files(directory, "") {
        std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    copy
}
