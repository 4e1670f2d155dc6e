//! Tests of readers: from every kind of position, also while entries are appended.

use std::thread;

use super::*;

fn filled() -> (TempDir, Spool, SpoolWriter) {
    let (directory, spool, mut writer) = fresh();
    writer.append(&schema(1, "one"), &[]).unwrap();
    writer.append(&schema(2, "two"), &[]).unwrap();
    writer.append(&events(0, 10, 100), &[1]).unwrap();
    writer.append(&loss(10), &[]).unwrap();
    writer.append(&events(10, 10, 100), &[1, 2]).unwrap();
    writer.append(&events(20, 1, 0), &[2]).unwrap();
    (directory, spool, writer)
}

fn at(spool: &Spool, sequence: u64) -> HistoryStart {
    HistoryStart::Cursor(Cursor { sequence, ..spool.stats().end })
}

/// Whatever runs wrote it and however they ended, and not what has expired.
#[test]
fn the_highest_owner_of_all_schemas_is_known() {
    let owned = |key, owner| SpoolEntry { first_ns: owner, ..schema(key, "what") };
    let (directory, spool, mut writer) = fresh();
    let path = directory.path().join("spool");
    assert_eq!(spool.highest_owner(), 0);
    writer.append(&owned(1, 812), &[]).unwrap();
    assert_eq!(spool.highest_owner(), 0, "it has no event yet");
    writer.append(&events(0, 3, 5), &[1]).unwrap();
    assert_eq!(spool.highest_owner(), 812);
    writer.close().unwrap();
    drop(spool);
    let (spool, mut writer, _) = open(&path);
    assert_eq!(spool.highest_owner(), 812);
    writer.append(&owned(1, 7), &[]).unwrap();
    writer.append(&owned(2, 813), &[]).unwrap();
    writer.append(&events(0, 3, 5), &[1, 2]).unwrap();
    writer.flush().unwrap();
    drop((spool, writer));
    // The second run was killed.
    let (spool, writer, _) = open(&path);
    assert_eq!(spool.highest_owner(), 813);
    drop((spool, writer));
    let later = NOW_NS + 2 * 3600 * SECOND_NS;
    let (spool, _writer, _) = Spool::open(options(&path), BOOT, later).unwrap();
    assert_eq!(spool.highest_owner(), 0, "nothing of them is kept");
}

#[test]
fn entries_come_back_as_they_were_put_in() {
    let (_directory, spool, _writer) = filled();
    let items = read(&spool, HistoryStart::Oldest);
    assert_eq!(brief(&items), "| s1 e0-10 l10 s2 e10-20 e20-21");
    let entries: Vec<_> = items
        .into_iter()
        .filter_map(|item| match item {
            SpoolItem::Entry(entry) if entry.kind != EntryKind::Schema => Some(entry),
            _ => None,
        })
        .collect();
    assert_eq!(entries, [events(0, 10, 100), loss(10), events(10, 10, 100), events(20, 1, 0)]);
}

#[test]
fn a_cursor_gives_what_was_missed() {
    let (_directory, spool, _writer) = filled();
    let from = |sequence| brief(&read(&spool, at(&spool, sequence)));
    assert_eq!(from(0), "| s1 e0-10 l10 s2 e10-20 e20-21");
    assert_eq!(from(5), "| s1 e0-10 l10 s2 e10-20 e20-21", "the client trims an entry that it has a part of");
    assert_eq!(from(10), "| s1 l10 s2 e10-20 e20-21", "nobody knows whether it has the loss");
    assert_eq!(from(11), "| s1 s2 e10-20 e20-21");
    assert_eq!(from(20), "| s1 s2 e20-21");
    assert_eq!(from(21), "| s1 s2");
}

#[test]
fn a_cursor_ahead_of_the_spool_waits_for_its_event() {
    let (_directory, spool, mut writer) = filled();
    let mut reader = reader(&spool, at(&spool, 25));
    assert_eq!(brief(&rest(&mut reader)), "| s1 s2");
    writer.append(&events(21, 4, 10), &[1]).unwrap();
    writer.append(&events(25, 4, 10), &[1]).unwrap();
    assert_eq!(reader.extend().sequence, 29);
    assert_eq!(brief(&rest(&mut reader)), "e25-29");
}

#[test]
fn a_cursor_of_another_host_is_refused() {
    let (_directory, spool, _writer) = filled();
    let end = spool.stats().end;
    for foreign in [Cursor { boot_id: BootId([8; 16]), ..end }, Cursor { epoch: end.epoch + 1, ..end }] {
        let error = spool.reader(HistoryStart::Cursor(foreign), |_| 0).unwrap_err();
        assert!(matches!(error, SpoolError::ForeignCursor { cursor, .. } if cursor == foreign), "{error}");
    }
}

#[test]
fn a_cursor_of_a_run_that_nobody_remembers_is_told_so() {
    let (_directory, spool, _writer) = filled();
    let old = Cursor { boot_id: BootId([8; 16]), epoch: 5, sequence: 44 };
    let items = read(&spool, HistoryStart::Cursor(old));
    assert_eq!(brief(&items), "| x44-? | s1 e0-10 l10 s2 e10-20 e20-21");
    let [SpoolItem::EpochStart(start), SpoolItem::Missing(missing)] = items[..2] else { panic!("{items:?}") };
    assert_eq!((start.at, missing.events()), (old, None));
}

