//! Property: spool segments, and the list of expired events.

use std::fs;
use std::path::Path;
use std::time::Duration;

use kprobed_trace::spool::{
    BootId, EntryKind, Expired, HEADER_BYTES, Header, HistoryStart, Record, RecordKind, Scan, SegmentId,
    Spool, SpoolEntry, SpoolItem, SpoolOptions, scan_bytes,
};
use tempfile::TempDir;

/// The good part of a segment equals its records written again, and does not depend on the bytes
/// that follow; a spool that recovers the segment keeps that part, reports the rest, and returns
/// exactly those entries.
pub fn check(data: &[u8]) {
    if let Some(expired) = Expired::decode(data) {
        assert_eq!(Expired::decode(&expired.encode()), Some(expired));
    }
    let Ok((header, seed)) = Header::decode(data) else {
        assert!(scan_bytes(data, |_, _| panic!("a record without a header")).is_err());
        opened(data, SegmentId { epoch: 1, number: 0 });
        return;
    };
    let (mut again, _) = header.encode();
    let mut entries = Vec::new();
    let scan = scan_bytes(data, |at, record| {
        assert_eq!(at, again.len() as u64);
        record.encode(seed, &mut again);
        assert!(
            Record::decode(&again[usize::try_from(at).expect("a place in memory")..], seed) == Ok(*record)
        );
        assert_eq!(
            record.to_entry().is_none(),
            matches!(record.kind, RecordKind::NotStored | RecordKind::End)
        );
        entries.extend(record.to_entry());
    });
    let scan = scan.expect("the header was good");
    assert!(data.starts_with(&again) && scan.facts.bytes == again.len() as u64);
    assert_eq!(scan.broken.is_none(), again.len() == data.len());
    let alone = scan_bytes(&again, |_, _| {});
    assert_eq!(alone, Ok(Scan { broken: None, ..scan.clone() }));
    check_reading(data, &header, &scan, &entries);
}

/// A spool that finds these bytes under the right name.
fn check_reading(data: &[u8], header: &Header, scan: &Scan, entries: &[SpoolEntry]) {
    let Some((_directory, spool, cut_bytes)) = opened(data, header.id) else { return };
    // Opening a spool trusts a segment whose last record is good; readers find damage inside.
    assert!(cut_bytes == data.len() as u64 - scan.facts.bytes || cut_bytes == 0);
    let mut reader = spool.reader(HistoryStart::Oldest, |_| 0).expect("the files can be read");
    let mut read = Vec::new();
    while let Some(item) = reader.next().expect("the files can be read") {
        if let SpoolItem::Entry(entry) = item {
            read.push(entry);
        }
    }
    // A schema that was appended twice is read once.
    let mut expected: Vec<SpoolEntry> = Vec::new();
    for entry in entries {
        let last = expected.iter().rev().find(|known| known.kind == entry.kind && known.key == entry.key);
        let is_repeated =
            entry.kind == EntryKind::Schema && last.is_some_and(|last| last.payload == entry.payload);
        if !is_repeated {
            expected.push(entry.clone());
        }
    }
    assert_eq!(read, expected);
}

/// Opens a spool with this one segment: its directory, and how much was cut off. `None` when the
/// segment was set aside or removed: then the file either has another name, or was too short to
/// hold a record.
fn opened(data: &[u8], id: SegmentId) -> Option<(TempDir, Spool, u64)> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(id.to_string());
    fs::write(&path, data).expect("a file");
    let (spool, _writer, recovery) =
        Spool::open(options(directory.path()), BootId([1; 16]), 2).expect("a spool");
    if recovery.segments == 1 {
        return Some((directory, spool, recovery.cut_bytes));
    }
    let aside = directory.path().join(format!("{id}.bad"));
    if recovery.set_aside == 1 {
        assert_eq!(fs::read(aside).expect("the file under another name"), data);
    } else {
        assert!((data.len() as u64) < HEADER_BYTES && !path.exists());
    }
    None
}

fn options(directory: &Path) -> SpoolOptions {
    SpoolOptions {
        directory: directory.to_owned(),
        max_bytes: u64::MAX,
        segment_bytes: 1 << 20,
        max_age: Duration::from_secs(u64::MAX),
        sync_interval: Duration::from_secs(1),
    }
}
