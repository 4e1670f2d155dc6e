//! The instructions that a probe has replaced, from the copies that the kernel executes instead.

use super::super::{KernelText, SymbolTable};
use crate::insn;

pub(super) const BREAKPOINT: u8 = 0xcc;
pub(super) const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;

/// Bytes of a copy, with what was added to it (`MAX_INSN_SIZE`, arch/x86/include/asm/kprobes.h).
const SLOT_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;

/// What an optimised probe's jump has replaced: whole instructions, copied to behind the code that it leads to
/// (arch/x86/kernel/kprobes/opt.c:arch_prepare_optimized_kprobe; that code has the length of its template). Their bytes are the original
/// ones but for distances.
pub(super) fn behind_jump(
    address: u64,
    patched: &[u8],
    text: &KernelText,
    symbols: &SymbolTable,
) -> Option<Vec<u8>> {
    let template = |name| symbols.lookup(name, None).map(|symbol| symbol.address);
    let length = template("optprobe_template_end")?.checked_sub(template("optprobe_template_entry")?)?;
    let copies = jump_target(address, patched)?.checked_add(length)?;
    let code = text.read_up_to(copies, JUMP_BYTES + insn::MAX_INSTRUCTION_BYTES).ok()?;
    let last = insn::boundaries(&code).find(|extent| extent.end >= JUMP_BYTES)?;
    Some(code.get(..last.end)?.to_vec())
}

/// What a breakpoint has replaced, from the copy of the instruction: that which jumps back to behind the probe, or, as not every copy
/// jumps, the longest whose other bytes are those behind the breakpoint (arch/x86/kernel/kprobes/core.c:prepare_singlestep).
pub(super) fn below_breakpoint(
    address: u64,
    patched: &[u8],
    pages: &[u64],
    text: &KernelText,
) -> Option<Vec<u8>> {
    let mut similar: Option<(usize, u8)> = None;
    for page in pages {
        let Ok(copies) = text.read(*page, PAGE_BYTES) else { continue };
        for (slot, at) in copies.chunks_exact(SLOT_BYTES).zip((*page..).step_by(SLOT_BYTES)) {
            let Some(length) = same_instruction(slot, patched) else { continue };
            let Some(first) = slot.first().copied() else { continue };
            let behind = slot.get(length..).unwrap_or_default();
            if behind.first() == Some(&JUMP) {
                let back = jump_target(at.wrapping_add(length as u64), behind);
                if back == Some(address.wrapping_add(length as u64)) {
                    return Some(vec![first]);
                }
                // The copy of another probe's instruction.
                continue;
            }
            similar = similar.max(Some((length, first)));
        }
    }
    similar.map(|(_, first)| vec![first])
}

/// The length of the instruction in `slot`, if it is that below the breakpoint: all bytes but the first are equal, and a distance to data,
/// which is adjusted in the copy.
fn same_instruction(slot: &[u8], patched: &[u8]) -> Option<usize> {
    if slot.first() == Some(&BREAKPOINT) {
        return None;
    }
    let extent = insn::boundaries(slot).next()?;
    let distance = insn::rip_displacement(slot);
    let equal = |index: usize| {
        distance.as_ref().is_some_and(|bytes| bytes.contains(&index)) || slot.get(index) == patched.get(index)
    };
    (1..extent.end).all(equal).then_some(extent.end)
}

/// Where the near jump at `address` leads.
fn jump_target(address: u64, code: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(code.get(1..JUMP_BYTES)?.try_into().ok()?);
    Some(address.wrapping_add(JUMP_BYTES as u64).wrapping_add_signed(distance.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::text::tests::core;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const PAGE: u64 = 0xffff_ffff_c000_0000;

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

    #[test]
    fn the_copy_that_leads_back_is_that_of_the_probe() {
        let mut page = vec![BREAKPOINT; PAGE_BYTES];
        // push %rbx and push %rbp: the second jumps back to behind our probe.
        page[0] = 0x53;
        page[1..6].copy_from_slice(&jump(PAGE + 1, CODE + 0x101));
        page[16] = 0x55;
        page[17..22].copy_from_slice(&jump(PAGE + 17, CODE + 1));
        // mov 0x10(%rip),%rax without a jump; its distance differs from that of the original.
        page[32..39].copy_from_slice(&[0x48, 0x8b, 0x05, 0x44, 0x33, 0x22, 0x11]);
        let file = core(PAGE, &page);
        let text = KernelText::open(file.path()).unwrap();
        assert_eq!(below_breakpoint(CODE, &[BREAKPOINT, 0x48], &[PAGE], &text), Some(vec![0x55]));
        let mov = [BREAKPOINT, 0x8b, 0x05, 0x10, 0, 0, 0];
        assert_eq!(below_breakpoint(CODE + 1, &mov, &[PAGE, 0x1000], &text), Some(vec![0x48]));
    }
}
