//! Registered kprobes of the whole host, and kernel code without their breakpoints and jumps.
//!
//! Owns the list of registered probes (debugfs `kprobes/list`), and undoing their patches in code
//! that was read, as the kernel's own checks do
//! (arch/x86/kernel/kprobes/core.c:recover_probed_instruction). Never writes anything: the original
//! bytes come from the kernel's own copies. Never guesses: a record of the kernel's table of kprobes
//! (kernel/kprobes.c:kprobe_table) that does not prove itself is left out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::facts::FRESH_FOR;
use super::{KernelText, SymbolTable, hex, read_text};
use crate::insn;
use crate::little_endian::u64_at;

/// All registered probes by address, at one time.
#[derive(Debug, Default)]
struct Registered {
    probes: Vec<Probe>,
    /// Original bytes below breakpoints, by address; read when the first breakpoint is undone.
    opcodes: OnceLock<BTreeMap<u64, u8>>,
}

/// A place with probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    address: u64,
    /// Whether the kernel has replaced a breakpoint by a jump, is about to, or has not yet taken
    /// the jump back: the flag changes before the code or after it
    /// (kernel/kprobes.c:optimize_kprobe, do_unoptimize_kprobes). What is patched, only the code
    /// tells.
    optimised: bool,
    /// Whether at least one of the probes there is enabled.
    enabled: bool,
}

/// The probes of the running kernel.
#[derive(Debug)]
pub struct ArmedProbes {
    /// Absent for a kernel that does not run.
    list: Option<PathBuf>,
    last: Mutex<Option<(Instant, Arc<Registered>)>>,
}

/// The first byte of an instruction with an armed probe.
const BREAKPOINT: u8 = 0xcc;

/// The first byte of the near jump of an optimised probe, and its length.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;

/// Heads of the chains of the kernel's table (kernel/kprobes.c, `KPROBE_TABLE_SIZE`; the same in all versions).
const CHAINS: usize = 64;

/// Records of a chain that are read beyond those of the whole list: of probes that have come since, or whose code has
/// gone. Reading the chain stops there, since one that changes meanwhile can lead to memory that leads to itself.
/// Each record costs two system calls, and all who ask wait for them.
const UNLISTED_MAX: usize = 1024;

/// Bytes of `struct kprobe` that are read, including the pointer to the copied instruction.
const RECORD_BYTES: usize = 112;

/// Offset of `addr` in `struct kprobe` (include/linux/kprobes.h; the members before it are those of
/// 2.6.25).
const ADDRESS_AT: usize = 40;

/// Where `opcode` may be, with the pointer to the copied instruction 8 bytes after it: 5.14 removed
/// `fault_handler` before it, 4.19 `break_handler`.
const OPCODE_AT: [usize; 3] = [80, 88, 96];

/// How often code is read again because probes came or went meanwhile.
const MAX_READINGS: usize = 4;

impl ArmedProbes {
    /// Reads nothing yet.
    pub fn new(debugfs: &Path) -> Self {
        Self { list: Some(debugfs.join("kprobes/list")), last: Mutex::default() }
    }

    /// Of a kernel that was not booted: none.
    pub fn none() -> Self {
        Self { list: None, last: Mutex::default() }
    }

    /// The list as it is now.
    fn read(&self) -> Arc<Registered> {
        // Without debugfs probes are unknown: code is taken as it is.
        let list = self.list.as_ref().and_then(|list| read_text(list).ok());
        let probes = parse(&list.unwrap_or_default());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let registered = match last.take() {
            // What was found out about them stays true.
            Some((_, same)) if same.probes == probes => same,
            _ => Arc::new(Registered { probes, opcodes: OnceLock::new() }),
        };
        *last = Some((Instant::now(), Arc::clone(&registered)));
        registered
    }

