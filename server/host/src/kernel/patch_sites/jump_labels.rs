//! The table of jump labels: `struct jump_entry` with relative addresses, 16 bytes
//! (include/linux/jump_label.h; the same from 6.1 to 7.3).

use super::{Lead, entries};

const ENTRY_BYTES: usize = 16;

/// Set in the key of an entry about code of the initialisation, which is gone and not looked at any
/// more (kernel/jump_label.c:jump_label_text_reserved, since `system_state` is SYSTEM_RUNNING).
const KEY_INIT: u64 = 2;

/// The code of all entries of the table at `start`, and where its jump leads to while it is one. In
/// an image (`built`), the flag means something else until boot sets it anew: that objtool was to
/// make a NOP of the jump (arch/x86/include/asm/jump_label.h:arch_static_branch, since 5.14).
pub(super) fn parse(start: u64, bytes: &[u8], built: bool) -> impl Iterator<Item = Lead> {
    entries(start, bytes, ENTRY_BYTES).filter_map(move |(at, entry)| {
        let key = u64::from_le_bytes(entry.get(8..16)?.try_into().ok()?);
        (built || key & KEY_INIT == 0).then(|| Lead::parse(at, entry)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(code: i32, key: u64) -> Vec<u8> {
        [&code.to_le_bytes()[..], &7i32.to_le_bytes(), &key.to_le_bytes()].concat()
    }

    #[test]
    fn addresses_are_relative_to_their_entry() {
        let bytes = [entry(-0x100, 1), entry(-0x100, 2), entry(0x20, 0), vec![0; 15]].concat();
        let lead = |from, to| Lead { from, to };
        let (first, last) = (lead(0xf00, 0x100b), lead(0x1040, 0x102b));
        assert_eq!(parse(0x1000, &bytes, false).collect::<Vec<_>>(), [first, last]);
        assert_eq!(parse(0x1000, &bytes, true).collect::<Vec<_>>(), [first, lead(0xf10, 0x101b), last]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse(start, &bytes, false).count() <= bytes.len() / ENTRY_BYTES);
        }
    }
}
