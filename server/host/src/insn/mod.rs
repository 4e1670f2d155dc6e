//! x86-64 instruction decoding: boundaries, disassembly, and the properties that kprobes look at.
//!
//! Owns the only use of the decoder crate (iced-x86), behind a few functions. Never reads memory,
//! and never judges a probe.

mod boost;
mod boundaries;
mod endbr;
mod listing;
mod opcode;

pub use boost::boostable;
pub use boundaries::{Boundaries, Branch, Extent, boundaries, branches};
pub use endbr::endbr_bytes;
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
