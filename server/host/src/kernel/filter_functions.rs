//! Symbol lookup for `FIELD.function` in event filters.

use std::ops::Range;

use kprobed_filter::Functions;

use super::SymbolTable;

impl Functions for SymbolTable {
    /// The first symbol of that name, as kernel/kallsyms.c:kallsyms_lookup_name returns it.
    fn named(&self, name: &str) -> Option<Range<u64>> {
        self.at(self.lookup_spelled(name)?.address)
    }

    fn at(&self, address: u64) -> Option<Range<u64>> {
        Some(self.locate(address)?.range())
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        self.similar_code_names(name).first().copied()
    }
}
