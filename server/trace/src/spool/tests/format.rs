//! Tests of the format on disk: any bytes, and a cut at every byte.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn segment() -> Vec<u8> {
    let (directory, _spool, mut writer) = fresh();
    writer.append(&schema(1, "what"), &[]).unwrap();
    writer.append(&events(0, 3, 5), &[1]).unwrap();
    writer.append(&loss(3), &[]).unwrap();
    writer.append(&events(5, 3, 12), &[1]).unwrap();
    writer.close().unwrap();
    std::fs::read(&files(&directory.path().join("spool"), ".seg")[0]).unwrap()
}

/// Offsets and bytes of records.
type Records = Vec<(u64, Vec<u8>)>;

/// The records in some bytes, and the result of the scan.
fn records(bytes: &[u8]) -> Option<(Records, Scan)> {
    let (_, seed) = Header::decode(bytes).ok()?;
    let mut records = Vec::new();
    let scan = scan_bytes(bytes, |at, record| {
        let mut own = Vec::new();
        record.encode(seed, &mut own);
        records.push((at, own));
    });
    Some((records, scan.unwrap()))
}

#[test]
fn a_segment_cut_at_any_byte_gives_the_records_before() {
    let whole = segment();
    let (all, scan) = records(&whole).unwrap();
    assert_eq!((all.len(), scan.broken, scan.facts.ends_epoch), (6, None, true));
    assert_eq!(scan.facts.bytes, whole.len() as u64);
    for length in 0..whole.len() {
        let cut = &whole[..length];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SegmentId { epoch: NOW_NS, number: 0 }.to_string());
        std::fs::write(&path, cut).unwrap();
        let (spool, _writer, recovery) = open(directory.path());
        if length < usize::try_from(HEADER_BYTES).unwrap() {
            assert_eq!((recovery.segments, recovery.cut_bytes), (0, length as u64));
            assert!(records(cut).is_none() && !path.exists());
            continue;
        }
        let (found, scan) = records(cut).unwrap();
        let whole_ones = all.iter().filter(|(at, own)| at + own.len() as u64 <= length as u64).count();
        assert_eq!(found, all[..whole_ones]);
        let torn = length as u64 - scan.facts.bytes;
        assert_eq!((recovery.cut_bytes, recovery.cut_segments), (torn, u64::from(torn > 0)));
        assert_eq!((recovery.events, recovery.set_aside), (scan.facts.events, 0));
        let expected = ["", "s1 ", "s1 e0-3 ", "s1 e0-3 l3 ", "s1 e0-3 l3 n3-5 ", "s1 e0-3 l3 n3-5 e5-8 "];
        assert_eq!(brief(&read(&spool, HistoryStart::Oldest)), format!("| {}|torn", expected[whole_ones]));
    }
}

#[test]
fn the_end_was_cut_once_and_for_all() {
    let whole = segment();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(SegmentId { epoch: NOW_NS, number: 0 }.to_string());
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (_, _, first) = open(directory.path());
    let (_, _, second) = open(directory.path());
    assert_eq!((first.cut_segments, first.cut_bytes, first.events), (1, 95, 6));
    assert_eq!(second, Recovery { segments: 1, events: 6, ..Recovery::default() });
    let bytes = std::fs::read(&path).unwrap();
    let scan = scan_bytes(&bytes, |_, _| {}).unwrap();
    assert!(scan.facts.closed && !scan.facts.ends_epoch && scan.broken.is_none());
}

#[test]
fn a_record_of_another_segment_is_none_of_this_one() {
    let bytes = segment();
    let header = Header { created_wall_ns: 1, ..Header::decode(&bytes).unwrap().0 };
    let (mut other, _) = header.encode();
    other.extend_from_slice(&bytes[other.len()..]);
    let scan = scan_bytes(&other, |_, _| panic!("no record is good")).unwrap();
    assert_eq!(
        (scan.facts.bytes, scan.broken),
        (HEADER_BYTES, Some(Damage("the checksum is wrong".to_owned())))
    );
}

#[test]
fn a_record_out_of_its_place_is_refused() {
    let bytes = segment();
    let (all, _) = records(&bytes).unwrap();
    let without_second: Vec<u8> = bytes[..usize::try_from(all[1].0).unwrap()]
        .iter()
        .chain(&bytes[usize::try_from(all[2].0).unwrap()..])
        .copied()
        .collect();
    let scan = scan_bytes(&without_second, |_, _| {}).unwrap();
    let damage = "the record begins with event 3, where 0 is the next";
    assert_eq!(scan.broken, Some(Damage(damage.to_owned())));
    let twice = [bytes.as_slice(), all[5].1.as_slice()].concat();
    let scan = scan_bytes(&twice, |_, _| {}).unwrap();
    assert_eq!(scan.broken, Some(Damage("there are bytes behind the end".to_owned())));
}

