//! Tests of failures: full disks, missing or broken files, and mistakes of callers.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Instant;

use super::*;

#[test]
fn a_full_disk_costs_the_history_only_and_is_told() {
    let (directory, spool, mut writer) = fresh();
    writer.append(&events(0, 5, 100), &[]).unwrap();
    writer.flush().unwrap();
    writer.append(&events(5, 5, 100), &[]).unwrap();
    // A file that cannot be written to acts as a full disk.
    let segment = &files(&directory.path().join("spool"), ".seg")[0];
    let readable = Arc::new(fs::File::open(segment).unwrap());
    let file = {
        let mut state = spool.shared.lock();
        std::mem::replace(&mut state.tail.as_mut().unwrap().file, readable)
    };
    let error = writer.flush().unwrap_err().to_string();
    assert!(error.starts_with("cannot write `") && error.contains(".seg`: "), "{error}");
    for sequence in [10, 15] {
        assert_eq!(writer.append(&events(sequence, 5, 100), &[]), Err(AppendError::Failing(error.clone())));
    }
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-5", "readers get what is stored");
    let stats = writer.stats();
    assert_eq!((stats.failing, stats.not_stored_events), (true, 10));
    assert_eq!(
        (stats.events, stats.unwritten_events),
        (5, 5),
        "what readers get, and what waits for the disk"
    );
    assert_eq!(stats.last_error, Some(error));
    let now = Instant::now();
    assert!(writer.tick(now, NOW_NS).is_err());
    assert!(writer.append(&events(20, 5, 100), &[]).is_err());

    spool.shared.lock().tail.as_mut().unwrap().file = file;
    writer.tick(now, NOW_NS).unwrap();
    assert!(writer.stats().failing, "it rests for a second");
    writer.tick(now + Duration::from_secs(1), NOW_NS).unwrap();
    writer.append(&events(25, 5, 100), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-5 e5-10 n10-25 e25-30");
    let stats = writer.stats();
    assert_eq!((stats.failing, stats.not_stored_events, stats.errors), (false, 15, 2));
    assert_eq!(stats.last_error, None, "it stores again");
    assert_eq!((stats.events, stats.unwritten_events), (15, 0));
}

/// The disk is full for an hour. The clock of the test goes from one tick to the next.
#[test]
fn a_full_disk_is_tried_ever_more_rarely() {
    let (directory, spool, mut writer) = fresh();
    writer.append(&events(0, 5, 100), &[]).unwrap();
    let segment = &files(&directory.path().join("spool"), ".seg")[0];
    let readable = Arc::new(fs::File::open(segment).unwrap());
    let file = std::mem::replace(&mut spool.shared.lock().tail.as_mut().unwrap().file, readable);
    let begun = Instant::now();
    let (mut now, mut waits, mut sequence) = (begun, Vec::new(), 5);
    while now < begun + Duration::from_hours(1) {
        let wait = writer.next_tick(now, NOW_NS).unwrap();
        now += wait;
        waits.push(wait.as_secs());
        // The first one is that of an entry that waits for its sync.
        assert!(writer.tick(now, NOW_NS).is_err());
        for _ in 0..10 {
            assert!(matches!(writer.append(&events(sequence, 1, 100), &[]), Err(AppendError::Failing(_))));
            sequence += 1;
        }
    }
    assert_eq!(waits[1..8], [1, 2, 4, 8, 16, 30, 30], "{waits:?}");
    assert!(waits.len() < 130, "{} attempts in an hour", waits.len());
    spool.shared.lock().tail.as_mut().unwrap().file = file;
    now += writer.next_tick(now, NOW_NS).unwrap();
    writer.tick(now, NOW_NS).unwrap();
    writer.append(&events(sequence, 1, 100), &[]).unwrap();
    let expected = format!("| e0-5 n5-{sequence} e{sequence}-{}", sequence + 1);
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), expected);
    // The disk works again: after the next error the writer waits as long as after the first one.
    now += Duration::from_secs(2);
    writer.tick(now, NOW_NS).unwrap();
    assert_eq!(writer.next_tick(now, NOW_NS).map(|wait| wait > Duration::from_secs(30)), Some(true));
}

#[test]
fn a_segment_that_can_not_be_begun_is_begun_later() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    let name = SegmentId { epoch: spool.stats().end.epoch, number: 0 }.to_string();
    symlink("/dev/full", path.join(&name)).unwrap();
    let error = writer.append(&events(0, 1, 10), &[]).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    assert!(writer.append(&loss(1), &[]).is_err());
    writer.tick(Instant::now(), NOW_NS).unwrap();
    writer.append(&events(1, 1, 10), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| n0-1 e1-2");
}

