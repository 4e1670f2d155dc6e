//! Tests of the ring-buffer ABI: pages written as the kernel writes them, and malformed pages.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
     \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
     \tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
     \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

fn layout() -> PageLayout {
    PageLayout::parse(HEADER_PAGE).unwrap()
}

/// Bytes that a writer can leave on a page.
#[derive(Clone, Debug)]
enum Written {
    Event { delta: u32, words: usize, long: bool },
    Discarded { delta: u32, words: usize },
    Extend { delta: u64 },
    Absolute { ahead: u64 },
}

const DELTA_MAX: u32 = (1 << 27) - 1;

fn header(kind: u32, delta: u32) -> [u8; 4] {
    (delta << 5 | kind).to_le_bytes()
}

fn time(kind: u32, value: u64) -> [u8; 8] {
    let low = header(kind, u32::try_from(value & u64::from(DELTA_MAX)).unwrap());
    let high = u32::try_from(value >> 27).unwrap().to_le_bytes();
    [low, high].concat().try_into().unwrap()
}

/// The data area, and the times and payloads that must be found in it.
fn write(start_ns: u64, written: &[Written]) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
    let (mut data, mut expected, mut now) = (Vec::new(), Vec::new(), start_ns);
    for (number, what) in written.iter().enumerate() {
        match *what {
            Written::Event { delta, words, long } => {
                let payload = vec![u8::try_from(number % 251).unwrap(); words * 4];
                if long || words > 28 || words == 0 {
                    data.extend(header(0, delta));
                    data.extend(u32::try_from(payload.len() + 4).unwrap().to_le_bytes());
                } else {
                    data.extend(header(u32::try_from(words).unwrap(), delta));
                }
                data.extend(&payload);
                now = now.wrapping_add(u64::from(delta));
                expected.push((now, payload));
            }
            Written::Discarded { delta, words } => {
                // The kernel never leaves a discarded event without a delta: that would end the
                // page.
                data.extend(header(29, delta.max(1)));
                data.extend(u32::try_from(words * 4 + 4).unwrap().to_le_bytes());
                data.extend(vec![0xee; words * 4]);
                now = now.wrapping_add(u64::from(delta.max(1)));
            }
            Written::Extend { delta } => {
                data.extend(time(30, delta));
                now = now.wrapping_add(delta);
            }
            Written::Absolute { ahead } => {
                now = now.wrapping_add(ahead);
                data.extend(time(31, now & ((1 << 59) - 1)));
            }
        }
    }
    (data, expected)
}

fn page(timestamp_ns: u64, commit: u64, data: &[u8]) -> Vec<u8> {
    let mut page = [timestamp_ns.to_le_bytes(), commit.to_le_bytes()].concat();
    page.extend(data);
    page.resize(page.len().max(layout().sub_buffer_bytes()), 0);
    page
}