#[test]
fn names_are_those_of_segments_only() {
    let id = SegmentId { epoch: NOW_NS, number: 12 };
    let name = id.to_string();
    assert_eq!(name, "01717200000000000000-00000000000000000012.seg");
    assert_eq!(SegmentId::parse(&name), Some(id));
    for other in
        ["", "expired", "1-2.seg", &name[1..], &name.replace(".seg", ".seg.bad"), &format!("+{}", &name[1..])]
    {
        assert_eq!(SegmentId::parse(other), None, "{other}");
    }
}

#[test]
fn another_version_is_not_read() {
    let mut bytes = segment();
    bytes[8] = 3;
    let damage = Header::decode(&bytes).unwrap_err().to_string();
    assert_eq!(damage, "it has version 3 of the format, which this kprobed does not read");
}

fn expired() -> impl Strategy<Value = Expired> {
    let epoch = (any::<[u8; 16]>(), any::<[u64; 4]>(), any::<bool>()).prop_map(
        |(boot_id, [epoch, last_segment, up_to, last_wall_ns], ended_cleanly)| ExpiredEpoch {
            boot_id: BootId(boot_id),
            epoch,
            last_segment,
            up_to,
            last_wall_ns,
            ended_cleanly,
        },
    );
    (any::<u64>(), vec(epoch, 0..10)).prop_map(|(events, mut epochs)| {
        epochs.sort_by_key(|epoch| epoch.epoch);
        epochs.dedup_by_key(|epoch| epoch.epoch);
        Expired { events, epochs }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn records_read_as_they_were_written(
        kind in 0_usize..3, key: u32, events: u32, sequence: u64, times: (u64, u64, i64), payload in vec(any::<u8>(), 0..200), seed: u32,
    ) {
        let kind = [EntryKind::Schema, EntryKind::Events, EntryKind::Loss][kind];
        let (first_ns, last_ns, wall_offset_ns) = times;
        let entry = SpoolEntry { kind, sequence, events, first_ns, last_ns, wall_offset_ns, key, payload: payload.into() };
        let mut bytes = vec![9; 3];
        Record::of(&entry).encode(seed, &mut bytes);
        bytes.extend_from_slice(b"behind");
        let record = Record::decode(&bytes[3..], seed).unwrap();
        prop_assert_eq!(record.to_entry().unwrap(), entry);
        prop_assert_eq!(record.bytes(), bytes.len() as u64 - 9);
        prop_assert!(Record::decode(&bytes[3..], !seed).is_err());
        prop_assert!(Record::decode(&bytes[3..bytes.len() - 7], seed).is_err());
    }

    #[test]
    fn a_list_of_what_has_gone_reads_as_it_was_written(expired in expired()) {
        let bytes = expired.encode();
        prop_assert_eq!(Expired::decode(&bytes), Some(expired));
        for end in 0..bytes.len() {
            prop_assert!(Expired::decode(&bytes[..end]).is_none());
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Expired::decode(&bytes).is_none());
        prop_assert!(Header::decode(&bytes).is_err());
        prop_assert!(Record::decode(&bytes, 0).is_err());
        let (mut segment, _) = Header { boot_id: BOOT, id: SegmentId { epoch: 1, number: 2 }, first_sequence: 3, created_wall_ns: 4 }.encode();
        segment.extend_from_slice(&bytes);
        let scan = scan_bytes(&segment, |_, _| {}).unwrap();
        prop_assert_eq!((scan.facts.bytes, scan.broken.is_some()), (HEADER_BYTES, !bytes.is_empty()));
    }

    /// One to four changed bytes are always seen (the checksum finds all errors of up to 32 bits in
    /// a row), and the records before them are good.
    #[test]
    fn changed_bytes_are_seen(at in 0_usize..1000, change in vec(1_u8.., 1..5)) {
        let whole = segment();
        let mut bytes = whole.clone();
        let at = at % whole.len();
        for (byte, change) in bytes[at..].iter_mut().zip(&change) {
            *byte ^= change;
        }
        let Some((found, scan)) = records(&bytes) else { return Ok(()) };
        let (all, _) = records(&whole).unwrap();
        prop_assert!(scan.broken.is_some());
        prop_assert!(scan.facts.bytes <= at as u64 + 4);
        prop_assert_eq!(&found[..], &all[..found.len()]);
    }
}