#[test]
fn a_report_of_lost_events_that_was_not_stored_is_told() {
    let (directory, spool, mut writer) = fresh();
    writer.append(&events(0, 2, 10), &[]).unwrap();
    assert_eq!(writer.append(&loss(2), &[9]), Err(AppendError::UnknownSchema(9)));
    writer.append(&events(2, 2, 10), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-2 n2-2 e2-4");
    // At the end of the run too.
    assert_eq!(writer.append(&events(4, 2, 10), &[9]), Err(AppendError::UnknownSchema(9)));
    assert_eq!(writer.stats().not_stored_events, 2);
    writer.close().unwrap();
    drop(spool);
    let (spool, ..) = open(&directory.path().join("spool"));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-2 n2-2 e2-4 n4-6 |clean");
}

#[test]
fn the_last_events_of_a_run_can_be_not_stored() {
    let (directory, spool, mut writer) = fresh();
    writer.append(&events(0, 2, 10), &[]).unwrap();
    writer.note_log_end(2);
    assert_eq!(writer.stats().not_stored_events, 0);
    writer.note_log_end(7);
    assert_eq!(writer.stats().not_stored_events, 5);
    writer.close().unwrap();
    drop(spool);
    let (spool, ..) = open(&directory.path().join("spool"));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-2 n2-7 |clean");
}

#[test]
fn events_that_were_not_handed_over_are_not_stored() {
    let (_directory, spool, mut writer) = fresh();
    writer.append(&events(7, 3, 10), &[]).unwrap();
    writer.append(&SpoolEntry { sequence: 1 << 40, ..events(0, 1, 10) }, &[]).unwrap();
    let expected = format!("| n0-7 e7-10 n10-{} e{0}-{1}", 1_u64 << 40, (1_u64 << 40) + 1);
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), expected);
    assert_eq!(spool.stats().not_stored_events, 7 + (1 << 40) - 10);
}

