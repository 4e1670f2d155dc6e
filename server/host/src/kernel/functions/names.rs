//! Call sites of ftrace from the names in `available_filter_functions`.
//!
//! Before 6.5 the kernel gives names only, and hundreds of functions share theirs. Two facts tell
//! them apart: the kernel writes the list in the order of addresses
//! (kernel/trace/ftrace.c:ftrace_process_locs sorts them), so that a name lies between its
//! neighbours; and a traceable function begins with a call of `__fentry__` or the NOP in its place.
//!
//! Code of a weak function that another one has replaced has no symbol. Before 5.19 (kernel/trace/ftrace.c:
//! FTRACE_MCOUNT_MAX_OFFSET) the list names it by the symbol before it, so that a function has a line for itself, if it
//! has a call site, and one for each such code behind it.

use std::collections::HashMap;

use super::{CALL_SITE_NOP, OTHER_CALL_SITE_NOP, SymbolTable};
use crate::insn;

/// Name of a call site that the kernel's own symbol table cannot name: the code of a weak function
/// that another one has replaced (kernel/trace/ftrace.c:FTRACE_INVALID_FUNCTION). The number is the
/// distance from the symbol before it.
const INVALID_PREFIX: &str = "__ftrace_invalid_address___";

/// The least alignment of a function, in bytes (arch/x86/Makefile, arch/x86/Kconfig: FUNCTION_ALIGNMENT).
const ALIGNMENT: usize = 16;

/// First byte of an instruction that is being rewritten (arch/x86/kernel/alternative.c: text_poke_bp).
const BREAKPOINT: u8 = 0xcc;

/// All call sites of the list.
pub(super) fn call_sites(
    text: &str,
    symbols: &SymbolTable,
    read: &mut dyn FnMut(u64) -> Option<[u8; 9]>,
) -> Vec<u64> {
    let entries: Vec<_> = text.lines().map(|line| parse(line, symbols)).collect();
    let bounds = upper_bounds(&entries);
    let mut lines = HashMap::<u64, usize>::new();
    for function in entries.iter().filter_map(ListedFunction::only) {
        *lines.entry(function).or_default() += 1;
    }
    let mut sites = Vec::with_capacity(entries.len());
    let mut below = 0;
    for (entry, above) in entries.into_iter().zip(bounds) {
        if let Some(function) = entry.only() {
            // All sites of a function are found with its first line.
            let Some(lines) = lines.remove(&function) else { continue };
            sites.extend(sites_of(function, lines, symbols, read));
            below = sites.last().map_or(below, |last| below.max(*last));
            continue;
        }
        let found = match entry {
            ListedFunction::Functions(functions) => {
                let possible = between(&functions, below, above);
                first_traced(possible, read).map(|function| site_of(function, read))
            }
            ListedFunction::Unnamed { offset } => unnamed(offset, below, above, symbols, read),
        };
        if let Some(site) = found {
            below = below.max(site);
            sites.push(site);
        }
    }
    sites
}

/// One line of the list.
enum ListedFunction {
    /// Addresses of the functions that it may mean, ascending.
    Functions(Vec<u64>),
    /// Code without a name of its own, this many bytes after a symbol.
    Unnamed { offset: u64 },
}

impl ListedFunction {
    /// The function that it means, if it can mean one only.
    fn only(&self) -> Option<u64> {
        match self {
            Self::Functions(functions) => <[u64; 1]>::try_from(functions.as_slice()).ok().map(|[only]| only),
            Self::Unnamed { .. } => None,
        }
    }
}

fn parse(line: &str, symbols: &SymbolTable) -> ListedFunction {
    let mut words = line.split_ascii_whitespace();
    let name = words.next().unwrap_or_default();
    let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
    if let Some(offset) = name.strip_prefix(INVALID_PREFIX).and_then(|offset| offset.parse().ok()) {
        return ListedFunction::Unnamed { offset };
    }
    // The kernel names an address by the first of its symbols: if this name is not the first, it
    // was not meant.
    let means = |address: u64| symbols.locate(address).is_some_and(|located| located.symbol.name == name);
    let functions =
        symbols.named(name, module).filter(|symbol| symbol.module == module && means(symbol.address));
    ListedFunction::Functions(functions.map(|symbol| symbol.address).collect())
}

