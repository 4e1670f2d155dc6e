//! x86-64 instruction decoding: boundaries, disassembly, and the properties that kprobes look at.
//!
//! Owns the only use of the decoder crate (iced-x86), behind a few functions. Never reads memory,
//! and never judges a probe.

mod boost;
mod boundaries;
mod listing;
mod opcode;

pub use boost::boostable;
pub use boundaries::{Boundaries, Branch, boundaries, branches};
pub use listing::{Instruction, listing};
pub use opcode::KernelOpcode;

use iced_x86::{Decoder, DecoderOptions};

/// Most bytes of an instruction.
pub const MAX_INSTRUCTION_BYTES: usize = 15;

/// Forced-emulation prefixes of kvm and xen: UD2 and a name before the instruction to emulate. The
/// kernel's decoder takes it for a prefix (arch/x86/lib/insn.c:insn_get_emulate_prefix, since 5.5).
const EMULATE_PREFIXES: [[u8; 5]; 2] = [[0x0f, 0x0b, b'x', b'e', b'n'], [0x0f, 0x0b, b'k', b'v', b'm']];

/// Bytes of such a prefix at the beginning of `code`: 5 or 0.
fn emulate_prefix_bytes(code: &[u8]) -> usize {
    if EMULATE_PREFIXES.iter().any(|prefix| code.starts_with(prefix)) { 5 } else { 0 }
}

/// A decoder that accepts prefixes without a meaning, as the kernel's does.
fn decoder(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NO_INVALID_CHECK)
}

/// Bytes of ENDBR at the beginning of `code`, sealed or not: 4 or 0.
///
/// A function whose address is never taken is sealed at boot, on processors without IBT as well
/// (arch/x86/kernel/alternative.c:apply_seal_endbr). What is written then differs between releases
/// (arch/x86/include/asm/ibt.h:gen_endbr_poison).
pub fn endbr_bytes(code: &[u8]) -> usize {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    const SEALED_6_12: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
    const SEALED_7_2: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
    let begins = |form: [u8; 4]| code.starts_with(&form);
    if begins(ENDBR64) || begins(ENDBR32) || begins(SEALED_6_12) || begins(SEALED_7_2) { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_four_bytes() {
        for (code, bytes) in [
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x90][..], 4),
            (&[0xf3, 0x0f, 0x1e, 0xfb], 4),
            (&[0x66, 0x0f, 0x1f, 0x00], 4),
            (&[0x0f, 0x1f, 0x40, 0xd6], 4),
            (&[0x0f, 0x1f, 0x40, 0x00], 0),
            (&[0xf3, 0x0f, 0x1e], 0),
        ] {
            assert_eq!(endbr_bytes(code), bytes, "{code:x?}");
        }
    }
}