    /// The list as it is now, or was a moment ago.
    fn recent(&self) -> Arc<Registered> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some((read, registered)) if read.elapsed() < FRESH_FOR => registered,
            _ => self.read(),
        }
    }

    /// Whether a probe is registered at `address`: another one there is added to it, and nothing is
    /// patched any more (kernel/kprobes.c:register_aggr_kprobe). One that has come or gone in the
    /// last [`FRESH_FOR`] may not be noticed, which does no harm: it was placed where the rules
    /// that it makes superfluous allow it.
    pub fn is_registered(&self, address: u64) -> bool {
        self.recent().probes.binary_search_by_key(&address, |probe| probe.address).is_ok()
    }

    /// Whether an enabled probe is registered at one of these addresses.
    pub fn any_enabled_in(&self, addresses: Range<u64>) -> bool {
        let registered = self.recent();
        let first = registered.probes.partition_point(|probe| probe.address < addresses.start);
        let rest = registered.probes.get(first..).unwrap_or_default();
        rest.iter().take_while(|probe| probe.address < addresses.end).any(|probe| probe.enabled)
    }

    /// Code as it would be without probes: what `read` reads at `start`, with all patches undone.
    /// If something still looks like a patch, the list is read again, until nothing changes.
    pub(super) fn without_patches(
        &self,
        start: u64,
        read: impl Fn() -> Vec<u8>,
        (text, core_text): (&KernelText, &Range<u64>),
        symbols: &SymbolTable,
    ) -> Vec<u8> {
        let mut registered = self.recent();
        let mut code = Vec::new();
        for _ in 0..MAX_READINGS {
            code = read();
            undo(&registered, start, &mut code, text, symbols);
            if !looks_patched(start, &code, core_text) {
                break;
            }
            let now = self.read();
            if Arc::ptr_eq(&now, &registered) {
                break;
            }
            registered = now;
        }
        code
    }
}

/// Whether there is a byte that could be a breakpoint, or one that could be the jump of an
/// optimised probe: those lead out of the kernel's code.
fn looks_patched(start: u64, code: &[u8], core_text: &Range<u64>) -> bool {
    let leads_out = |offset: usize| {
        let target = jump_target(start.wrapping_add(offset as u64), code.get(offset..)?)?;
        Some(!core_text.contains(&target))
    };
    code.iter().enumerate().any(|(offset, byte)| match *byte {
        BREAKPOINT => true,
        JUMP => leads_out(offset).unwrap_or(false),
        _ => false,
    })
}

/// Undoes all patches in `code`, which was read at `start`.
fn undo(registered: &Registered, start: u64, code: &mut [u8], text: &KernelText, symbols: &SymbolTable) {
    let first = registered.probes.partition_point(|probe| probe.address < start);
    for &Probe { address, optimised, .. } in registered.probes.get(first..).unwrap_or_default() {
        let Some(patched) = usize::try_from(address - start).ok().and_then(|offset| code.get_mut(offset..))
        else {
            break;
        };
        match patched.first_mut() {
            Some(&mut JUMP) if optimised => {
                let original = behind_jump(address, patched, text, symbols);
                for (byte, original) in patched.iter_mut().zip(original.unwrap_or_default()) {
                    *byte = original;
                }
            }
            Some(byte @ &mut BREAKPOINT) => {
                let most = registered.probes.len() + UNLISTED_MAX;
                let opcodes = registered.opcodes.get_or_init(|| stored_opcodes(text, symbols, most));
                *byte = opcodes.get(&address).copied().unwrap_or(BREAKPOINT);
            }
            _ => {}
        }
    }
}

/// The instructions that an optimised probe's jump has replaced: they are copied to the end of the
/// detour code that the jump leads to (arch/x86/kernel/kprobes/opt.c:arch_prepare_optimized_kprobe;
/// that code has the length of its template). Their bytes are the original ones but for distances.
fn behind_jump(address: u64, patched: &[u8], text: &KernelText, symbols: &SymbolTable) -> Option<Vec<u8>> {
    let template = symbols.between("optprobe_template_entry", "optprobe_template_end")?;
    let length = template.end.checked_sub(template.start)?;
    let copies = jump_target(address, patched)?.checked_add(length)?;
    let code = text.read_up_to(copies, JUMP_BYTES + insn::MAX_INSTRUCTION_BYTES).ok()?;
    let last = insn::boundaries(&code).find(|extent| extent.end >= JUMP_BYTES)?;
    Some(code.get(..last.end)?.to_vec())
}

/// Where the near jump at `address` leads.
fn jump_target(address: u64, code: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(code.get(1..JUMP_BYTES)?.try_into().ok()?);
    Some(address.wrapping_add(JUMP_BYTES as u64).wrapping_add_signed(distance.into()))
}

