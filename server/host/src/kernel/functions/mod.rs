//! Traceable functions: the call sites of ftrace.
//!
//! A kprobe event can only be in a function that ftrace can trace
//! (kernel/trace/trace_kprobe.c:within_notrace_func, without CONFIG_KPROBE_EVENTS_ON_NOTRACE): most
//! refusals have this reason. Owns the call sites; the rule is in `kprobed_verdict::validate`.

mod names;

use super::{SymbolTable, hex};

/// The bytes of a call site while ftrace is off (`x86_nops[5]`, arch/x86/kernel/alternative.c);
/// otherwise a call.
pub(super) const CALL_SITE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// The same on some processors, to 5.12 (`K8_NOP5_ATOMIC`, arch/x86/include/asm/nops.h).
const OTHER_CALL_SITE_NOP: [u8; 5] = [0x66, 0x66, 0x66, 0x66, 0x90];

/// Bytes of a call site (`MCOUNT_INSN_SIZE`, arch/x86/include/asm/ftrace.h).
const CALL_SITE_BYTES: u64 = CALL_SITE_NOP.len() as u64;

/// Addresses of all ftrace call sites.
#[derive(Debug, Default)]
pub struct TraceableFunctions {
    /// Ascending.
    sites: Vec<u64>,
}

impl TraceableFunctions {
    /// Parses `available_filter_functions_addrs` (since 6.5): `ADDRESS NAME [MODULE]`, the exact
    /// call sites.
    pub fn from_call_sites(text: &str) -> Self {
        Self::at(text.lines().filter_map(|line| hex(line.split_ascii_whitespace().next()?)).collect())
    }

    /// Parses `available_filter_functions`: `NAME [MODULE]`, with `read` giving the first bytes of
    /// code at an address, as far as that can be read.
    pub fn from_names(
        text: &str,
        symbols: &SymbolTable,
        read: &mut dyn FnMut(u64) -> Option<[u8; 9]>,
    ) -> Self {
        Self::at(names::call_sites(text, symbols, read))
    }

    /// Call sites at these addresses.
    pub fn at(mut sites: Vec<u64>) -> Self {
        sites.sort_unstable();
        sites.dedup();
        sites.shrink_to_fit();
        Self { sites }
    }

    /// Whether a call site begins at `address`.
    pub fn is_site(&self, address: u64) -> bool {
        self.sites.binary_search(&address).is_ok()
    }

    /// Whether any byte of `start .. start + size` belongs to a call site
    /// (kernel/trace/ftrace.c:ftrace_location_range).
    pub fn touches(&self, start: u64, size: u64) -> bool {
        self.overlapping(start, size).next().is_some()
    }

    /// Call sites with a byte in `start .. start + size`.
    pub fn overlapping(&self, start: u64, size: u64) -> impl Iterator<Item = u64> {
        let first = self.sites.partition_point(|site| site.saturating_add(CALL_SITE_BYTES) <= start);
        let end = start.saturating_add(size);
        self.sites.get(first..).unwrap_or_default().iter().copied().take_while(move |site| *site < end)
    }

    /// Whether the kernel lists no function at all: then it has no dynamic ftrace, and the rule
    /// does not apply.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_found_by_overlap() {
        let functions = TraceableFunctions::from_call_sites("ffffffffc0000000 a [mod]\nffffffff81000084 c\n");
        let site = 0xffff_ffff_8100_0084;
        assert!(functions.is_site(site) && !functions.is_site(site + 1));
        for (start, size, touches) in [(-4, 4, false), (-4, 5, true), (4, 1, true), (5, 1, false)] {
            assert_eq!(functions.touches(site.wrapping_add_signed(start), size), touches, "{start} {size}");
        }
    }
}
