//! The exception table: `struct exception_table_entry`, 12 bytes (arch/x86/include/asm/extable.h;
//! the same since 4.6).
//!
//! An entry begins with the address of the instruction that may fault, as a distance from itself.

use super::{entries, self_relative};

const ENTRY_BYTES: usize = 12;

/// Addresses of the instructions of all entries of the table at `start`.
pub(super) fn parse(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    entries(start, bytes, ENTRY_BYTES).filter_map(|(at, entry)| self_relative(at, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_relative_to_their_entry() {
        let entry = |distance: i32| [&distance.to_le_bytes()[..], &[7; 8]].concat();
        let bytes = [entry(-0x100), entry(0x20), vec![0; 11]].concat();
        assert_eq!(parse(0x1000, &bytes).collect::<Vec<_>>(), [0xf00, 0x102c]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(parse(start, &bytes).count(), bytes.len() / ENTRY_BYTES);
        }
    }
}
