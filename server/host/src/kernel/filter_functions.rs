//! Symbol lookup for `FIELD.function` in event filters.

use std::ops::Range;

use kprobed_filter::Functions;

use super::SymbolTable;

impl Functions for SymbolTable {
    /// The first symbol of that name, as kernel/kallsyms.c:kallsyms_lookup_name returns it.
    fn named(&self, name: &str) -> Option<Range<u64>> {
        let symbol = match name.split_once(':') {
            Some((module, name)) => self.lookup(name, Some(module)),
            None => self.lookup(name, None),
        };
        self.at(symbol?.address)
    }

    fn at(&self, address: u64) -> Option<Range<u64>> {
        let located = self.locate(address)?;
        let start = located.symbol.address;
        Some(start..start.saturating_add(located.size))
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        self.similar_code_names(name).first().copied()
    }
}
