//! Patch sites: code that the kernel rewrites while it runs (jump labels, static calls), the
//! instructions of BUG and WARN, and instructions that may fault.
//!
//! Owns the tables of such code, read once from kernel memory and, for modules, from the addresses
//! in sysfs. Their entries are those of 6.1 to 7.3. Never decides, and never takes the tables of a file for those of a
//! running kernel.

mod bugs;

use std::ops::Range;
use std::path::Path;

use super::{KernelText, SymbolTable, hex};
use crate::little_endian::{u32_at, u64_at};

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

impl Table {
    /// The table of a module with as many entries as the kernel counts, if that is found in `module`, its
    /// `struct module` (include/linux/module.h). Without it, what lies behind the table is taken for entries of it
    /// where it leads to code of the same module.
    ///
    /// Where members are differs by kernel and configuration, and is found by the address of the table. Where the
    /// memory of the module is comes between the table of exceptions and the others, and can begin with a table.
    fn as_counted(&self, module: &[u8]) -> Self {
        let mut places =
            (0..module.len()).step_by(8).filter(|at| u64_at(module, *at) == Some(self.memory.start));
        // A number of 32 bits before an address fills the place behind another one, or has nothing behind it.
        let before = |at: usize| {
            let number = |bytes| u32_at(module, at.checked_sub(bytes)?);
            number(4).filter(|count| *count > 0).or_else(|| number(8))
        };
        let counted = match self.kind {
            TableKind::Exceptions => places.next().and_then(before).zip(Some(EXCEPTION_ENTRY_BYTES)),
            TableKind::StaticCalls => places.next_back().and_then(before).zip(Some(STATIC_CALL_ENTRY_BYTES)),
            TableKind::JumpLabels => {
                places.next_back().and_then(|at| u32_at(module, at + 8)).zip(Some(JUMP_LABEL_ENTRY_BYTES))
            }
            // How long an entry is, the entries say; each must lead to the instruction of a BUG.
            TableKind::Bugs => None,
        };
        let Range { start, end } = self.memory;
        let end_of = |(count, bytes): (u32, usize)| start.checked_add(u64::from(count) * bytes as u64);
        let counted = counted.and_then(end_of).filter(|counted| (start + 1..=end).contains(counted));
        Self { memory: start..counted.unwrap_or(end), ..self.clone() }
    }
}