#[test]
fn mistakes_of_the_caller_are_refused() {
    let (_directory, spool, mut writer) = fresh();
    writer.append(&events(0, 5, 10), &[]).unwrap();
    let found = |found| Err(AppendError::OutOfOrder { expected: 5, found });
    assert_eq!(writer.append(&events(4, 5, 10), &[]), found(4));
    let last = SpoolEntry { sequence: u64::MAX, ..events(0, 1, 10) };
    assert_eq!(writer.append(&last, &[]), found(u64::MAX));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-5");
    let (bytes, limit) = (5000 + 52, (4 << 10) - 64 - 96);
    assert_eq!(writer.append(&events(5, 1, 5000), &[]), Err(AppendError::TooLarge { bytes, limit }));
    writer.append(&events(6, 1, 10), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-5 n5-6 e6-7");
}

#[test]
fn the_largest_entry_fills_a_segment() {
    let (_directory, spool, mut writer) = fresh();
    let limit = (4 << 10) - 64 - 96 - 52;
    writer.append(&events(0, 1, limit), &[]).unwrap();
    writer.append(&events(1, 1, limit), &[]).unwrap();
    assert!(writer.append(&events(2, 1, limit + 1), &[]).is_err());
    writer.flush().unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-1 e1-2");
    assert_eq!(spool.stats().segments, 2);
}

#[test]
fn one_daemon_writes() {
    let (directory, spool, writer) = fresh();
    let path = directory.path().join("spool");
    let error = Spool::open(options(&path), BOOT, NOW_NS).unwrap_err();
    assert!(matches!(&error, SpoolError::InUse { .. }), "{error}");
    drop((spool, writer));
    assert!(Spool::open(options(&path), BOOT, NOW_NS).is_ok());
}

#[test]
fn a_run_that_was_killed_is_told_apart() {
    let (directory, spool, mut writer) = fresh();
    writer.append(&events(0, 5, 100), &[]).unwrap();
    writer.flush().unwrap();
    writer.append(&events(5, 5, 100), &[]).unwrap();
    let copy = crashed(&directory.path().join("spool"));
    let end = spool.stats().end;
    let (spool, mut writer, recovery) = open(copy.path());
    assert_eq!(recovery, Recovery { segments: 1, events: 5, ..Recovery::default() });
    writer.append(&events(0, 1, 100), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-5 |torn e0-1");
    // A client that has seen more than what reached the disk.
    assert_eq!(brief(&read(&spool, HistoryStart::Cursor(end))), "| |torn e0-1");
}

/// Three segments of a run that was closed.
fn three_segments() -> (TempDir, std::path::PathBuf) {
    let (directory, spool, mut writer) = fresh();
    for sequence in 0..45 {
        writer.append(&events(sequence, 1, 200), &[]).unwrap();
    }
    assert_eq!(spool.stats().segments, 3);
    writer.close().unwrap();
    let path = directory.path().join("spool");
    (directory, path)
}

#[test]
fn a_broken_header_is_set_aside_and_its_events_are_damaged() {
    let (_directory, path) = three_segments();
    let middle = files(&path, ".seg")[1].clone();
    let mut bytes = fs::read(&middle).unwrap();
    bytes[20] ^= 1;
    fs::write(&middle, &bytes).unwrap();
    fs::write(path.join("notes.txt"), "not ours").unwrap();
    fs::write(path.join("1-2.seg"), "not our name").unwrap();
    for round in 0..2 {
        let (spool, writer, recovery) = open(&path);
        assert_eq!((recovery.segments, recovery.set_aside), (2, 1 - round));
        assert_eq!(recovery.reasons.len(), 1 - usize::try_from(round).unwrap(), "{recovery:?}");
        let items = brief(&read(&spool, HistoryStart::Oldest));
        assert!(items.contains("e14-15 d15-30 e30-31"), "{items}");
        writer.close().unwrap();
    }
    assert_eq!(fs::read(files(&path, ".bad")[0].clone()).unwrap(), bytes);
    assert!(path.join("notes.txt").exists() && path.join("1-2.seg").exists());
}

#[test]
fn a_bit_that_turns_round_later_costs_the_rest_of_its_segment() {
    let (_directory, path) = three_segments();
    let middle = files(&path, ".seg")[1].clone();
    let mut bytes = fs::read(&middle).unwrap();
    bytes[64 + 3 * 252 + 100] ^= 4;
    fs::write(&middle, &bytes).unwrap();
    let (spool, _writer, recovery) = open(&path);
    assert_eq!(recovery.segments, 3, "its last record is good, and is believed");
    assert_eq!(spool.stats().damaged, Vec::<String>::new(), "no reader has come to it");
    let items = brief(&read(&spool, HistoryStart::Oldest));
    assert!(items.contains("e17-18 d18-30 e30-31"), "{items}");
    let name = middle.file_name().unwrap().to_str().unwrap();
    let told = [format!("{name}: it cannot be read to its end: the checksum is wrong")];
    assert_eq!(spool.stats().damaged, told);
    let cursor = Cursor { boot_id: BOOT, epoch: NOW_NS, sequence: 20 };
    let items = brief(&read(&spool, HistoryStart::Cursor(cursor)));
    assert!(items.starts_with("| d20-30 e30-31"), "{items}");
    assert_eq!(spool.stats().damaged, told, "once, for any number of readers");
    spool.shared.lock().expire_before(&spool.shared.files, u64::MAX);
    assert_eq!(spool.stats().damaged, Vec::<String>::new(), "it has expired");
}

#[test]
fn a_segment_that_somebody_removes_is_damaged() {
    let (_directory, path) = three_segments();
    let (spool, ..) = open(&path);
    fs::remove_file(&files(&path, ".seg")[1]).unwrap();
    let items = brief(&read(&spool, HistoryStart::Oldest));
    assert!(items.contains("e14-15 d15-30 e30-31"), "{items}");
}

#[test]
fn a_segment_under_another_name_is_set_aside() {
    let (_directory, path) = three_segments();
    let segments = files(&path, ".seg");
    fs::rename(&segments[2], path.join(SegmentId { epoch: 5, number: 0 }.to_string())).unwrap();
    let (_spool, _writer, recovery) = open(&path);
    assert_eq!((recovery.segments, recovery.set_aside), (2, 1));
    assert!(recovery.reasons[0].contains("under another name"), "{recovery:?}");
}

#[test]
fn an_expiry_that_was_cut_short_is_carried_on() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    for sequence in 0..45 {
        writer.append(&events(sequence, 1, 200), &[]).unwrap();
    }
    writer.flush().unwrap();
    let before = crashed(&path);
    for sequence in 45..400 {
        writer.append(&events(sequence, 1, 200), &[]).unwrap();
    }
    let first = spool.stats().oldest.unwrap().0.sequence;
    writer.close().unwrap();
    drop(spool);
    let oldest = files(before.path(), ".seg")[0].clone();
    fs::copy(&oldest, path.join(oldest.file_name().unwrap())).unwrap();
    let (spool, ..) = open(&path);
    let items = brief(&read(&spool, HistoryStart::Oldest));
    assert!(items.starts_with(&format!("| x0-{first} e{first}-")), "{items}");
    assert!(!path.join(oldest.file_name().unwrap()).exists());
}

#[test]
fn a_list_of_what_has_gone_that_can_not_be_read_is_set_aside() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    for sequence in 0..400 {
        writer.append(&events(sequence, 1, 200), &[]).unwrap();
    }
    let first = spool.stats().oldest.unwrap().0.sequence;
    writer.close().unwrap();
    drop(spool);
    fs::write(path.join("expired"), "x").unwrap();
    let (spool, _writer, recovery) = open(&path);
    assert_eq!(recovery.set_aside, 1);
    let items = brief(&read(&spool, HistoryStart::Oldest));
    assert!(
        items.starts_with(&format!("| x0-{first} e{first}-")),
        "what has gone of the oldest run is still plain: {items}"
    );
}