#[test]
fn times_and_counts_find_their_entry() {
    let (_directory, spool, _writer) = filled();
    let since = |second: u64| brief(&read(&spool, HistoryStart::SinceWall(NOW_NS + second * SECOND_NS)));
    assert_eq!(since(0), "| s1 e0-10 l10 s2 e10-20 e20-21");
    assert_eq!(since(9), "| s1 e0-10 l10 s2 e10-20 e20-21");
    assert_eq!(since(10), "| s1 s2 e10-20 e20-21");
    assert_eq!(since(20), "| s1 s2 e20-21");
    assert_eq!(since(21), "| s1 s2", "ready for what comes");
    let last = |events| brief(&read(&spool, HistoryStart::Last(events)));
    assert_eq!(last(0), "| s1 s2");
    assert_eq!(last(1), "| s1 s2 e20-21");
    assert_eq!(last(2), "| s1 l10 s2 e10-20 e20-21");
    assert_eq!(last(12), "| s1 e0-10 l10 s2 e10-20 e20-21");
    assert_eq!(last(22), last(21));
}

#[test]
fn the_last_ones_can_be_counted_by_the_caller() {
    let (_directory, spool, mut writer) = filled();
    for sequence in 21..200 {
        writer.append(&events(sequence, 1, 100), &[2]).unwrap();
    }
    assert!(spool.stats().segments > 4);
    let mut shown = Vec::new();
    let mut reader = spool
        .reader(HistoryStart::Last(3), |entry| {
            shown.push((entry.kind, entry.sequence));
            u64::from(entry.kind == EntryKind::Events && entry.sequence % 50 == 0)
        })
        .unwrap();
    let entries = brief(&rest(&mut reader));
    assert!(entries.starts_with("| s2 e50-51 e51-52"), "{entries}");
    assert!(entries.ends_with("e199-200"), "{entries}");
    let sequences: Vec<_> =
        shown.iter().filter(|(kind, _)| *kind == EntryKind::Events).map(|(_, sequence)| *sequence).collect();
    assert_eq!(sequences, (50..200).rev().collect::<Vec<_>>(), "no more than needed, from the last one back");
}

#[test]
fn a_reader_goes_on_with_what_came_since() {
    let (_directory, spool, mut writer) = filled();
    let mut reader = reader(&spool, at(&spool, 20));
    assert_eq!(reader.end().sequence, 21);
    assert_eq!(brief(&rest(&mut reader)), "| s1 s2 e20-21");
    assert_eq!(reader.next().unwrap(), None);
    writer.append(&events(21, 1, 10), &[1]).unwrap();
    assert_eq!(reader.next().unwrap(), None, "not before it looks again");
    assert_eq!(reader.extend().sequence, 22, "what is in the writer's memory counts");
    assert_eq!(brief(&rest(&mut reader)), "e21-22");
    assert_eq!(reader.cursor(), reader.end());
    // Across segments.
    for sequence in 22..300 {
        writer.append(&events(sequence, 1, 100), &[1]).unwrap();
        if sequence % 7 == 0 {
            reader.extend();
        }
    }
    reader.extend();
    let entries: Vec<_> = (22..300).map(|sequence| format!("e{sequence}-{}", sequence + 1)).collect();
    assert_eq!(brief(&rest(&mut reader)), entries.join(" "));
}

#[test]
fn a_schema_that_was_replaced_is_given_again() {
    let (_directory, spool, mut writer) = filled();
    writer.append(&schema(1, "other"), &[]).unwrap();
    writer.append(&events(21, 1, 10), &[1]).unwrap();
    assert_eq!(brief(&read(&spool, at(&spool, 20))), "| s1 s2 e20-21 s1 e21-22");
    assert_eq!(writer.append(&events(22, 1, 10), &[3]), Err(AppendError::UnknownSchema(3)));
}

#[test]
fn every_segment_can_be_read_alone() {
    let (directory, _spool, mut writer) = filled();
    for sequence in 21..200 {
        writer.append(&events(sequence, 1, 100), &[1, 2]).unwrap();
    }
    writer.close().unwrap();
    let segments = files(&directory.path().join("spool"), ".seg");
    assert!(segments.len() > 4);
    for segment in segments {
        let mut known = Vec::new();
        let bytes = std::fs::read(&segment).unwrap();
        let scan = scan_bytes(&bytes, |_, record| match record.kind {
            RecordKind::Entry(EntryKind::Schema) => known.push(record.key),
            RecordKind::Entry(EntryKind::Events) if record.sequence > 20 => assert_eq!(known, [1, 2]),
            _ => {}
        });
        assert_eq!(scan.unwrap().facts.bytes, bytes.len() as u64);
    }
}

#[test]
fn readers_and_the_writer_do_not_disturb_each_other() {
    const ENTRIES: u64 = 3000;
    let (_directory, spool, mut writer) = fresh();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut reader = reader(&spool, HistoryStart::Oldest);
                let mut next = 0;
                while next < ENTRIES {
                    match reader.next().unwrap() {
                        Some(SpoolItem::Entry(entry)) => {
                            assert_eq!(entry, events(next, 1, 60));
                            next += 1;
                        }
                        Some(SpoolItem::Missing(missing)) => {
                            assert_eq!((missing.from, missing.cause), (Some(next), MissingCause::Expired));
                            next = missing.to.unwrap();
                        }
                        Some(SpoolItem::EpochStart(_)) => assert_eq!(next, 0),
                        None => assert!(reader.extend().sequence <= ENTRIES),
                    }
                }
                assert_eq!(reader.cursor().sequence, ENTRIES);
            });
        }
        for sequence in 0..ENTRIES {
            writer.append(&events(sequence, 1, 60), &[]).unwrap();
        }
    });
}