/// For each entry the address that it must lie below: that of the next one that is certain.
fn upper_bounds(entries: &[ListedFunction]) -> Vec<u64> {
    let mut above = u64::MAX;
    let mut bounds: Vec<u64> = entries
        .iter()
        .rev()
        .map(|entry| {
            let bound = above;
            above = entry.only().unwrap_or(above);
            bound
        })
        .collect();
    bounds.reverse();
    bounds
}

/// The functions that fit between the neighbours. The list is not in order where one group of pages
/// ends and the next begins: when none fits, all are possible.
fn between(functions: &[u64], below: u64, above: u64) -> Vec<u64> {
    let fitting: Vec<u64> =
        functions.iter().copied().filter(|address| *address > below && *address < above).collect();
    if fitting.is_empty() { functions.to_vec() } else { fitting }
}

/// The first that is not known to have no call site. What comes after it has a line of its own.
fn first_traced(functions: Vec<u64>, read: &mut dyn FnMut(u64) -> Option<[u8; 9]>) -> Option<u64> {
    functions.into_iter().find(|function| read(*function).is_none_or(|code| call_in(&code).is_some()))
}

/// The call sites of a function with so many lines, ascending.
fn sites_of(
    function: u64,
    lines: usize,
    symbols: &SymbolTable,
    read: &mut dyn FnMut(u64) -> Option<[u8; 9]>,
) -> Vec<u64> {
    let code = read(function);
    let own = function + code.map_or(0, |code| insn::endbr_bytes(&code) as u64);
    let has_own = code.is_none_or(|code| call_in(&code).is_some() || code.first() == Some(&BREAKPOINT));
    let replaced = lines - usize::from(has_own);
    if replaced == 0 {
        return vec![own];
    }
    let end = symbols.locate(function).map_or(function, |located| function.saturating_add(located.size));
    let mut begins = |address: u64| read(address).is_some_and(|code| is_nop(&code));
    let behind = (function + 1).next_multiple_of(ALIGNMENT as u64)..end;
    let inside: Vec<u64> = behind.step_by(ALIGNMENT).filter(|address| begins(*address)).collect();
    // The NOP of a jump label in the function itself comes before.
    match inside.len().checked_sub(replaced) {
        Some(others) => has_own.then_some(own).into_iter().chain(inside.into_iter().skip(others)).collect(),
        None => vec![own],
    }
}

/// Distance from the beginning of a function to its call site, if there is one.
fn call_in(code: &[u8]) -> Option<u64> {
    let offset = insn::endbr_bytes(code);
    is_call(code.get(offset..)?).then_some(offset as u64)
}

fn is_call(code: &[u8]) -> bool {
    const CALL: u8 = 0xe8;
    is_nop(code) || code.first() == Some(&CALL)
}

fn is_nop(code: &[u8]) -> bool {
    [CALL_SITE_NOP, OTHER_CALL_SITE_NOP].iter().any(|nop| code.starts_with(nop))
}

fn site_of(function: u64, read: &mut dyn FnMut(u64) -> Option<[u8; 9]>) -> u64 {
    function + read(function).map_or(0, |code| insn::endbr_bytes(&code) as u64)
}

