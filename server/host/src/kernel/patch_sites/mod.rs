//! Patch sites: code that the kernel rewrites while it runs (jump labels, static calls), the
//! instructions of BUG and WARN, and instructions that may fault.
//!
//! Owns the tables of such code, read once from kernel memory and, for modules, from the addresses
//! in sysfs. Never decides, and never takes the tables of a file for those of a running kernel.

mod bugs;
mod modules;
mod tables;

use std::ops::Range;
use std::path::Path;

use super::{KernelText, SymbolTable};

/// Addresses of all patch sites, each list ascending.
#[derive(Debug, Default)]
pub struct PatchSites {
    jump_labels: Vec<Lead>,
    static_calls: Vec<u64>,
    bugs: Vec<u64>,
    exceptions: Vec<Lead>,
}

/// Code that may lead elsewhere, which its bytes do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead {
    /// Its address.
    pub from: u64,
    /// The address where the kernel goes on.
    pub to: u64,
}

impl Lead {
    /// The two distances at the beginning of an entry at `at`, each from itself.
    fn parse(at: u64, entry: &[u8]) -> Option<Self> {
        let from = self_relative(at, entry)?;
        Some(Self { from, to: self_relative(at.wrapping_add(4), entry.get(4..)?)? })
    }
}

/// Bytes of every static call site (`CALL_INSN_SIZE`, arch/x86/include/asm/text-patching.h).
const STATIC_CALL_BYTES: u64 = 5;

/// Most bytes of a jump label.
const JUMP_LABEL_MAX_BYTES: u64 = 5;

/// A table in kernel memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    kind: TableKind,
    memory: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableKind {
    JumpLabels,
    StaticCalls,
    Bugs,
    Exceptions,
}

/// A larger table means that a symbol was misread.
const TABLE_MAX_BYTES: u64 = 16 << 20;

impl PatchSites {
    /// Reads the tables of the kernel and of all loaded modules (below `modules`, usually
    /// `/sys/module`). A table that is not there (such a kernel has no jump labels, or no static
    /// calls) or cannot be read has no sites.
    pub fn read(text: &KernelText, symbols: &SymbolTable, modules: &Path) -> Self {
        let mut sites = Self::default();
        for table in core_tables(symbols) {
            sites.add(&table, None, text, symbols);
        }
        for module in symbols.modules() {
            for table in modules::tables(&modules.join(module).join("sections")) {
                sites.add(&table, Some(module), text, symbols);
            }
        }
        sites.sorted()
    }

    fn sorted(mut self) -> Self {
        fn sort<T: Ord>(list: &mut Vec<T>) {
            list.sort_unstable();
            list.dedup();
            list.shrink_to_fit();
        }
        let Self { jump_labels, static_calls, bugs, exceptions } = &mut self;
        [static_calls, bugs].into_iter().for_each(sort);
        [jump_labels, exceptions].into_iter().for_each(sort);
        self
    }

    fn add(&mut self, table: &Table, module: Option<&str>, text: &KernelText, symbols: &SymbolTable) {
        let Range { start, end } = table.memory;
        let length = end.saturating_sub(start);
        if length > TABLE_MAX_BYTES {
            return;
        }
        let Ok(bytes) = text.read(start, usize::try_from(length).unwrap_or_default()) else { return };
        // Bytes after the end of a module's table are read too: only entries about code of the same
        // module are believed.
        let plausible = |address: &u64| {
            symbols
                .locate(*address)
                .is_some_and(|located| located.symbol.is_code() && located.symbol.module == module)
        };
        match table.kind {
            TableKind::JumpLabels => {
                let labels = tables::jump_labels(start, &bytes, text.is_image());
                self.jump_labels.extend(labels.filter(|label| plausible(&label.from)));
            }
            TableKind::StaticCalls => {
                self.static_calls.extend(tables::static_calls(start, &bytes).filter(plausible));
            }
            TableKind::Bugs => {
                let read = |address| text.read(address, 2).ok();
                self.bugs.extend(bugs::parse(start, &bytes, read).filter(plausible));
            }
            TableKind::Exceptions => {
                let exceptions = tables::exceptions(start, &bytes);
                self.exceptions.extend(exceptions.filter(|exception| plausible(&exception.from)));
            }
        }
    }

    /// Beginnings of jump labels that may reach `address`. How long each is (2 or 5 bytes) is in
    /// its code.
    pub fn jump_labels_near(&self, address: u64) -> impl Iterator<Item = u64> {
        near(&self.jump_labels, |label| label.from, address, JUMP_LABEL_MAX_BYTES)
            .iter()
            .map(|label| label.from)
    }

