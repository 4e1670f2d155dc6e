//! Paravirt calls, which a hypervisor may replace: `struct paravirt_patch_site`
//! (arch/x86/include/asm/paravirt_types.h, to 6.7; alternatives since 6.8).
//!
//! The image has a call through memory there; boot makes it a direct call, or removes it
//! (arch/x86/kernel/paravirt.c:paravirt_patch). To 5.12, boot writes the instructions of some
//! functions in place of their call (arch/x86/kernel/paravirt_patch.c:native_patch; they are
//! alternatives since).

use std::collections::HashMap;

use super::super::super::{KernelText, SymbolTable};
use super::super::tables;
use super::padded;

const ENTRY_BYTES: usize = 16;

/// The instructions of a function of `pv_ops` that need no call.
pub(super) type Inline = &'static [u8];

/// The functions of which boot can write the instructions (native_patch and
/// paravirt_patch_ident_64), by the names that `pv_ops` has in the image.
const INLINE: [(&str, Inline); 12] = [
    ("native_irq_disable", &[0xfa]),
    ("native_irq_enable", &[0xfb]),
    ("native_restore_fl", &[0x57, 0x9d]),
    ("native_save_fl", &[0x9c, 0x58]),
    ("native_read_cr2", &[0x0f, 0x20, 0xd0]),
    ("__native_read_cr3", &[0x0f, 0x20, 0xd8]),
    ("native_write_cr3", &[0x0f, 0x22, 0xdf]),
    ("native_wbinvd", &[0x0f, 0x09]),
    ("native_usergs_sysret64", &[0x0f, 0x01, 0xf8, 0x48, 0x0f, 0x07]),
    ("_paravirt_ident_64", &[0x48, 0x89, 0xf8]),
    ("__raw_callee_save___native_queued_spin_unlock", &[0xc6, 0x07, 0x00]),
    ("__raw_callee_save___native_vcpu_is_preempted", &[0x31, 0xc0]),
];

/// The call of a function of `pv_ops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchSite {
    /// Where the call begins.
    pub(super) start: u64,
    /// Its length.
    pub(super) bytes: u8,
    /// What boot can write in its place.
    pub(super) inline: Option<Inline>,
}

/// All sites.
pub(super) fn sites(text: &KernelText, symbols: &SymbolTable) -> Vec<PatchSite> {
    let table = tables::between(text, symbols, "__parainstructions", "__parainstructions_end");
    let (_, table) = table.unwrap_or_default();
    let inline = inline(text, symbols);
    let site = |(start, function, bytes)| PatchSite {
        start,
        bytes,
        inline: inline.get(&function).copied().filter(|code: &Inline| code.len() <= usize::from(bytes)),
    };
    parse(&table).map(site).collect()
}

/// An address, the number of the function that is called, and the length of the call.
fn parse(table: &[u8]) -> impl Iterator<Item = (u64, u8, u8)> {
    table.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let address = u64::from_le_bytes(*entry.first_chunk()?);
        let (function, bytes) = (*entry.get(8)?, *entry.get(9)?);
        (address != 0 && bytes > 0).then_some((address, function, bytes))
    })
}

/// The instructions of functions by their number, which is their index in `pv_ops`. Empty for a kernel that writes
/// none of them.
fn inline(text: &KernelText, symbols: &SymbolTable) -> HashMap<u8, Inline> {
    const POINTER_BYTES: usize = 8;
    if symbols.address("native_patch").is_none() {
        return HashMap::new();
    }
    let Some(functions) = symbols.address("pv_ops") else { return HashMap::new() };
    let named = INLINE
        .iter()
        .flat_map(|(name, code)| symbols.named(name, None).map(move |symbol| (symbol.address, *code)));
    let code_at: HashMap<u64, Inline> = named.collect();
    let table = text.read_up_to(functions, POINTER_BYTES << u8::BITS).unwrap_or_default();
    let pointers = table.chunks_exact(POINTER_BYTES).map(|pointer| pointer.first_chunk().copied());
    let known = (0..=u8::MAX)
        .zip(pointers)
        .filter_map(|(function, pointer)| Some((function, *code_at.get(&u64::from_le_bytes(pointer?))?)));
    known.collect()
}

/// Code that boot may write at a site, the likeliest first. The target of the direct call is unknown: it depends
/// on the hypervisor.
pub(super) fn possible(image: &[u8], inline: Option<Inline>) -> Vec<Vec<u8>> {
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
    let states = inline.into_iter().chain([CALL.as_slice(), &[]]);
    states.map(|state| padded(state.to_vec(), image.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::image;
    use proptest::prelude::*;

    #[test]
    fn entries_have_an_address_a_function_and_a_length() {
        let entry =
            |address: u64, bytes: u8| [&address.to_le_bytes()[..], &[3, bytes, 0, 0, 0, 0, 0, 0]].concat();
        let table = [entry(0x1000, 7), entry(0, 7), entry(0x2000, 6), vec![0; 15]].concat();
        assert_eq!(parse(&table).collect::<Vec<_>>(), [(0x1000, 3, 7), (0x2000, 3, 6)]);
        assert_eq!(possible(&[0xff; 7], None), [vec![0xe8, 0, 0, 0, 0, 0x90, 0x90], vec![0x90; 7]]);
    }

    /// `pv_ops` with three functions, and calls of each.
    fn kernel(symbol: &str) -> Vec<PatchSite> {
        const BASE: u64 = 0xffff_ffff_8100_0000;
        let mut memory = vec![0x55; 0x40];
        memory.extend([BASE + 8, BASE + 0x10, BASE + 0x20].iter().flat_map(|address| address.to_le_bytes()));
        for (function, bytes) in [(0_u8, 7), (1, 7), (2, 7), (1, 1), (9, 7)] {
            memory.extend((BASE + u64::from(function)).to_le_bytes());
            memory.extend([function, bytes, 0, 0, 0, 0, 0, 0]);
        }
        let symbols = SymbolTable::parse(&format!(
            "\
ffffffff81000000 T _stext
ffffffff81000008 T native_write_msr
ffffffff81000010 T __raw_callee_save___native_queued_spin_unlock
ffffffff81000020 t native_save_fl
ffffffff81000030 T {symbol}
ffffffff8100003f T _etext
ffffffff81000040 D pv_ops
ffffffff81000058 R __parainstructions
ffffffff810000a8 R __parainstructions_end
ffffffff810000b0 R _end
"
        ));
        sites(&image(BASE, &memory), &symbols)
    }

    #[test]
    fn boot_writes_the_instructions_of_some_functions() {
        let inline: Vec<_> = kernel("native_patch").iter().map(|site| site.inline).collect();
        let (unlock, save): (Inline, Inline) = (&[0xc6, 0x07, 0x00], &[0x9c, 0x58]);
        assert_eq!(
            inline,
            [None, Some(unlock), Some(save), None, None],
            "what is longer than its call stays one"
        );
        let possible = possible(&[0xff; 7], Some(unlock));
        assert_eq!(possible[0], [0xc6, 0x07, 0x00, 0x90, 0x90, 0x90, 0x90]);
        assert_eq!(possible.len(), 3);
        assert!(kernel("another_function").iter().all(|site| site.inline.is_none()), "since 5.13");
    }

    proptest! {
        #[test]
        fn any_table_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse(&bytes).count() <= bytes.len() / ENTRY_BYTES);
        }
    }
}
