//! Boostable instructions: those that can run from a copy and continue after the original, without
//! a second trap (arch/x86/kernel/kprobes/core.c:can_boost).
//!
//! A jump-optimised kprobe can only replace boostable instructions.

use super::KernelOpcode;

/// The second bytes of two-byte opcodes that can be boosted (twobyte_is_boostable; the same since
/// 5.9): a row for each high nibble, a bit for each low one.
const TWO_BYTES: [u16; 16] = [
    0x034c, 0x8000, 0x000f, 0x0002, 0xffff, 0x0000, 0xcfff, 0xc0f0, 0x0000, 0xffff, 0xbb3b, 0xf8ff, 0xff03,
    0xbb2e, 0xbb26, 0x772e,
];

/// Whether the kernel boosts this instruction. `with_groups`: also shifts, `not`, `neg`, `mul`,
/// `div`, `inc` and `dec` (groups 2 to 5, since 6.9). Entries of the exception table, which also
/// forbid it, are not known here.
pub fn boostable(opcode: &KernelOpcode, with_groups: bool) -> bool {
    match opcode.opcode_bytes {
        1 => !opcode.short_addresses && !opcode.code_segment && one_byte(opcode, with_groups),
        2 => {
            let row = TWO_BYTES.get(usize::from(opcode.second >> 4)).copied().unwrap_or_default();
            row & (1 << (opcode.second & 15)) != 0
        }
        _ => false,
    }
}

fn one_byte(opcode: &KernelOpcode, with_groups: bool) -> bool {
    let reg = opcode.reg();
    match opcode.first {
        // BOUND, conditional jumps, far call, INT, the FPU, loops, near call and jump, prefixes and
        // HLT.
        0x62
        | 0x70..=0x7f
        | 0x9a
        | 0xcc..=0xce
        | 0xd6
        | 0xd8..=0xdf
        | 0xe0..=0xe3
        | 0xe8
        | 0xe9
        | 0xeb
        | 0xf0..=0xf4 => false,
        // Groups 2, 3 and 4, without what is reserved in them.
        0xc0 | 0xc1 | 0xd0..=0xd3 => with_groups && reg != 6,
        0xf6 | 0xf7 => with_groups && reg != 1,
        0xfe => with_groups && reg <= 1,
        // Group 5: the indirect near jump, then INC and DEC as well.
        0xff => reg == 4 || with_groups && reg <= 1,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boosts(code: &[u8]) -> (bool, bool) {
        let opcode = KernelOpcode::parse(code, 0).unwrap();
        (boostable(&opcode, false), boostable(&opcode, true))
    }

    #[test]
    fn instructions_are_boosted_as_the_kernel_does() {
        for (code, expected, what) in [
            (&[0x55][..], (true, true), "push %rbp"),
            (&[0x48, 0x89, 0xe5], (true, true), "mov %rsp,%rbp"),
            (&[0xc3], (true, true), "ret"),
            (&[0x0f, 0x1f, 0x44, 0, 0], (true, true), "nopl"),
            (&[0x0f, 0xb6, 0xc0], (true, true), "movzbl"),
            (&[0x0f, 0xaf, 0xc0], (true, true), "imul"),
            (&[0x0f, 0xc8], (true, true), "bswap"),
            (&[0x0f, 0xa2], (false, false), "cpuid"),
            (&[0x0f, 0xba, 0xe0, 1], (false, false), "bt $1: group 8"),
            (&[0xf3, 0x0f, 0x1e, 0xfa], (false, false), "endbr64"),
            (&[0x0f, 0x84, 0, 0, 0, 0], (false, false), "je"),
            (&[0x74, 0], (false, false), "je"),
            (&[0xe8, 0, 0, 0, 0], (false, false), "call"),
            (&[0xeb, 0], (false, false), "jmp"),
            (&[0xc1, 0xe0, 3], (false, true), "shl"),
            (&[0xf7, 0xd8], (false, true), "neg"),
            (&[0xff, 0xc0], (false, true), "inc"),
            (&[0xff, 0xd0], (false, false), "call *%rax"),
            (&[0xff, 0xe0], (true, true), "jmp *%rax"),
            (&[0xff, 0xf0], (false, false), "push %rax, the long form"),
            (&[0x67, 0x8b, 0], (false, false), "mov (%eax),%eax"),
            (&[0x2e, 0x8b, 0], (false, false), "mov %cs:(%rax),%eax"),
            (&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], (true, true), "mov %gs:0,%rax"),
            (&[0x66, 0x0f, 0x38, 0x00, 0xc1], (false, false), "pshufb: three bytes of opcode"),
            (&[0xc5, 0xf9, 0xef, 0xc0], (true, true), "vpxor: one byte of opcode, without the map"),
            (&[0xc5, 0xf9, 0x70, 0xc0, 1], (false, false), "vpshufd looks like a jump"),
        ] {
            assert_eq!(boosts(code), expected, "{what}");
        }
    }

    proptest! {
        #[test]
        fn what_old_kernels_boost_newer_ones_do(code in proptest::collection::vec(any::<u8>(), 0..16)) {
            if let Some(opcode) = KernelOpcode::parse(&code, 0) {
                prop_assert!(!boostable(&opcode, false) || boostable(&opcode, true));
            }
        }
    }
}
