//! Tests of limits: removal of segments by size and by age.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use super::*;

fn fill(writer: &mut SpoolWriter, from: u64, to: u64) {
    for sequence in from..to {
        writer.append(&events(sequence, 1, 200), &[]).unwrap();
    }
}

/// Bytes of all files of a spool.
fn disk_bytes(directory: &Path) -> u64 {
    files(directory, ".seg").iter().map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn the_oldest_segments_go_first_and_are_remembered() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    for step in 0..100 {
        fill(&mut writer, step * 10, (step + 1) * 10);
        assert!(disk_bytes(&path) <= 64 << 10);
        assert!(spool.stats().bytes <= 64 << 10);
    }
    writer.flush().unwrap();
    let stats = spool.stats();
    let (oldest, wall_ns) = stats.oldest.unwrap();
    assert_eq!(wall_ns, NOW_NS + oldest.sequence * SECOND_NS);
    assert_eq!((stats.expired_events, stats.events), (oldest.sequence, 1000 - oldest.sequence));
    assert!(oldest.sequence > 700, "{oldest:?}");
    assert!(stats.bytes > 56 << 10, "{} bytes: not more than a segment and a half is left free", stats.bytes);

    let first = oldest.sequence;
    let expected: Vec<_> = (first..1000).map(|sequence| format!("e{sequence}-{}", sequence + 1)).collect();
    let all = format!("| x0-{first} {}", expected.join(" "));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), all);
    let cursor = Cursor { sequence: 100, ..stats.end };
    assert_eq!(brief(&read(&spool, HistoryStart::Cursor(cursor))), all.replace("x0", "x100"));
    assert_eq!(brief(&read(&spool, HistoryStart::Last(1000))), all, "more was requested than is there");
    let since = brief(&read(&spool, HistoryStart::SinceWall(NOW_NS + 100 * SECOND_NS)));
    assert_eq!(since, format!("| x?-{first} {}", expected.join(" ")));
    let since = brief(&read(&spool, HistoryStart::SinceWall(NOW_NS + first * SECOND_NS)));
    assert_eq!(since, format!("| {}", expected.join(" ")), "nothing that was requested has gone");

    // The next run remembers it too.
    writer.close().unwrap();
    drop(spool);
    let (spool, _writer, recovery) = open(&path);
    assert_eq!((recovery.events, recovery.cut_segments), (1000 - first, 0));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), format!("{all} |clean"));
    assert_eq!(
        brief(&read(&spool, HistoryStart::Cursor(cursor))),
        format!("{} |clean", all.replace("x0", "x100"))
    );
    assert_eq!(spool.stats().expired_events, first);
}

#[test]
fn a_run_that_has_gone_is_told_with_its_number_of_events() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    fill(&mut writer, 0, 40);
    let old = spool.stats().end;
    writer.close().unwrap();
    drop(spool);
    let (spool, mut writer, _) = open(&path);
    fill(&mut writer, 0, 500);
    let first = spool.stats().oldest.unwrap().0.sequence;
    assert!(first > 0);
    let from = |sequence| brief(&read(&spool, HistoryStart::Cursor(Cursor { sequence, ..old })));
    let begins = |text: String, with: String| assert!(text.starts_with(&with), "{text}");
    begins(from(15), format!("| x15-40 |clean x0-{first} e{first}"));
    begins(from(40), format!("| |clean x0-{first} e{first}"));
    begins(brief(&read(&spool, HistoryStart::Oldest)), format!("| x0-40 |clean x0-{first} e{first}"));
    // The expired events of the later run are missing after its beginning.
    let items = read(&spool, HistoryStart::Cursor(Cursor { sequence: 15, ..old }));
    let starts = items.iter().filter_map(|item| match item {
        SpoolItem::EpochStart(start) => Some(start.at.sequence),
        _ => None,
    });
    assert_eq!(starts.collect::<Vec<_>>(), [15, 0]);
    assert_eq!(spool.stats().expired_events, 40 + first);
}

#[test]
fn a_reader_survives_the_segment_that_it_reads() {
    let (_directory, spool, mut writer) = fresh();
    fill(&mut writer, 0, 30);
    let mut reader = reader(&spool, HistoryStart::Oldest);
    let items: Vec<_> = (0..3).map(|_| reader.next().unwrap().unwrap()).collect();
    assert_eq!(brief(&items), "| e0-1 e1-2");
    fill(&mut writer, 30, 1000);
    let first = spool.stats().oldest.unwrap().0.sequence;
    let before = brief(&rest(&mut reader));
    // The segment that it keeps open, and not the second one that existed when it began.
    let held: u64 = before.split(' ').filter(|word| word.starts_with('e')).count() as u64 + 2;
    assert!(held > 10 && held < 30, "{before}");
    assert!(before.ends_with(&format!("x{held}-30")), "{before}");
    reader.extend();
    let after = brief(&rest(&mut reader));
    assert!(after.starts_with(&format!("x30-{first} e{first}-")), "{after}");
    assert!(after.ends_with("e999-1000"));
}

