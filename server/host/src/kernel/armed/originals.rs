//! Original instructions below the jump of an optimised kprobe, read from the kernel's detour
//! buffer.

use super::super::{KernelText, SymbolTable};
use crate::insn;

pub(super) const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;

/// The instructions that an optimised probe's jump has replaced: they are copied to the end of the
/// detour code that the jump leads to (arch/x86/kernel/kprobes/opt.c:arch_prepare_optimized_kprobe;
/// that code has the length of its template). Their bytes are the original ones but for distances.
pub(super) fn behind_jump(
    address: u64,
    patched: &[u8],
    text: &KernelText,
    symbols: &SymbolTable,
) -> Option<Vec<u8>> {
    let template = symbols.between("optprobe_template_entry", "optprobe_template_end")?;
    let length = template.end.checked_sub(template.start)?;
    let copies = jump_target(address, patched)?.checked_add(length)?;
    let code = text.read_up_to(copies, JUMP_BYTES + insn::MAX_INSTRUCTION_BYTES).ok()?;
    let last = insn::boundaries(&code).find(|extent| extent.end >= JUMP_BYTES)?;
    Some(code.get(..last.end)?.to_vec())
}

/// Where the near jump at `address` leads.
pub(super) fn jump_target(address: u64, code: &[u8]) -> Option<u64> {
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
}