/// Code at that distance from a symbol between the neighbours, if only one place fits.
fn unnamed(
    offset: u64,
    below: u64,
    above: u64,
    symbols: &SymbolTable,
    read: &mut dyn FnMut(u64) -> Option<[u8; 9]>,
) -> Option<u64> {
    let from = symbols.locate(below)?.symbol.address;
    let mut last = None;
    let mut fitting = Vec::new();
    for symbol in symbols.code_in(from..above).filter(|symbol| symbol.module.is_none()) {
        if last.replace(symbol.address) == Some(symbol.address) {
            continue;
        }
        let site = symbol.address.saturating_add(offset);
        let inside = symbols.locate(site).is_some_and(|located| located.offset == offset);
        // The offset may or may not count an ENDBR: it is that of the call itself.
        if inside && site > below && site < above && read(site).is_none_or(|code| is_call(&code)) {
            fitting.push(site);
        }
    }
    match fitting.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;
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
    const NOP: [u8; 9] = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0, 0, 0];
    const OTHER_NOP: [u8; 9] = [0x66, 0x66, 0x66, 0x66, 0x90, 0x55, 0, 0, 0];
    const ENDBR: [u8; 9] = [0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0];

    fn sites(list: &str, code: fn(u64) -> Option<[u8; 9]>) -> Vec<u64> {
        let table = SymbolTable::parse(SYMBOLS);
        call_sites(list, &table, &mut |address| code(address)).iter().map(|site| site - BASE).collect()
    }

    #[test]
    fn order_tells_twins_apart() {
        assert_eq!(sites("first\nmiddle\ntwin\nlast\n", |_| None), [0, 0x80, 0xc0, 0x140]);
        assert_eq!(sites("first\ntwin\nmiddle\ntwin\ntwin\n", |_| None), [0, 0x40, 0x80, 0xc0, 0x100]);
    }

    #[test]
    fn code_tells_twins_apart() {
        let only_the_last = |address| Some(if address == BASE + 0xc0 { [0x90; 9] } else { NOP });
        assert_eq!(sites("middle\ntwin\nlast\n", only_the_last), [0x80, 0x100, 0x140]);
        let with_other_nops = |address| Some(if address == BASE + 0xc0 { [0x90; 9] } else { OTHER_NOP });
        assert_eq!(sites("middle\ntwin\nlast\n", with_other_nops), [0x80, 0x100, 0x140]);
    }

    #[test]
    fn sites_lie_behind_endbr() {
        assert_eq!(sites("first\n", |_| Some(ENDBR)), [4]);
    }

    #[test]
    fn code_without_a_name_has_a_place() {
        let list = "last\n__ftrace_invalid_address___96\nend\n";
        assert_eq!(sites(list, |_| Some(NOP)), [0x140, 0x1a0, 0x200]);
        assert_eq!(
            sites("first\n__ftrace_invalid_address___16\nlast\n", |_| None),
            [0, 0x140],
            "not certain"
        );
    }

    /// `first` is named for itself and for replaced code behind it, and `middle` for such code alone, as
    /// `__bpf_tramp_exit` of 5.10, which is not traced. The NOP at 0x10 is that of a jump label.
    #[test]
    fn replaced_code_has_the_name_before_it() {
        let code = |address: u64| {
            Some(if [0, 0x10, 0x30, 0xa0, 0x140].contains(&(address - BASE)) { NOP } else { [0x90; 9] })
        };
        assert_eq!(sites("first\nfirst\nmiddle\nlast\n", code), [0, 0x30, 0xa0, 0x140]);
        assert_eq!(sites("first\nmiddle\nfirst\n", code), [0, 0x30, 0xa0], "in two groups of pages");
        assert_eq!(sites("middle\nmiddle\n", code), [0x80], "not certain");
        assert_eq!(sites("middle\n", |_| None), [0x80]);
        assert_eq!(sites("middle\n", |_| Some([BREAKPOINT; 9])), [0x80], "it is being rewritten");
    }

    #[test]
    fn modules_have_their_own() {
        assert_eq!(sites("twin [mod]\n", |_| Some(NOP)), [0x3f00_0000]);
    }

    proptest! {
        #[test]
        fn any_list_is_survived(list in "(([a-z]{1,6}|first|twin|__ftrace_invalid_address___[0-9]{1,25})( \\[mod\\])?\n){0,9}") {
            let table = SymbolTable::parse(SYMBOLS);
            for site in call_sites(&list, &table, &mut |_| None) {
                prop_assert!(table.locate(site).is_some());
            }
        }
    }
}
