//! Property: parser of debugfs `kprobes/blacklist`.

use kprobed_host::kernel::{Blacklist, SymbolTable};

/// Both ends of every range that the list has are as they should be, whatever else is in it.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let whole = Blacklist::new(&text, &SymbolTable::default());
    for line in text.lines().take(256) {
        let Some((start, end)) = line.split('\t').next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let (Some(start), Some(end)) = (hex(start), hex(end)) else { continue };
        let alone = Blacklist::new(line, &SymbolTable::default());
        assert!(!alone.contains(end) && !alone.contains(start.wrapping_sub(1)));
        for address in [start, end.wrapping_sub(1), start.midpoint(end)] {
            let inside = (start..end).contains(&address);
            assert_eq!(alone.contains(address), inside, "{line:?}");
            assert!(whole.contains(address) || !inside, "{line:?}");
        }
    }
}
