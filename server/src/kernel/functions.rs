//! Which functions ftrace can trace.
//!
//! A kprobe event can only live in such a function (kernel/trace/trace_kprobe.c:within_notrace_func, without
//! CONFIG_KPROBE_EVENTS_ON_NOTRACE): most refusals have this reason. Owns the list; the rule is in [`crate::validate`].

use super::SymbolTable;

/// Addresses of ftrace call sites, or of the functions that have one.
#[derive(Debug, Default)]
pub struct TraceableFunctions {
    /// Ascending.
    addresses: Vec<u64>,
}

impl TraceableFunctions {
    /// Parses `available_filter_functions_addrs` (since 6.5): `ADDRESS NAME [MODULE]`, the exact call sites.
    pub fn from_call_sites(text: &str) -> Self {
        let addresses = text
            .lines()
            .filter_map(|line| {
                u64::from_str_radix(line.split_ascii_whitespace().next()?.trim_start_matches("0x"), 16).ok()
            })
            .collect();
        Self::sorted(addresses)
    }

    /// Parses `available_filter_functions`: `NAME [MODULE]`. A name that several functions share stands for all of them, since the
    /// file does not say which.
    pub fn from_names(text: &str, symbols: &SymbolTable) -> Self {
        let addresses = text
            .lines()
            .flat_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let name = words.next().unwrap_or_default();
                let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
                symbols.named(name, module).map(|symbol| symbol.address)
            })
            .collect();
        Self::sorted(addresses)
    }

    fn sorted(mut addresses: Vec<u64>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        addresses.shrink_to_fit();
        Self { addresses }
    }

    /// The lowest call site in `start .. start + size`.
    pub fn first_in(&self, start: u64, size: u64) -> Option<u64> {
        let index = self.addresses.partition_point(|address| *address < start);
        self.addresses.get(index).copied().filter(|address| address - start < size)
    }

    /// Whether the kernel lists no function at all: then it has no dynamic ftrace, and the rule does not apply.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_say_the_same() {
        let symbols = SymbolTable::parse(
            "ffffffff81000000 t a\nffffffff81000040 t b\nffffffff81000080 t c\nffffffffc0000000 t a\t[mod]\n",
        );
        let named = TraceableFunctions::from_names("a [mod]\nc\n", &symbols);
        let exact = TraceableFunctions::from_call_sites("ffffffffc0000000 a [mod]\nffffffff81000084 c\n");
        for functions in [named, exact] {
            assert!(functions.first_in(0xffff_ffff_8100_0080, 0x40).is_some());
            assert!(functions.first_in(0xffff_ffff_c000_0000, 0x40).is_some());
            assert!(functions.first_in(0xffff_ffff_8100_0000, 0x40).is_none());
            assert!(functions.first_in(0xffff_ffff_8100_0040, 0x40).is_none());
        }
    }
}
