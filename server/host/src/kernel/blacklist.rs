//! The kprobe blacklist, from debugfs `kprobes/blacklist` or as the kernel makes it at boot.
//!
//! Owns the address ranges that the kernel never lets be probed (`NOKPROBE_SYMBOL`, `.noinstr`,
//! entry code; kernel/kprobes.c:within_kprobe_blacklist). Never knows why a range is in it.

use std::ops::Range;

use super::{SymbolTable, hex};

/// Address ranges that cannot be probed.
#[derive(Debug, Default)]
pub struct Blacklist {
    /// Ascending, neither overlapping nor touching.
    ranges: Vec<Range<u64>>,
}

/// Areas that are refused as a whole: the first two on every kernel, whatever the list says
/// (arch/x86/kernel/kprobes/core.c:arch_within_kprobe_blacklist); the third because the list is
/// filled from it at boot.
const AREAS: [(&str, &str); 3] = [
    ("__kprobes_text_start", "__kprobes_text_end"),
    ("__entry_text_start", "__entry_text_end"),
    ("__noinstr_text_start", "__noinstr_text_end"),
];

impl Blacklist {
    /// Parses lines of the form `0xSTART-0xEND<TAB>SYMBOL` and adds the areas that the symbols
    /// delimit. Lines of another form are left out.
    pub fn new(text: &str, symbols: &SymbolTable) -> Self {
        let listed = text.lines().filter_map(|line| {
            let (start, end) = line.split('\t').next()?.split_once('-')?;
            Some(hex(start)?..hex(end)?)
        });
        Self::with_areas(listed, symbols)
    }

    /// What the kernel makes at boot of the addresses of functions that it was built with
    /// (kernel/kprobes.c:populate_kprobe_blacklist): each stands for the whole symbol.
    pub(crate) fn of_functions(functions: impl Iterator<Item = u64>, symbols: &SymbolTable) -> Self {
        let whole = functions.filter_map(|start| {
            let located = symbols.locate(start)?;
            Some(start..start.saturating_add(located.size))
        });
        Self::with_areas(whole, symbols)
    }

    fn with_areas(listed: impl Iterator<Item = Range<u64>>, symbols: &SymbolTable) -> Self {
        let areas = AREAS.iter().filter_map(|(start, end)| symbols.between(start, end));
        let mut all: Vec<_> = listed.chain(areas).filter(|range| !range.is_empty()).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in all {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        ranges.shrink_to_fit();
        Self { ranges }
    }

    /// Whether `address` lies in one of the ranges.
    pub fn contains(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= address);
        after.checked_sub(1).and_then(|last| self.ranges.get(last)).is_some_and(|range| address < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open_and_may_nest() {
        let list = "0x100-0x200\tsection\n0x110-0x120\tinner\nnonsense\n0x300-0x310\tx\n0x310-0x300\ty\n";
        let list = Blacklist::new(list, &SymbolTable::default());
        for (address, inside) in
            [(0xff, false), (0x100, true), (0x130, true), (0x200, false), (0x30f, true), (0x310, false)]
        {
            assert_eq!(list.contains(address), inside, "{address:#x}");
        }
    }

    #[test]
    fn a_function_is_listed_whole() {
        let symbols =
            SymbolTable::parse("ffffffff81000000 t f\nffffffff81000040 t g\nffffffff81000080 t h\n");
        let list = Blacklist::of_functions([0xffff_ffff_8100_0040, 0x10].into_iter(), &symbols);
        for (offset, inside) in [(0x3f, false), (0x40, true), (0x7f, true), (0x80, false)] {
            assert_eq!(list.contains(0xffff_ffff_8100_0000 + offset), inside, "{offset:#x}");
        }
    }

    #[test]
    fn areas_need_no_list() {
        let symbols = SymbolTable::parse(
            "ffffffff81000000 T __entry_text_start\nffffffff81000040 t handler\nffffffff81000080 T __entry_text_end\n",
        );
        let list = Blacklist::new("", &symbols);
        assert!(list.contains(0xffff_ffff_8100_0041) && !list.contains(0xffff_ffff_8100_0080));
    }
}