/// The byte below each probe that has a copy of its instruction, by the probe's address, of at most so many
/// records of a chain. Empty when the kernel does not show its table (`CONFIG_KALLSYMS_ALL`).
fn stored_opcodes(text: &KernelText, symbols: &SymbolTable, most: usize) -> BTreeMap<u64, u8> {
    let mut found = BTreeMap::new();
    let Some(table) = symbols.address("kprobe_table") else { return found };
    let heads = text.read(table, CHAINS * 8).unwrap_or_default();
    for head in heads.chunks_exact(8) {
        let mut next = pointer(head, 0);
        for _ in 0..most {
            let Some(record) = next.and_then(|at| text.read(at, RECORD_BYTES).ok()) else { break };
            if let (Some(address), Some(opcode)) = (pointer(&record, ADDRESS_AT), opcode(&record, text)) {
                found.insert(address, opcode);
            }
            next = pointer(&record, 0);
        }
    }
    found
}

/// The byte that the kernel has stored for the breakpoint, if it is also the first of the copied
/// instruction: distances in a copy are adjusted, the first byte never is
/// (arch/x86/kernel/kprobes/core.c:arch_copy_kprobe).
fn opcode(record: &[u8], text: &KernelText) -> Option<u8> {
    OPCODE_AT.iter().find_map(|&at| {
        let opcode = *record.get(at)?;
        let copy = text.read(pointer(record, at + 8)?, 1).ok()?;
        (copy == [opcode]).then_some(opcode)
    })
}

/// The pointer at an offset, unless it is null.
fn pointer(bytes: &[u8], at: usize) -> Option<u64> {
    u64_at(bytes, at).filter(|pointer| *pointer != 0)
}

