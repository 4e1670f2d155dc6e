//! Paravirt calls, which a hypervisor may replace: `struct paravirt_patch_site`
//! (arch/x86/include/asm/paravirt_types.h, to 6.7; alternatives since 6.8).
//!
//! The image has a call through memory there; boot makes it a direct call, or removes it
//! (arch/x86/kernel/paravirt.c:paravirt_patch).

use super::super::super::{KernelText, SymbolTable};
use super::super::tables;
use super::padded;

const ENTRY_BYTES: usize = 16;

/// Beginnings and lengths of all sites.
pub(super) fn sites(text: &KernelText, symbols: &SymbolTable) -> Vec<(u64, u8)> {
    let table = tables::between(text, symbols, "__parainstructions", "__parainstructions_end");
    parse(&table.unwrap_or_default()).collect()
}

/// An address, the function that is called, and the length of the call.
fn parse(table: &[u8]) -> impl Iterator<Item = (u64, u8)> {
    table.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let address = u64::from_le_bytes(*entry.first_chunk()?);
        Some((address, *entry.get(9)?)).filter(|(address, bytes)| *address != 0 && *bytes > 0)
    })
}

/// Code that boot may write at a site. The target of the direct call is unknown: it depends on the
/// hypervisor.
pub(super) fn possible(image: &[u8]) -> Vec<Vec<u8>> {
    const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];
    let call = CALL.to_vec();
    vec![padded(call, image.len()), padded(Vec::new(), image.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_have_an_address_and_a_length() {
        let entry =
            |address: u64, bytes: u8| [&address.to_le_bytes()[..], &[3, bytes, 0, 0, 0, 0, 0, 0]].concat();
        let table = [entry(0x1000, 7), entry(0, 7), entry(0x2000, 6), vec![0; 15]].concat();
        assert_eq!(parse(&table).collect::<Vec<_>>(), [(0x1000, 7), (0x2000, 6)]);
        assert_eq!(possible(&[0xff; 7]), [vec![0xe8, 0, 0, 0, 0, 0x90, 0x90], vec![0x90; 7]]);
    }

    proptest! {
        #[test]
        fn any_table_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse(&bytes).count() <= bytes.len() / ENTRY_BYTES);
        }
    }
}