/// Bytes of a part of memory.
fn length(memory: &Range<u64>) -> usize {
    usize::try_from(memory.end.saturating_sub(memory.start)).unwrap_or(usize::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableKind {
    JumpLabels,
    StaticCalls,
    Bugs,
    Exceptions,
}

/// Where each table is: between two symbols of the kernel itself, which its linker script defines
/// (include/asm-generic/vmlinux.lds.h), and in a section of a module.
const TABLES: [(TableKind, [&str; 2], &str); 4] = [
    (TableKind::JumpLabels, ["__start___jump_table", "__stop___jump_table"], "__jump_table"),
    (TableKind::StaticCalls, ["__start_static_call_sites", "__stop_static_call_sites"], ".static_call_sites"),
    (TableKind::Bugs, ["__start___bug_table", "__stop___bug_table"], "__bug_table"),
    (TableKind::Exceptions, ["__start___ex_table", "__stop___ex_table"], "__ex_table"),
];

/// A larger table means that a symbol was misread.
const TABLE_MAX_BYTES: usize = 16 << 20;

/// Pages are mapped whole: a section without another one after it ends with its page at the
/// earliest.
const PAGE_BYTES: u64 = 4096;

/// The next section may be in another part of the address space: no module has a table of this
/// size.
const MODULE_TABLE_MAX_BYTES: u64 = 256 << 10;

/// `struct exception_table_entry` (arch/x86/include/asm/extable.h; the same since 4.6).
const EXCEPTION_ENTRY_BYTES: usize = 12;
/// `struct jump_entry` with relative addresses (include/linux/jump_label.h).
const JUMP_LABEL_ENTRY_BYTES: usize = 16;
/// `struct static_call_site` (include/linux/static_call_types.h).
const STATIC_CALL_ENTRY_BYTES: usize = 8;

/// Set in the key of an entry about code of the initialisation, which is gone and not looked at any
/// more (kernel/jump_label.c:jump_label_text_reserved, since `system_state` is SYSTEM_RUNNING;
/// kernel/static_call_inline.c:static_call_text_reserved, in the address of the key).
const KEY_INIT: u64 = 2;

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
            let (tables, itself) = module_tables(&modules.join(module).join("sections"));
            let itself = itself.and_then(|memory| text.read_up_to(memory.start, length(&memory)).ok());
            for table in tables {
                let table = table.as_counted(itself.as_deref().unwrap_or_default());
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
        let start = table.memory.start;
        let length = length(&table.memory);
        if length > TABLE_MAX_BYTES {
            return;
        }
        let Ok(bytes) = text.read(start, length) else { return };
        // Bytes after the end of a module's table are read too: only entries about code of the same
        // module are believed.
        let plausible = |address: &u64| {
            symbols
                .locate(*address)
                .is_some_and(|located| located.symbol.is_code() && located.symbol.module == module)
        };
        match table.kind {
            TableKind::JumpLabels => {
                let labels = jump_labels(start, &bytes, text.is_image());
                self.jump_labels.extend(labels.filter(|label| plausible(&label.from)));
            }
            TableKind::StaticCalls => {
                self.static_calls.extend(static_calls(start, &bytes).filter(plausible));
            }
            TableKind::Bugs => {
                let read = |address| text.read(address, 2).ok();
                self.bugs.extend(bugs::parse(start, &bytes, read).filter(plausible));
            }
            TableKind::Exceptions => {
                let exceptions = exceptions(start, &bytes);
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

/// The kernel's own tables.
fn core_tables(symbols: &SymbolTable) -> impl Iterator<Item = Table> {
    TABLES.into_iter().filter_map(move |(kind, [start, stop], _)| {
        Some(Table { kind, memory: symbols.between(start, stop)? })
    })
}

/// The section of a module that is its `struct module`.
const ITSELF: &str = ".gnu.linkonce.this_module";

/// The tables of a module, and its `struct module`. Sysfs does not say how long they are: each reaches to the next
/// section, at most. Files that cannot be read are left out.
fn module_tables(sections: &Path) -> (Vec<Table>, Option<Range<u64>>) {
    let Ok(directory) = std::fs::read_dir(sections) else { return (Vec::new(), None) };
    let found: Vec<(String, u64)> = directory
        .flatten()
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let address = hex(&text)?;
            Some((entry.file_name().into_string().ok()?, address)).filter(|(_, address)| *address != 0)
        })
        .collect();
    let memory = |start: &u64, last: u64| {
        let next = found.iter().map(|(_, address)| *address).filter(|address| address > start).min();
        *start..next.unwrap_or(last).min(start.saturating_add(MODULE_TABLE_MAX_BYTES))
    };
    let table = |(name, start): &(String, u64)| {
        let kind = TABLES.iter().find(|(.., section)| section == name)?.0;
        Some(Table { kind, memory: memory(start, (start | (PAGE_BYTES - 1)).saturating_add(1)) })
    };
    // It can reach into the next page: a part of it would have the beginning of a table and not the count.
    let itself = found.iter().find(|(name, _)| name == ITSELF);
    let itself = itself.map(|(_, start)| memory(start, start.saturating_add(PAGE_BYTES)));
    (found.iter().filter_map(table).collect(), itself)
}

/// The instructions of all entries of a table of exceptions at `start`, and where each leads to.
///
/// An entry begins with the address of the instruction that may fault, as a distance from itself.
/// The address where the kernel goes on follows it in the same form. What comes after that is a
/// function (before 5.16) or a kind (arch/x86/include/asm/extable_fixup_types.h), and none of those
/// that the table of a kernel or a module has goes on elsewhere.
fn exceptions(start: u64, bytes: &[u8]) -> impl Iterator<Item = Lead> {
    entries(start, bytes, EXCEPTION_ENTRY_BYTES).filter_map(|(at, entry)| Lead::parse(at, entry))
}

/// The code of all jump labels of the table at `start`, and where its jump leads to while it is one.
/// In an image (`built`), the flag means something else until boot sets it anew: that objtool was to
/// make a NOP of the jump (arch/x86/include/asm/jump_label.h:arch_static_branch, since 5.14).
fn jump_labels(start: u64, bytes: &[u8], built: bool) -> impl Iterator<Item = Lead> {
    entries(start, bytes, JUMP_LABEL_ENTRY_BYTES).filter_map(move |(at, entry)| {
        let key = u64_at(entry, 8)?;
        (built || key & KEY_INIT == 0).then(|| Lead::parse(at, entry)).flatten()
    })
}

/// Addresses of all static calls of the table at `start`.
fn static_calls(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    entries(start, bytes, STATIC_CALL_ENTRY_BYTES).filter_map(|(at, entry)| {
        let key = self_relative(at.wrapping_add(4), entry.get(4..)?)?;
        (key & KEY_INIT == 0).then(|| self_relative(at, entry)).flatten()
    })
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
    use proptest::prelude::*;

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

    #[test]
    fn tables_reach_to_the_next_section() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            (".text", "0xffffffffc0000000\n"),
            ("__jump_table", "0xffffffffc0002000\n"),
            (".rodata", "0xffffffffc0002040\n"),
            ("__bug_table", "0xffffffffc0003010\n"),
            (".static_call_sites", "0x0000000000000000\n"),
            (".odd", "nonsense"),
            (ITSELF, "0xffffffffc0003000\n"),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let (mut tables, itself) = module_tables(directory.path());
        tables.sort_by_key(|table| table.memory.start);
        let base = 0xffff_ffff_c000_0000;
        assert_eq!(
            tables,
            [
                Table { kind: TableKind::JumpLabels, memory: base + 0x2000..base + 0x2040 },
                Table { kind: TableKind::Bugs, memory: base + 0x3010..base + 0x4000 },
            ]
        );
        assert_eq!(itself, Some(base + 0x3000..base + 0x3010));
        assert_eq!(module_tables(&directory.path().join("absent")), (Vec::new(), None));
        // The last section of all is read whole, across the end of its page.
        std::fs::remove_file(directory.path().join("__bug_table")).unwrap();
        let (_, itself) = module_tables(directory.path());
        assert_eq!(itself, Some(base + 0x3000..base + 0x4000));
        std::fs::write(directory.path().join(ITSELF), "0xffffffffc0003d00\n").unwrap();
        let (_, itself) = module_tables(directory.path());
        assert_eq!(itself, Some(base + 0x3d00..base + 0x4d00));
    }

    #[test]
    fn a_table_of_a_module_has_as_many_entries_as_the_kernel_counts() {
        const TABLE: u64 = 0xffff_ffff_c000_2000;
        let whole = |kind| Table { kind, memory: TABLE..TABLE + 0x1000 };
        let bytes = |kind, words: &[u64]| {
            let module: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            length(&whole(kind).as_counted(&module).memory)
        };
        let packed = |low: u64, high: u64| low | high << 32;
        // The memory of the module can begin with the table, and its size follows.
        let memory = [TABLE, packed(0x1000, 0)];
        let labels = [&memory[..], &[TABLE, packed(6, 77), 5]].concat();
        assert_eq!(bytes(TableKind::JumpLabels, &labels), 6 * JUMP_LABEL_ENTRY_BYTES);
        let calls = [&memory[..], &[packed(9, 4), TABLE]].concat();
        assert_eq!(bytes(TableKind::StaticCalls, &calls), 4 * STATIC_CALL_ENTRY_BYTES);
        let exceptions = [&[packed(3, 0), TABLE][..], &memory].concat();
        assert_eq!(bytes(TableKind::Exceptions, &exceptions), 3 * EXCEPTION_ENTRY_BYTES);
        // Nothing is counted, more than there is room for, or nowhere.
        for words in [[TABLE, 0], [TABLE, 0x10000], [1, 2]] {
            assert_eq!(bytes(TableKind::JumpLabels, &words), 0x1000, "{words:x?}");
        }
        assert_eq!(bytes(TableKind::Exceptions, &[TABLE]), 0x1000);
        assert_eq!(bytes(TableKind::Bugs, &labels), 0x1000);
    }

    #[test]
    fn exceptions_are_relative_to_their_entry() {
        let entry = |distance: i32| [&distance.to_le_bytes()[..], &[7, 0, 0, 0, 9, 9, 9, 9]].concat();
        let bytes = [entry(-0x100), entry(0x20), vec![0; 11]].concat();
        let lead = |from, to| Lead { from, to };
        let found: Vec<_> = exceptions(0x1000, &bytes).collect();
        assert_eq!(found, [lead(0xf00, 0x100b), lead(0x102c, 0x1017)]);
    }

    #[test]
    fn jump_labels_are_relative_to_their_entry() {
        let entry =
            |code: i32, key: u64| [&code.to_le_bytes()[..], &7i32.to_le_bytes(), &key.to_le_bytes()].concat();
        let bytes = [entry(-0x100, 1), entry(-0x100, 2), entry(0x20, 0), vec![0; 15]].concat();
        let lead = |from, to| Lead { from, to };
        let (first, last) = (lead(0xf00, 0x100b), lead(0x1040, 0x102b));
        assert_eq!(jump_labels(0x1000, &bytes, false).collect::<Vec<_>>(), [first, last]);
        let built: Vec<_> = jump_labels(0x1000, &bytes, true).collect();
        assert_eq!(built, [first, lead(0xf10, 0x101b), last]);
    }

    #[test]
    fn the_flag_of_a_static_call_is_in_the_address_of_its_key() {
        let entry = |site: i32, key: i32| [site.to_le_bytes(), key.to_le_bytes()].concat();
        // Keys at 0x1004 + 0x1c = 0x1020, and at 0x100c + 0x16 = 0x1022: the second is of the
        // initialisation; 1 is a tail call.
        let bytes = [entry(-0x10, 0x1c), entry(-0x10, 0x16), entry(0x30, 0xd)].concat();
        assert_eq!(static_calls(0x1000, &bytes).collect::<Vec<_>>(), [0xff0, 0x1040]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(start: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(exceptions(start, &bytes).count(), bytes.len() / EXCEPTION_ENTRY_BYTES);
            prop_assert!(jump_labels(start, &bytes, false).count() <= bytes.len() / JUMP_LABEL_ENTRY_BYTES);
            prop_assert!(static_calls(start, &bytes).count() <= bytes.len() / STATIC_CALL_ENTRY_BYTES);
        }
    }
}