    /// Whether a jump label begins at `address`.
    pub fn is_jump_label(&self, address: u64) -> bool {
        self.jump_labels.binary_search_by_key(&address, |label| label.from).is_ok()
    }

    /// All jump labels, each with where it leads to while it is a jump.
    pub fn jump_labels(&self) -> &[Lead] {
        &self.jump_labels
    }

    /// All instructions that may fault, each with where the kernel goes on then.
    pub fn exceptions(&self) -> &[Lead] {
        &self.exceptions
    }

    /// The static call that has `address` as one of its bytes.
    pub fn static_call_over(&self, address: u64) -> Option<u64> {
        near(&self.static_calls, |site| *site, address, STATIC_CALL_BYTES).first().copied()
    }

    /// Static calls that have one of these bytes.
    pub fn static_call_in(&self, start: u64, bytes: u64) -> bool {
        let last = start.saturating_add(bytes.saturating_sub(1));
        near(&self.static_calls, |site| *site, last, bytes.saturating_add(STATIC_CALL_BYTES - 1))
            .iter()
            .any(|site| *site <= last)
    }

    /// Whether the instruction at `address` may fault, and the kernel then goes on elsewhere
    /// (kernel/extable.c:search_exception_tables).
    pub fn may_fault(&self, address: u64) -> bool {
        self.exceptions.binary_search_by_key(&address, |exception| exception.from).is_ok()
    }

    /// Whether a BUG or WARN has its instruction at `address`.
    pub fn is_bug(&self, address: u64) -> bool {
        self.bugs.binary_search(&address).is_ok()
    }
}

/// The sites of a list that begin at most `bytes - 1` before `address`.
fn near<T>(sites: &[T], start: impl Fn(&T) -> u64, address: u64, bytes: u64) -> &[T] {
    let first = sites.partition_point(|site| start(site).saturating_add(bytes) <= address);
    let after = sites.partition_point(|site| start(site) <= address);
    sites.get(first..after).unwrap_or_default()
}

/// The kernel's own tables, between the symbols that its linker script defines
/// (include/asm-generic/vmlinux.lds.h).
fn core_tables(symbols: &SymbolTable) -> impl Iterator<Item = Table> {
    const SYMBOLS: [(TableKind, &str, &str); 4] = [
        (TableKind::JumpLabels, "__start___jump_table", "__stop___jump_table"),
        (TableKind::StaticCalls, "__start_static_call_sites", "__stop_static_call_sites"),
        (TableKind::Bugs, "__start___bug_table", "__stop___bug_table"),
        (TableKind::Exceptions, "__start___ex_table", "__stop___ex_table"),
    ];
    let table = move |(kind, start, stop)| Some(Table { kind, memory: symbols.between(start, stop)? });
    SYMBOLS.into_iter().filter_map(table)
}

/// The address that a signed number at `at` says as a distance from itself.
pub(super) fn self_relative(at: u64, bytes: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    Some(at.wrapping_add_signed(distance.into()))
}

/// The entries of a table with the address of each.
pub(super) fn entries(start: u64, bytes: &[u8], size: usize) -> impl Iterator<Item = (u64, &[u8])> {
    bytes
        .chunks_exact(size)
        .zip(0u64..)
        .map(move |(entry, index)| (start.wrapping_add(index * size as u64), entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_reach_as_far_as_their_bytes() {
        let lead = |from| Lead { from, to: 0 };
        let sites = PatchSites {
            jump_labels: vec![lead(0x100), lead(0x104)],
            static_calls: vec![0x200],
            bugs: vec![0x300],
            exceptions: vec![lead(0x400)],
        };
        let labels = |address| sites.jump_labels_near(address).collect::<Vec<_>>();
        assert_eq!(labels(0x104), [0x100, 0x104]);
        assert_eq!(labels(0x105), [0x104]);
        assert!(labels(0x109).is_empty() && labels(0xff).is_empty());
        assert!(sites.is_jump_label(0x104) && !sites.is_jump_label(0x105));
        assert_eq!(sites.static_call_over(0x204), Some(0x200));
        assert_eq!(sites.static_call_over(0x205), None);
        let over = |start, bytes| sites.static_call_in(start, bytes);
        assert!(over(0x1fc, 5) && over(0x200, 1) && over(0x204, 9));
        assert!(!over(0x1fb, 5) && !over(0x205, 9));
        assert!(sites.may_fault(0x400) && !sites.may_fault(0x401));
        assert!(sites.is_bug(0x300) && !sites.is_bug(0x301), "only the first byte of a BUG is refused");
    }
}
