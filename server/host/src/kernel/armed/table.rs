//! First bytes of the instructions below breakpoints, read from the kernel's table of kprobes.
//!
//! Owns walking that hash table in kernel memory (kernel/kprobes.c:kprobe_table). Never guesses: a
//! record that does not prove itself is left out.

use std::collections::BTreeMap;

use super::super::{KernelText, SymbolTable};
use crate::little_endian::u64_at;

/// Heads of the table's chains (kernel/kprobes.c, `KPROBE_TABLE_SIZE`; the same in all versions).
const CHAINS: usize = 64;

/// More probes than any kernel can hold. Reading stops there, in case a chain that changes
/// meanwhile has no end.
const MAX_PROBES: usize = 1 << 20;

/// Bytes of `struct kprobe` that are read, including the pointer to the copied instruction.
const RECORD_BYTES: usize = 112;

/// Offset of `addr` in `struct kprobe` (include/linux/kprobes.h; the members before it are those of
/// 2.6.25).
const ADDRESS_AT: usize = 40;

/// Where `opcode` may be, with the pointer to the copied instruction 8 bytes after it: 5.14 removed
/// `fault_handler` before it, 4.19 `break_handler`.
const OPCODE_AT: [usize; 3] = [80, 88, 96];

/// The byte below each probe that has a copy of its instruction, by the probe's address. Empty when
/// the kernel does not show its table (`CONFIG_KALLSYMS_ALL`).
pub(super) fn opcodes(text: &KernelText, symbols: &SymbolTable) -> BTreeMap<u64, u8> {
    let mut found = BTreeMap::new();
    let Some(table) = symbols.address("kprobe_table") else { return found };
    let heads = text.read(table, CHAINS * 8).unwrap_or_default();
    let mut left = MAX_PROBES;
    for head in heads.chunks_exact(8) {
        let mut next = pointer(head, 0);
        while let Some(record) = next.and_then(|at| text.read(at, RECORD_BYTES).ok()) {
            if left == 0 {
                return found;
            }
            left -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::text::tests::core;
    use proptest::prelude::*;

    const MEMORY: u64 = 0xffff_ffff_8200_0000;
    const CODE: u64 = 0xffff_ffff_8100_0000;
    /// Where the tests put records and copies.
    const RECORDS: u64 = MEMORY + 0x400;
    const COPIES: u64 = MEMORY + 0x800;

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
        assert_eq!(opcodes(&text, &symbols()), BTreeMap::from(expected));
        assert!(opcodes(&text, &SymbolTable::parse("ffffffff82000200 b next\n")).is_empty());
    }

    #[test]
    fn a_record_that_contradicts_its_copy_is_left_out() {
        let mut memory = vec![0; 0x1000];
        let wrong = record(&mut memory, 1, 80, (0x55, 0x41), 0);
        put(&mut memory, MEMORY, wrong);
        let file = core(MEMORY, &memory);
        assert!(opcodes(&KernelText::open(file.path()).unwrap(), &symbols()).is_empty());
    }

    #[test]
    fn a_chain_without_end_ends() {
        let mut memory = vec![0; 0x1000];
        let one = record(&mut memory, 1, 80, (0x55, 0x55), RECORDS + 128);
        put(&mut memory, MEMORY, one);
        let file = core(MEMORY, &memory);
        assert_eq!(opcodes(&KernelText::open(file.path()).unwrap(), &symbols()).len(), 1);
    }

    proptest! {
        #[test]
        fn any_memory_is_survived(bytes in proptest::collection::vec(any::<u8>(), 512..1024), at in 0..64usize) {
            let mut bytes = bytes;
            // A pointer that leads into it, so that there is a record to read.
            bytes[at * 8..at * 8 + 8].copy_from_slice(&(MEMORY + 100).to_le_bytes());
            let file = core(MEMORY, &bytes);
            prop_assert!(opcodes(&KernelText::open(file.path()).unwrap(), &symbols()).len() <= bytes.len());
        }
    }
}
