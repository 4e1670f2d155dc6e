//! The tables of exceptions, jump labels and static calls. Their entries are those of 6.1 to 7.3.

use super::{Lead, entries, self_relative};

/// `struct exception_table_entry` (arch/x86/include/asm/extable.h; the same since 4.6).
const EXCEPTION_BYTES: usize = 12;
/// `struct jump_entry` with relative addresses (include/linux/jump_label.h).
const JUMP_LABEL_BYTES: usize = 16;
/// `struct static_call_site` (include/linux/static_call_types.h).
const STATIC_CALL_BYTES: usize = 8;

/// Set in the key of an entry about code of the initialisation, which is gone and not looked at any
/// more (kernel/jump_label.c:jump_label_text_reserved, since `system_state` is SYSTEM_RUNNING;
/// kernel/static_call_inline.c:static_call_text_reserved, in the address of the key).
const KEY_INIT: u64 = 2;

/// The instructions of all entries of a table of exceptions at `start`, and where each leads to.
///
/// An entry begins with the address of the instruction that may fault, as a distance from itself.
/// The address where the kernel goes on follows it in the same form. What comes after that is a
/// function (before 5.16) or a kind (arch/x86/include/asm/extable_fixup_types.h), and none of those
/// that the table of a kernel or a module has goes on elsewhere.
pub(super) fn exceptions(start: u64, bytes: &[u8]) -> impl Iterator<Item = Lead> {
    entries(start, bytes, EXCEPTION_BYTES).filter_map(|(at, entry)| Lead::parse(at, entry))
}

/// The code of all jump labels of the table at `start`, and where its jump leads to while it is one.
/// In an image (`built`), the flag means something else until boot sets it anew: that objtool was to
/// make a NOP of the jump (arch/x86/include/asm/jump_label.h:arch_static_branch, since 5.14).
pub(super) fn jump_labels(start: u64, bytes: &[u8], built: bool) -> impl Iterator<Item = Lead> {
    entries(start, bytes, JUMP_LABEL_BYTES).filter_map(move |(at, entry)| {
        let key = u64::from_le_bytes(entry.get(8..16)?.try_into().ok()?);
        (built || key & KEY_INIT == 0).then(|| Lead::parse(at, entry)).flatten()
    })
}

/// Addresses of all static calls of the table at `start`.
pub(super) fn static_calls(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    entries(start, bytes, STATIC_CALL_BYTES).filter_map(|(at, entry)| {
        let key = self_relative(at.wrapping_add(4), entry.get(4..)?)?;
        (key & KEY_INIT == 0).then(|| self_relative(at, entry)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exceptions_are_relative_to_their_entry() {
        let entry = |distance: i32| [&distance.to_le_bytes()[..], &[7, 0, 0, 0, 9, 9, 9, 9]].concat();
        let bytes = [entry(-0x100), entry(0x20), vec![0; 11]].concat();
        let lead = |from, to| Lead { from, to };
        let found: Vec<_> = exceptions(0x1000, &bytes).collect();
        assert_eq!(found, [lead(0xf00, 0x100b), lead(0x102c, 0x1017)]);
    }

    #[test]
    fn jump_labels_are_relative_to_their_entry() {
        let entry =
            |code: i32, key: u64| [&code.to_le_bytes()[..], &7i32.to_le_bytes(), &key.to_le_bytes()].concat();
        let bytes = [entry(-0x100, 1), entry(-0x100, 2), entry(0x20, 0), vec![0; 15]].concat();
        let lead = |from, to| Lead { from, to };
        let (first, last) = (lead(0xf00, 0x100b), lead(0x1040, 0x102b));
        assert_eq!(jump_labels(0x1000, &bytes, false).collect::<Vec<_>>(), [first, last]);
        let built: Vec<_> = jump_labels(0x1000, &bytes, true).collect();
        assert_eq!(built, [first, lead(0xf10, 0x101b), last]);
    }

    #[test]
    fn the_flag_of_a_static_call_is_in_the_address_of_its_key() {
        let entry = |site: i32, key: i32| [site.to_le_bytes(), key.to_le_bytes()].concat();
        // Keys at 0x1004 + 0x1c = 0x1020, and at 0x100c + 0x16 = 0x1022: the second is of the
        // initialisation; 1 is a tail call.
        let bytes = [entry(-0x10, 0x1c), entry(-0x10, 0x16), entry(0x30, 0xd)].concat();
        assert_eq!(static_calls(0x1000, &bytes).collect::<Vec<_>>(), [0xff0, 0x1040]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(exceptions(start, &bytes).count(), bytes.len() / EXCEPTION_BYTES);
            prop_assert!(jump_labels(start, &bytes, false).count() <= bytes.len() / JUMP_LABEL_BYTES);
            prop_assert!(static_calls(start, &bytes).count() <= bytes.len() / STATIC_CALL_BYTES);
        }
    }
}
