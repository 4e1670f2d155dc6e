//! The table of BUG and WARN: `struct bug_entry` with relative addresses
//! (include/asm-generic/bug.h).
//!
//! An entry begins with the address. Its length depends on CONFIG_DEBUG_BUGVERBOSE and on the
//! release: 12 bytes in 6.1 and 6.12, 16 in 7.2 and 7.3, 8 without file and line. No symbol tells
//! which, but every entry leads to an instruction that traps, and only the right length finds them.

use super::{entries, self_relative};

/// Possible lengths, ascending: whatever is right for 8 bytes is right for every second entry as
/// well.
const ENTRY_BYTES: [usize; 3] = [8, 12, 16];

/// Entries to try for each length. Half of the kernel's lead to code of the initialisation, which
/// is gone, at worst.
const SAMPLES: usize = 128;

/// Addresses of the instructions of all entries of the table at `start`. `read` gives the two bytes
/// at an address.
pub(super) fn parse(
    start: u64,
    bytes: &[u8],
    read: impl Fn(u64) -> Option<Vec<u8>>,
) -> impl Iterator<Item = u64> {
    let traps = |(at, entry): &(u64, &[u8])| {
        self_relative(*at, entry).and_then(&read).is_some_and(|code| is_ud(&code))
    };
    let size = ENTRY_BYTES
        .into_iter()
        .map(|size| {
            let count = bytes.len() / size;
            // Every third entry of one length is one of another: without a factor of 2 or 3 the
            // samples are of all kinds.
            let step = count / SAMPLES / 6 * 6 + 1;
            let sampled = entries(start, bytes, size).step_by(step);
            let (hits, all) = sampled.fold((0, 0), |(hits, all), e| (hits + usize::from(traps(&e)), all + 1));
            (size, hits * 100 / all.max(1))
        })
        // The shortest of the best.
        .rev()
        .max_by_key(|(_, percent)| *percent)
        .filter(|(_, percent)| *percent > 0)
        .map(|(size, _)| size);
    size.into_iter().flat_map(move |size| {
        entries(start, bytes, size).filter_map(|(at, entry)| self_relative(at, entry)).collect::<Vec<_>>()
    })
}

/// UD2, UD1 and UD0 (arch/x86/include/asm/bug.h).
fn is_ud(code: &[u8]) -> bool {
    matches!(code, [0x0f, 0x0b | 0xb9 | 0xff, ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODE: u64 = 0x1000;
    const TABLE: u64 = 0x8000;

    /// A table of `count` entries of that size, whose addresses are every 16 bytes of code.
    fn table(size: usize, count: u64) -> Vec<u8> {
        (0..count)
            .flat_map(|index| {
                let at = TABLE + index * size as u64;
                let distance = i32::try_from((CODE + index * 16).cast_signed() - at.cast_signed()).unwrap();
                let mut entry = vec![0x5a; size];
                entry[..4].copy_from_slice(&distance.to_le_bytes());
                entry
            })
            .collect()
    }

    #[test]
    fn the_length_of_entries_is_found_out() {
        let read = |address: u64| {
            let in_code = (CODE..TABLE).contains(&address);
            in_code.then(|| if address.is_multiple_of(16) { vec![0x0f, 0x0b] } else { vec![0x90, 0x90] })
        };
        for size in ENTRY_BYTES {
            for count in [96, 1200] {
                let bytes = table(size, count);
                let found: Vec<u64> = parse(TABLE, &bytes, read).collect();
                let expected: Vec<u64> = (0..count).map(|index| CODE + index * 16).collect();
                assert_eq!(found, expected, "{size} {count}");
            }
        }
        assert_eq!(parse(TABLE, &table(12, 96), |_| None).count(), 0, "nothing that traps: not a table");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100), code: [u8; 2]) {
            prop_assert!(parse(start, &bytes, |_| Some(code.to_vec())).count() <= bytes.len() / 8);
        }
    }
}
