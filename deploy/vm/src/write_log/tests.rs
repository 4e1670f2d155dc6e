//! Write logs of QEMU, and malformed ones.

use std::borrow::Borrow;
use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECTOR: usize = 512;

/// What a log is made of: a flush, or a byte that fills sectors.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Flush,
    Write { sector: u8, sectors: u8, byte: u8 },
}

fn encoded(deeds: &[Deed]) -> Vec<u8> {
    let mut log = Vec::new();
    let sector = |log: &mut Vec<u8>, numbers: &[u64]| {
        let end = log.len() + SECTOR;
        log.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        log.resize(end, 0);
    };
    sector(&mut log, &[MAGIC, VERSION, deeds.len() as u64, SECTOR as u64]);
    for deed in deeds {
        match *deed {
            Deed::Flush => sector(&mut log, &[0, 0, FLUSH, 0]),
            Deed::Write { sector: at, sectors, byte } => {
                sector(&mut log, &[at.into(), sectors.into(), 0, 0]);
                log.resize(log.len() + usize::from(sectors) * SECTOR, byte);
            }
        }
    }
    log
}

/// The disk after some of the deeds, without a log.
fn expected(deeds: impl IntoIterator<Item = impl Borrow<Deed>>) -> Vec<u8> {
    let mut disk = vec![0; 512 * SECTOR];
    for deed in deeds {
        if let Deed::Write { sector, sectors, byte } = *deed.borrow() {
            let at = usize::from(sector) * SECTOR;
            disk[at..at + usize::from(sectors) * SECTOR].fill(byte);
        }
    }
    disk
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let write = (any::<u8>(), 1..9_u8, any::<u8>()).prop_map(|(sector, sectors, byte)| Deed::Write {
        sector,
        sectors,
        byte,
    });
    vec(prop_oneof![3 => write, 1 => Just(Deed::Flush)], 0..20)
}

fn opened(bytes: &[u8]) -> (tempfile::TempDir, Result<WriteLog>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, bytes).unwrap();
    let log = WriteLog::open(&path);
    (directory, log)
}

proptest! {
    #[test]
    fn every_prefix_is_the_disk_at_that_time(deeds in deeds()) {
        let (directory, log) = opened(&encoded(&deeds));
        let log = log.unwrap();
        prop_assert_eq!(log.entries().len(), deeds.len());
        let first = directory.path().join("first");
        fs::write(&first, expected(&[] as &[Deed])).unwrap();
        let mut replay = Replay::new(&log, &first, &directory.path().join("image")).unwrap();
        let to = directory.path().join("cut");
        for end in 0..=deeds.len() {
            replay.cut(&log.prefix(end), &to).unwrap();
            prop_assert!(fs::read(&to).unwrap() == expected(&deeds[..end]), "{}", end);
            // With nothing kept it is what the last flush has made durable.
            let cut = log.subset(end, || false);
            replay.cut(&cut, &to).unwrap();
            let flushed = deeds[..end].iter().rposition(|deed| matches!(deed, Deed::Flush)).unwrap_or(0);
            prop_assert!(fs::read(&to).unwrap() == expected(&deeds[..flushed]), "{}", end);
        }
    }

    #[test]
    fn a_subset_has_what_was_kept(deeds in deeds(), kept in vec(any::<bool>(), 20)) {
        let (directory, log) = opened(&encoded(&deeds));
        let log = log.unwrap();
        let mut next = kept.iter();
        let cut = log.subset(deeds.len(), || *next.next().unwrap());
        let first = directory.path().join("first");
        fs::write(&first, expected(&[] as &[Deed])).unwrap();
        let to = directory.path().join("cut");
        Replay::new(&log, &first, &directory.path().join("image")).unwrap().cut(&cut, &to).unwrap();
        let made = deeds.iter().enumerate().filter(|(index, _)| *index < cut.durable || cut.kept.contains(index));
        prop_assert!(fs::read(&to).unwrap() == expected(made.map(|(_, deed)| deed)));
    }

    #[test]
    fn bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..2000), is_begun in any::<bool>(), count in any::<u64>()) {
        let mut bytes = bytes;
        if is_begun && bytes.len() >= SUPER_BYTES {
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
            bytes[16..24].copy_from_slice(&count.to_le_bytes());
            bytes[24..28].copy_from_slice(&512_u32.to_le_bytes());
        }
        let (_directory, log) = opened(&bytes);
        if let Ok(log) = log {
            prop_assert!(log.entries().len() as u64 == count);
        }
    }

    #[test]
    fn a_flipped_byte_or_a_short_log_does_not_panic(deeds in deeds(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = encoded(&deeds);
        let at = at.index(bytes.len());
        drop(opened(&bytes[..at]).1);
        bytes[at] = value;
        drop(opened(&bytes).1);
    }
}

#[test]
fn an_error_says_where_and_why() {
    let refused = |bytes: &[u8]| opened(bytes).1.unwrap_err().to_string();
    assert!(refused(b"").contains("magic number is 0x0, not 0x6a736677736872"));
    let log = encoded(&[Deed::Flush, Deed::Write { sector: 1, sectors: 2, byte: 3 }]);
    assert!(refused(&log[..log.len() - 1]).contains("entry 1 goes from byte 1024 beyond the end"));
    let mut flagged = log.clone();
    flagged[512 + 16] = 0x21;
    assert!(refused(&flagged).contains("entry 0 at byte 512 has the flags 0x21"));
    let mut later = log;
    later[8] = 2;
    assert!(refused(&later).contains("version is 0x2, not 0x1"));
}

#[test]
fn cuts_do_not_go_back() {
    let deeds = [Deed::Flush, Deed::Write { sector: 1, sectors: 1, byte: 3 }, Deed::Flush];
    let (directory, log) = opened(&encoded(&deeds));
    let log = log.unwrap();
    let first = directory.path().join("first");
    fs::write(&first, expected(&[] as &[Deed])).unwrap();
    let mut replay = Replay::new(&log, &first, &directory.path().join("image")).unwrap();
    let to = directory.path().join("cut");
    replay.cut(&log.prefix(3), &to).unwrap();
    assert!(replay.cut(&log.prefix(1), &to).unwrap_err().to_string().contains("the cut is before it"));
}