fn walk(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<PageError>) {
    let mut records = Vec::new();
    for record in Page::parse(bytes, &layout()).unwrap().records() {
        match record {
            Ok(record) => records.push((record.timestamp_ns, record.payload.to_vec())),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

/// Walks a page whose data area is exactly `data`.
fn walk_data(data: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<PageError>) {
    walk(&page(1000, data.len() as u64, data))
}

fn error_of(data: &[u8]) -> Option<PageError> {
    walk_data(data).1
}

#[test]
fn the_layout_is_read_from_the_kernels_text() {
    let layout = layout();
    assert_eq!((layout.sub_buffer_bytes(), layout.data_capacity_bytes()), (4096, 4080));
    let large = PageLayout::parse(&HEADER_PAGE.replace("4080", "65520")).unwrap();
    assert_eq!(large.sub_buffer_bytes(), 65536);
}

#[test]
fn a_layout_that_can_not_be_is_refused() {
    let parse =
        |from: &str, to: &str| PageLayout::parse(&HEADER_PAGE.replace(from, to)).unwrap_err().to_string();
    assert_eq!(parse("timestamp", "time"), "header_page does not describe `timestamp`");
    assert_eq!(parse("offset:16", "offset:x"), "header_page has no usable offset for `data`");
    assert_eq!(
        parse("commit;\toffset:8;\tsize:8", "commit;\toffset:8;\tsize:4"),
        "`commit` of header_page has 4 bytes, not 8"
    );
    for bytes in ["0", "1048576"] {
        let expected = format!("a sub-buffer with {bytes} bytes of data at offset 16 is not possible");
        assert_eq!(parse("4080", bytes), expected);
    }
    assert!(PageLayout::parse("").is_err());
}

#[test]
fn the_commit_word_is_masked() {
    let lost = |commit: u64, data: &[u8]| {
        let bytes = page(7, commit, data);
        let page = Page::parse(&bytes, &layout())?;
        assert_eq!(page.timestamp_ns(), 7);
        Ok((page.data_bytes(), page.lost()))
    };
    let stored = [vec![0; 24], 99_u64.to_le_bytes().to_vec()].concat();
    assert_eq!(lost(24, &stored), Ok((24, Lost::None)));
    assert_eq!(lost(0xffff_ffff_8000_0ff0, &[]), Ok((4080, Lost::Unknown)));
    assert_eq!(lost(0xffff_ffff_c000_0018, &stored), Ok((24, Lost::Count(99))));
    assert_eq!(lost(0xc000_0018, &stored), Ok((24, Lost::Count(99))));
    assert_eq!(lost(0xffff_ffff_c000_0fec, &[]), Err(PageError::LostCountTruncated { at: 4076 }));
    assert_eq!(lost(4084, &[]), Err(PageError::CommitBeyondPage { committed: 4084, available: 4080 }));
}

#[test]
fn a_cut_page_is_named() {
    let bytes = page(7, 8, &[]);
    assert_eq!(Page::parse(&bytes[..15], &layout()).unwrap_err(), PageError::HeaderTruncated { bytes: 15 });
    assert_eq!(
        Page::parse(&bytes[..20], &layout()).unwrap_err(),
        PageError::CommitBeyondPage { committed: 8, available: 4 }
    );
    assert!(Page::parse(&bytes[..24], &layout()).is_ok());
}

#[test]
fn bytes_behind_the_sub_buffer_are_none_of_the_page() {
    let bytes = page(7, 0xc000_0ff0, &[1; 5000]);
    assert_eq!(Page::parse(&bytes, &layout()).unwrap_err(), PageError::LostCountTruncated { at: 4080 });
}

#[test]
fn every_way_to_be_cut_short_has_its_name() {
    let first = [header(1, 5).as_slice(), &[1, 2, 3, 4]].concat();
    let after_first = |data: &[&[u8]]| {
        let (records, error) = walk_data(&[&first, data.concat().as_slice()].concat());
        assert_eq!(records, [(1005, vec![1, 2, 3, 4])], "what came before an error stays");
        error
    };
    let cut_short = |part| Some(PageError::CutShort { part, at: 8 });
    let beyond = |part, needed, available| Some(PageError::BeyondData { part, at: 8, needed, available });
    assert_eq!(after_first(&[&[1, 2]]), cut_short("record header"));
    assert_eq!(after_first(&[&header(0, 1), &[0]]), cut_short("length word of the record"));
    assert_eq!(
        after_first(&[&header(0, 1), &2_u32.to_le_bytes()]),
        Some(PageError::LengthInvalid { at: 8, length: 2 })
    );
    assert_eq!(
        after_first(&[&header(0, 1), &6_u32.to_le_bytes(), &[0; 8]]),
        Some(PageError::LengthInvalid { at: 8, length: 6 })
    );
    assert_eq!(
        after_first(&[&header(0, 1), &u32::MAX.wrapping_sub(3).to_le_bytes(), &[0; 8]]),
        beyond("record", 8 + 0xffff_fff8, 16)
    );
    assert_eq!(after_first(&[&header(2, 1), &[0; 4]]), beyond("record", 12, 8));
    assert_eq!(after_first(&[&header(29, 1)]), cut_short("length word of the padding"));
    assert_eq!(after_first(&[&header(29, 1), &12_u32.to_le_bytes(), &[0; 4]]), beyond("padding", 16, 12));
    assert_eq!(after_first(&[&header(30, 1), &[0]]), cut_short("time extend"));
    assert_eq!(after_first(&[&header(31, 1), &[0; 3]]), cut_short("absolute time stamp"));
    assert_eq!(after_first(&[]), None);
}

#[test]
fn after_an_error_the_walk_ends() {
    let data = [header(2, 1).as_slice(), &[0; 4]].concat();
    let bytes = page(0, data.len() as u64, &data);
    let mut records = Page::parse(&bytes, &layout()).unwrap().records();
    assert!(records.next().is_some_and(|record| record.is_err()));
    assert_eq!(records.next(), None);
}

#[test]
fn null_padding_ends_the_page() {
    let data = [header(1, 5).as_slice(), &[9; 4], &header(29, 0), &[0xff; 40]].concat();
    assert_eq!(walk_data(&data), (vec![(1005, vec![9; 4])], None));
    assert_eq!(error_of(&data), None);
}

#[test]
fn an_absolute_stamp_takes_its_upper_bits_from_the_page() {
    let stamped = |start: u64, value: u64| {
        let data = [time(31, value).as_slice(), &header(1, 0), &[0; 4]].concat();
        walk(&page(start, data.len() as u64, &data)).0.first().unwrap().0
    };
    assert_eq!(stamped(5, 1000), 1000);
    assert_eq!(stamped(5000, 1000), 1000, "clocks may step back");
    assert_eq!(stamped((3 << 59) + 5, 1000), (3 << 59) + 1000);
    assert_eq!(stamped((3 << 59) + 5000, 1000), (4 << 59) + 1000, "the 59 bits have wrapped");
    assert_eq!(stamped(u64::MAX, 1000), 1000, "so has the clock");
}

fn written() -> impl Strategy<Value = Written> {
    let delta = prop_oneof![3 => 0..2000_u32, 1 => 0..=DELTA_MAX];
    prop_oneof![
        6 => (delta.clone(), 0..40_usize, any::<bool>())
            .prop_map(|(delta, words, long)| Written::Event { delta, words, long }),
        1 => (delta, 0..20_usize).prop_map(|(delta, words)| Written::Discarded { delta, words }),
        1 => (0..1_u64 << 50).prop_map(|delta| Written::Extend { delta }),
        1 => (0..1_u64 << 40).prop_map(|ahead| Written::Absolute { ahead }),
    ]
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        start in (1_u64 << 59)..1 << 62,
        written in vec(written(), 0..60),
        padded in any::<bool>(),
    ) {
        let (mut data, mut expected) = write(start, &written);
        // Only what fits on a page; a cut last record must not disturb those before it.
        let cut = data.len() > 4080;
        data.truncate(4080);
        if padded && data.len() <= 4076 {
            data.extend(header(29, 0));
        }
        let bytes = page(start, data.len() as u64, &data);
        let (records, error) = walk(&bytes);
        prop_assert!(cut || error.is_none(), "{error:?}");
        if cut {
            prop_assert!(records.len() <= expected.len());
            expected.truncate(records.len());
        }
        prop_assert_eq!(records, expected);
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..300), committed in 0_u64..300) {
        if let Ok(page) = Page::parse(&bytes, &layout()) {
            prop_assert!(page.records().count() <= bytes.len());
            // Both walks find the same, up to the same error.
            let mut each = Vec::new();
            let walked = page.records().each(|record, onward| {
                assert!(onward.starts_with(record.payload));
                each.push(Ok(record));
            });
            each.extend(walked.err().map(Err));
            prop_assert_eq!(each, page.records().collect::<Vec<_>>());
        }
        // Most random commit words reach beyond the page; this one does not.
        let bytes = page(1, committed, &bytes);
        let page = Page::parse(&bytes, &layout()).unwrap();
        prop_assert!(page.records().count() <= 300);
    }

    #[test]
    fn any_text_is_survived(text in "[a-z:; \t\n0-9]{0,80}", at in 0..HEADER_PAGE.len(), byte in any::<u8>()) {
        drop(PageLayout::parse(&text));
        let mut mutated = HEADER_PAGE.as_bytes().to_vec();
        mutated[at] = byte;
        drop(PageLayout::parse(&String::from_utf8_lossy(&mutated)));
    }
}