/// Changes a byte of a file.
fn damage(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0x55], at).unwrap();
}

/// Three runs that end in order, of four events each.
fn three_runs() -> (TempDir, Vec<std::path::PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let (_spool, mut writer, _) = open(directory.path());
        writer.append(&events(0, 2, 100), &[]).unwrap();
        writer.append(&events(2, 2, 100), &[]).unwrap();
        writer.close().unwrap();
    }
    let segments = files(directory.path(), ".seg");
    assert_eq!(segments.len(), 3);
    (directory, segments)
}

#[test]
fn a_run_that_was_set_aside_is_missing_for_every_reader() {
    let (directory, segments) = three_runs();
    let second = SegmentId::parse(segments[1].file_name().unwrap().to_str().unwrap()).unwrap().epoch;
    damage(&segments[1], 41);
    for start in ["the one that set it aside", "a later one"] {
        let (spool, writer, _) = open(directory.path());
        let whole = "| e0-2 e2-4 |clean d?-? e0-2 e2-4 |clean";
        assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), whole, "{start}");
        assert_eq!(brief(&read(&spool, HistoryStart::SinceWall(0))), whole, "{start}");
        assert_eq!(brief(&read(&spool, HistoryStart::Last(100))), whole, "{start}");
        let cursor = Cursor { boot_id: BOOT, epoch: second, sequence: 1 };
        let told = brief(&read(&spool, HistoryStart::Cursor(cursor)));
        assert_eq!(told, "|clean d1-4 |clean e0-2 e2-4 |clean", "{start}");
        let [reason] = spool.stats().damaged.try_into().unwrap();
        assert!(reason.contains(".seg"), "{start}: {reason}");
        writer.close().unwrap();
    }
    fs::remove_file(&files(directory.path(), ".bad")[0]).unwrap();
    let (spool, ..) = open(directory.path());
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| e0-2 e2-4 |clean e0-2 e2-4 |clean");
    assert!(spool.stats().damaged.is_empty());
}

#[test]
fn the_oldest_and_the_newest_can_be_set_aside() {
    let (directory, segments) = three_runs();
    damage(&segments[0], 41);
    damage(&segments[2], 41);
    let (spool, ..) = open(directory.path());
    for from in [HistoryStart::Oldest, HistoryStart::SinceWall(0)] {
        assert_eq!(brief(&read(&spool, from)), "|clean d?-? e0-2 e2-4 |clean d?-?", "{from:?}");
    }
    // Nothing else is left.
    damage(&segments[1], 41);
    drop(spool);
    let (spool, ..) = open(directory.path());
    for from in [HistoryStart::Oldest, HistoryStart::SinceWall(0)] {
        assert_eq!(brief(&read(&spool, from)), "|clean d?-?", "{from:?}");
    }
}

#[test]
fn the_first_segment_of_a_run_can_be_set_aside() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    for sequence in 0..6 {
        writer.append(&events(sequence, 1, 1500), &[]).unwrap();
    }
    writer.close().unwrap();
    drop(spool);
    let segments = files(&path, ".seg");
    assert!(segments.len() > 2);
    damage(&segments[0], 41);
    let (spool, ..) = open(&path);
    assert!(brief(&read(&spool, HistoryStart::Oldest)).starts_with("| d0-2 e2-3 "));
    assert!(brief(&read(&spool, HistoryStart::SinceWall(0))).starts_with("| d?-? e2-3 "));
}

#[test]
fn a_damaged_end_is_not_taken_for_a_run_that_was_killed() {
    let (directory, segments) = three_runs();
    let bytes = fs::metadata(&segments[1]).unwrap().len();
    fs::File::options().write(true).open(&segments[1]).unwrap().set_len(bytes / 2).unwrap();
    for start in ["the one that cuts it", "a later one"] {
        let (spool, ..) = open(directory.path());
        let told = brief(&read(&spool, HistoryStart::Oldest));
        assert_eq!(told, "| e0-2 e2-4 |clean e0-2 d2-4 |clean e0-2 e2-4 |clean", "{start}");
    }
}
