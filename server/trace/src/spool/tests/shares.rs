//! Tests of shares: what accounts have of segments, closed, torn, damaged and expired.

use std::os::unix::fs::FileExt as _;

use super::*;

/// Shares of one account.
fn of(account: &str, bytes: u64) -> Shares {
    let mut shares = Shares::default();
    shares.add(&account.into(), bytes);
    shares
}

/// Every record with events is of `uid:9`, with one byte.
fn attribute(record: &Record<'_>) -> Shares {
    if record.kind == RecordKind::Entry(EntryKind::Events) { of("uid:9", 1) } else { Shares::default() }
}

fn open_again(path: &Path) -> (Spool, SpoolWriter, Recovery) {
    Spool::open(options(path), BOOT, NOW_NS, &mut attribute).unwrap()
}

/// A spool of three segments, two of them closed, in which an account has 10 bytes of each entry.
fn three_segments() -> (TempDir, Spool, SpoolWriter, u64) {
    let (directory, spool, mut writer) = fresh();
    let mut entries = 0;
    while spool.stats().segments < 3 {
        writer.append_of(&events(entries, 1, 200), &[], &of("uid:1", 10)).unwrap();
        entries += 1;
    }
    writer.flush().unwrap();
    (directory, spool, writer, entries)
}

#[test]
fn a_closed_segment_says_what_accounts_have() {
    let (directory, spool, writer, entries) = three_segments();
    assert_eq!((spool.held("uid:1"), spool.held("uid:2")), (10 * entries, 0));
    writer.close().unwrap();
    drop(spool);
    let (spool, _writer, recovery) = open_again(&directory.path().join("spool"));
    assert_eq!((spool.held("uid:1"), spool.held("uid:9")), (10 * entries, 0));
    assert_eq!((recovery.events, recovery.cut_bytes), (entries, 0));
    assert_eq!(read(&spool, Position::Beginning).len() as u64, entries + 2, "readers do not see the record");
}

#[test]
fn a_torn_segment_is_attributed_anew() {
    let (directory, _spool, _writer, entries) = three_segments();
    let copy = crashed(&directory.path().join("spool"));
    let (spool, writer, _) = open_again(copy.path());
    let torn = spool.held("uid:9");
    assert!(torn > 0);
    assert_eq!(spool.held("uid:1"), 10 * (entries - torn), "the other two were closed");
    drop((spool, writer));
    let (spool, ..) = open_again(copy.path());
    assert_eq!((spool.held("uid:1"), spool.held("uid:9")), (10 * (entries - torn), torn));
}

/// Damage of the record before the last one: the rest of the segment stays as it was.
#[test]
fn damaged_shares_are_attributed_anew() {
    let (directory, spool, writer, entries) = three_segments();
    writer.close().unwrap();
    drop(spool);
    let path = directory.path().join("spool");
    let first = &files(&path, ".seg")[0];
    let length = first.metadata().unwrap().len();
    let file = std::fs::File::options().write(true).open(first).unwrap();
    file.write_all_at(b"!", length - segment::END_BYTES - 1).unwrap();
    let (spool, _writer, recovery) = open_again(&path);
    assert_eq!((recovery.events, recovery.cut_bytes), (entries, 0), "nothing is cut off");
    let anew = spool.held("uid:9");
    assert!(anew > 0 && spool.held("uid:1") == 10 * (entries - anew));
    assert_eq!(file.metadata().unwrap().len(), length);
}

#[test]
fn shares_expire_with_their_segment_and_count_against_its_limit() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    // Each entry is of another account, whose name takes its own room.
    for entry in 0..2000 {
        let account = format!("uri:spiffe://example/{entry:0>60}");
        writer.append_of(&events(entry, 1, 100), &[], &of(&account, 100)).unwrap();
        assert!(spool.stats().bytes <= 64 << 10);
    }
    writer.flush().unwrap();
    for file in files(&path, ".seg") {
        assert!(file.metadata().unwrap().len() <= 4 << 10);
    }
    let held = |entry: u64| spool.held(&format!("uri:spiffe://example/{entry:0>60}"));
    let (oldest, _) = spool.stats().oldest.unwrap();
    assert_eq!((held(0), held(oldest.sequence - 1), held(oldest.sequence), held(1999)), (0, 0, 100, 100));
    // An entry that has room only without its shares is refused, and not stored without them.
    let large = events(2000, 1, (4 << 10) - 300);
    writer.append_of(&large, &[], &Shares::default()).unwrap();
    let error =
        writer.append_of(&events(2001, 1, (4 << 10) - 300), &[], &of(&"x".repeat(200), 1)).unwrap_err();
    assert!(matches!(error, AppendError::TooLarge { .. }), "{error}");
}
