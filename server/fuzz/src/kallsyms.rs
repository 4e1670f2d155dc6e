//! Property: parser of `/proc/kallsyms`.

use kprobed_host::kernel::{Symbol, SymbolTable};

/// Names lead to addresses and addresses to names, if both exist.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let table = SymbolTable::parse(&text);
    assert!(table.len() <= text.lines().count());
    for name in table.by_name("").map(|symbol| symbol.name).take(64) {
        for symbol in table.named(name, None) {
            assert_eq!(symbol.name, name);
            if let Some(located) = table.locate(symbol.address) {
                assert_eq!((located.symbol.address, located.offset), (symbol.address, 0));
                assert!(located.to_string().starts_with(located.symbol.name));
            }
            let beside = symbol.address.wrapping_add(1);
            if let Some(located) = table.locate(beside) {
                assert!(located.symbol.address <= beside && located.offset < located.size);
                assert_eq!(located.symbol.address + located.offset, beside);
            }
        }
        assert!(table.lookup(name, None).is_none_or(|symbol| symbol.address != 0));
    }
    let listed: Vec<_> = table.code_in(0..u64::MAX).collect();
    assert!(listed.is_sorted_by_key(|symbol| symbol.address) && listed.iter().all(Symbol::is_code));
    for module in table.modules().take(64) {
        assert!(table.has_module(module));
    }
}