#[test]
fn what_is_too_old_goes() {
    let (directory, spool, mut writer) = fresh();
    fill(&mut writer, 0, 10);
    let start = Instant::now();
    let later = |seconds: u64| (start + Duration::from_secs(seconds), NOW_NS + seconds * SECOND_NS);
    // A 16th of the hour: the segment is closed, and another one begins with the next entry.
    let (now, wall_ns) = later(230);
    writer.tick(now, wall_ns).unwrap();
    assert_eq!(spool.stats().segments, 1);
    assert_eq!(writer.next_tick(now, wall_ns).unwrap().as_secs(), 3600 + 9 - 230);
    writer.append(&events(10, 1, 200), &[]).unwrap();
    assert_eq!(spool.stats().segments, 2);
    // The first one's last event is of second 9.
    let (now, wall_ns) = later(3608);
    writer.tick(now, wall_ns).unwrap();
    assert_eq!(spool.stats().segments, 2);
    let (now, wall_ns) = later(3610);
    writer.tick(now, wall_ns).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| x0-10 e10-11");
    let (now, wall_ns) = later(3630);
    writer.tick(now, wall_ns).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| x0-11");
    assert_eq!((spool.stats().segments, spool.stats().bytes), (0, 0));
    assert_eq!(writer.next_tick(now, wall_ns), None, "idle is idle");
    writer.append(&events(11, 1, 200), &[]).unwrap();
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| x0-11 e11-12");
    writer.close().unwrap();
    drop(spool);
    let (spool, ..) = open(&directory.path().join("spool"));
    assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), "| x0-11 e11-12 |clean");
}

#[test]
fn syncing_is_due_when_something_was_written() {
    let (_directory, spool, mut writer) = fresh();
    let now = Instant::now();
    assert_eq!(writer.next_tick(now, NOW_NS), None);
    fill(&mut writer, 0, 1);
    let due = writer.next_tick(now, NOW_NS).unwrap();
    assert!(due <= Duration::from_secs(1), "{due:?}");
    writer.tick(now + Duration::from_secs(2), NOW_NS).unwrap();
    let closed = writer.next_tick(now, NOW_NS).unwrap();
    assert_eq!(closed.as_secs(), 225, "only its age is left");
    assert_eq!(spool.stats().errors, 0);
}

#[test]
fn the_limit_can_be_lowered() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    fill(&mut writer, 0, 200);
    writer.close().unwrap();
    drop(spool);
    let options = SpoolOptions { max_bytes: 8 << 10, ..options(&path) };
    let (spool, ..) = Spool::open(options, BOOT, NOW_NS).unwrap();
    assert!(disk_bytes(&path) <= 8 << 10);
    let stats = spool.stats();
    assert_eq!(stats.expired_events + stats.events, 200);
    assert!(stats.events > 0);
}

#[test]
fn a_run_without_entries_leaves_no_file() {
    let (directory, spool, writer) = fresh();
    writer.close().unwrap();
    drop(spool);
    assert!(files(&directory.path().join("spool"), "").is_empty());
}

#[test]
fn a_clock_that_goes_back_does_not_turn_history_round() {
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    fill(&mut writer, 0, 1);
    let first = spool.stats().end.epoch;
    writer.close().unwrap();
    drop(spool);
    let (spool, ..) = Spool::open(options(&path), BOOT, NOW_NS - 5).unwrap();
    assert_eq!((first, spool.stats().end.epoch), (NOW_NS, NOW_NS + 1));
}

#[test]
fn nobody_else_reads_the_files() {
    let (directory, _spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    fill(&mut writer, 0, 1000);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files = files(&path, "");
    assert!(files.iter().any(|file| file.ends_with("expired")));
    assert!(files.iter().all(|file| mode(file) == 0o600));
}

#[test]
fn the_options_of_a_small_spool_hold_together() {
    let whole = |mib: u64| {
        SpoolOptions::new(Path::new("/x"), mib << 20, Duration::ZERO, Duration::ZERO).segment_bytes >> 20
    };
    assert_eq!([256, 16, 4, 1].map(whole), [16, 1, 1, 1]);
}
