//! The exception table: `struct exception_table_entry`, 12 bytes (arch/x86/include/asm/extable.h;
//! the same since 4.6).
//!
//! An entry begins with the address of the instruction that may fault, as a distance from itself.
//! The address where the kernel goes on follows it in the same form. What comes after that is a
//! function (before 5.16) or a kind (arch/x86/include/asm/extable_fixup_types.h), and none of those
//! that the table of a kernel or a module has goes on elsewhere.

use super::{Lead, entries};

const ENTRY_BYTES: usize = 12;

/// The instructions of all entries of the table at `start`, and where each leads to.
pub(super) fn parse(start: u64, bytes: &[u8]) -> impl Iterator<Item = Lead> {
    entries(start, bytes, ENTRY_BYTES).filter_map(|(at, entry)| Lead::parse(at, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_relative_to_their_entry() {
        let entry = |distance: i32| [&distance.to_le_bytes()[..], &[7, 0, 0, 0, 9, 9, 9, 9]].concat();
        let bytes = [entry(-0x100), entry(0x20), vec![0; 11]].concat();
        let lead = |from, to| Lead { from, to };
        assert_eq!(parse(0x1000, &bytes).collect::<Vec<_>>(), [lead(0xf00, 0x100b), lead(0x102c, 0x1017)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(parse(start, &bytes).count(), bytes.len() / ENTRY_BYTES);
        }
    }
}