/// Parses lines of the form `ADDRESS k|r SYMBOL+0xOFFSET [MODULE] [FLAGS]...`. Probes whose code
/// has gone are left out.
fn parse(list: &str) -> Vec<Probe> {
    let probe = |line: &str| {
        let address = hex(line.split_ascii_whitespace().next()?)?;
        let probe =
            Probe { address, optimised: line.contains("[OPTIMIZED]"), enabled: !line.contains("[DISABLED]") };
        Some(probe).filter(|_| !line.contains("[GONE]"))
    };
    let mut probes: Vec<_> = list.lines().filter_map(probe).collect();
    // Several probes at one address are listed one by one; what is said of one holds for all.
    probes.sort_unstable_by_key(|probe| probe.address);
    probes.dedup_by(|next, kept| {
        let same = next.address == kept.address;
        if same {
            kept.optimised |= next.optimised;
            kept.enabled |= next.enabled;
        }
        same
    });
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::text::tests::core;
    use proptest::prelude::*;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const PAGE: u64 = 0xffff_ffff_c000_0000;
    const MEMORY: u64 = 0xffff_ffff_8200_0000;
    /// Where the tests put records and copies.
    const RECORDS: u64 = MEMORY + 0x400;
    const COPIES: u64 = MEMORY + 0x800;

    #[test]
    fn a_place_is_listed_once() {
        let list = "\
ffffffff81000100  k  f+0x0    [DISABLED]
ffffffff81000100  r  f+0x0
ffffffff81000000  k  g+0x0    [FTRACE]
ffffffff81000200  k  h+0x10    [DISABLED]
ffffffff81000200  k  h+0x10    [OPTIMIZED]
ffffffff81000300  k  i+0x0    [DISABLED]
ffffffffc0000000  k  m+0x0  mod [GONE]
";
        let base = 0xffff_ffff_8100_0000;
        let expected = [(0, false, true), (0x100, false, true), (0x200, true, true), (0x300, false, false)];
        let probe = |(offset, optimised, enabled): (u32, bool, bool)| Probe {
            address: base + u64::from(offset),
            optimised,
            enabled,
        };
        assert_eq!(parse(list), expected.map(probe));
    }

    fn jump(from: u64, to: u64) -> Vec<u8> {
        let distance = i32::try_from(to.wrapping_sub(from + 5).cast_signed()).unwrap();
        [&[JUMP][..], &distance.to_le_bytes()].concat()
    }

    #[test]
    fn copies_behind_the_template_are_what_the_jump_replaced() {
        let symbols = SymbolTable::parse(
            "ffffffff81001000 t optprobe_template_entry\nffffffff81001040 t optprobe_template_end\n",
        );
        // push %rbp; mov %rsp,%rbp; sub $8,%rsp; and the jump back.
        let originals = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 8];
        let back = jump(PAGE + 0x48, CODE + 8);
        let file = core(PAGE, &[&[0x90; 0x40][..], &originals, &back, &[0; 32]].concat());
        let text = KernelText::open(file.path()).unwrap();
        let patched = [jump(CODE, PAGE), vec![0x83, 0xec, 8]].concat();
        assert_eq!(behind_jump(CODE, &patched, &text, &symbols).unwrap(), originals);
        assert_eq!(behind_jump(CODE, &patched[..3], &text, &symbols), None);
    }

    fn symbols() -> SymbolTable {
        SymbolTable::parse("ffffffff82000000 b kprobe_table\nffffffff82000200 b next\n")
    }

    fn put(memory: &mut [u8], at: u64, value: u64) {
        let at = usize::try_from(at - MEMORY).unwrap();
        memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// A probe at `CODE + index` whose opcode is at `opcode_at`, with a copy that begins with
    /// `copied`.
    fn record(memory: &mut [u8], index: u64, opcode_at: u64, (opcode, copied): (u8, u8), next: u64) -> u64 {
        let (at, copy) = (RECORDS + 128 * index, COPIES + 15 * index);
        put(memory, at, next);
        put(memory, at + 40, CODE + index);
        put(memory, at + opcode_at, opcode.into());
        put(memory, at + opcode_at + 8, copy);
        memory[usize::try_from(copy - MEMORY).unwrap()] = copied;
        at
    }

    #[test]
    fn records_of_all_layouts_are_read() {
        let mut memory = vec![0; 0x1000];
        let last = record(&mut memory, 2, 96, (0x41, 0x41), 0);
        let first = record(&mut memory, 1, 80, (0x55, 0x55), last);
        let alone = record(&mut memory, 0, 88, (0x53, 0x53), 0);
        put(&mut memory, MEMORY + 8, first);
        put(&mut memory, MEMORY + 63 * 8, alone);
        let file = core(MEMORY, &memory);
        let text = KernelText::open(file.path()).unwrap();
        let expected = [(CODE, 0x53), (CODE + 1, 0x55), (CODE + 2, 0x41)];
        assert_eq!(stored_opcodes(&text, &symbols(), 3), BTreeMap::from(expected));
        assert!(stored_opcodes(&text, &SymbolTable::parse("ffffffff82000200 b next\n"), 3).is_empty());
    }

    #[test]
    fn a_record_that_contradicts_its_copy_is_left_out() {
        let mut memory = vec![0; 0x1000];
        let wrong = record(&mut memory, 1, 80, (0x55, 0x41), 0);
        put(&mut memory, MEMORY, wrong);
        let file = core(MEMORY, &memory);
        assert!(stored_opcodes(&KernelText::open(file.path()).unwrap(), &symbols(), 3).is_empty());
    }

    /// It leads to itself, and hides no other one.
    #[test]
    fn a_chain_without_end_ends() {
        let mut memory = vec![0; 0x1000];
        let endless = record(&mut memory, 1, 80, (0x55, 0x55), RECORDS + 128);
        let other = record(&mut memory, 0, 80, (0x53, 0x53), 0);
        put(&mut memory, MEMORY, endless);
        put(&mut memory, MEMORY + 8, other);
        let file = core(MEMORY, &memory);
        let found = stored_opcodes(&KernelText::open(file.path()).unwrap(), &symbols(), 3);
        assert_eq!(found, BTreeMap::from([(CODE, 0x53), (CODE + 1, 0x55)]));
    }

    proptest! {
        #[test]
        fn any_list_is_survived(list in ".{0,80}") {
            let _ = parse(&list);
        }

        #[test]
        fn any_memory_is_survived(bytes in proptest::collection::vec(any::<u8>(), 512..1024), at in 0..64usize) {
            let mut bytes = bytes;
            // A pointer that leads into it, so that there is a record to read.
            bytes[at * 8..at * 8 + 8].copy_from_slice(&(MEMORY + 100).to_le_bytes());
            let file = core(MEMORY, &bytes);
            prop_assert!(stored_opcodes(&KernelText::open(file.path()).unwrap(), &symbols(), 3).len() <= bytes.len());
        }
    }
}
