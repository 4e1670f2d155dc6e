//! Property: parser of `available_filter_functions`, with and without addresses.

use kprobed_host::kernel::{SymbolTable, TraceableFunctions};

/// A kernel in which names are not unique.
const SYMBOLS: &str = "\
ffffffff81000000 t first
ffffffff81000040 t twin
ffffffff81000080 t middle
ffffffff810000c0 t twin
ffffffff81000100 t twin
ffffffff81000140 t last
ffffffff81000200 t end
ffffffffc0000000 t twin\t[mod]
";

/// Call sites are at the listed addresses, or in a listed function.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let exact = TraceableFunctions::from_call_sites(&text);
    for line in text.lines().take(256) {
        let word = line.split_ascii_whitespace().next().unwrap_or_default();
        let Ok(site) = u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16) else { continue };
        assert!(exact.is_site(site) && !exact.is_empty());
        // At the very end of the address space there is no room for a call.
        assert!(exact.touches(site, 1) || site > u64::MAX - 5);
        assert!(exact.overlapping(site, 5).all(|other| other.abs_diff(site) < 5));
    }

    let symbols = SymbolTable::parse(SYMBOLS);
    for code in [
        None,
        Some([0x0f, 0x1f, 0x44, 0, 0, 0x55, 0, 0, 0]),
        Some([0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0]),
    ] {
        let named = TraceableFunctions::from_names(&text, &symbols, &mut |_| code);
        let mut found = 0;
        for site in named.overlapping(0, u64::MAX) {
            assert!(symbols.locate(site).is_some(), "{site:#x}");
            found += 1;
        }
        assert!(found <= text.lines().count());
    }
}
