//! The table of static calls: `struct static_call_site`, 8 bytes
//! (include/linux/static_call_types.h; the same from 6.1 to 7.3).

use super::{entries, self_relative};

const ENTRY_BYTES: usize = 8;

/// Set in the address of the key of a site in code of the initialisation, which is gone and not
/// looked at any more (kernel/static_call_inline.c:static_call_text_reserved).
const KEY_INIT: u64 = 2;

/// Addresses of all sites of the table at `start`.
pub(super) fn parse(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    entries(start, bytes, ENTRY_BYTES).filter_map(|(at, entry)| {
        let key = self_relative(at.wrapping_add(4), entry.get(4..)?)?;
        (key & KEY_INIT == 0).then(|| self_relative(at, entry)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(site: i32, key: i32) -> Vec<u8> {
        [site.to_le_bytes(), key.to_le_bytes()].concat()
    }

    #[test]
    fn the_flag_is_in_the_address_of_the_key() {
        // Keys at 0x1004 + 0x1c = 0x1020, and at 0x100c + 0x16 = 0x1022: the second is of the
        // initialisation; 1 is a tail call.
        let bytes = [entry(-0x10, 0x1c), entry(-0x10, 0x16), entry(0x30, 0xd)].concat();
        assert_eq!(parse(0x1000, &bytes).collect::<Vec<_>>(), [0xff0, 0x1040]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse(start, &bytes).count() <= bytes.len() / ENTRY_BYTES);
        }
    }
}
