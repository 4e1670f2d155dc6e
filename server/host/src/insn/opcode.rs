//! The opcode bytes and ModRM of an instruction, as the kernel's own decoder reports them.
//!
//! The kernel's checks look at one or two opcode bytes and at ModRM, after all prefixes
//! (arch/x86/lib/insn.c). For VEX and EVEX instructions its decoder reports one opcode byte,
//! without the map: `vpminsw` looks like a far jump to the kernel's checks, and so it does here.

use iced_x86::{Instruction, OpKind};

use super::{decoder, emulate_prefix_bytes};

/// The parts of an instruction that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOpcode {
    /// First byte of the opcode (`insn.opcode.bytes[0]`).
    pub first: u8,
    /// Second byte of the opcode; 0 when it has one.
    pub second: u8,
    /// Bytes of the opcode, 1 to 3 (`insn.opcode.nbytes`).
    pub opcode_bytes: u8,
    /// ModRM, or the byte in its place.
    pub modrm: u8,
    /// Whether it has the prefix for 32-bit addresses.
    pub short_addresses: bool,
    /// Whether it has the prefix of the code segment.
    pub code_segment: bool,
    /// Bytes of the whole instruction.
    pub length: u8,
    /// Whether it begins with the mark of forced emulation.
    pub emulated: bool,
    /// Target address of a RIP-relative memory operand.
    pub rip_relative: Option<u64>,
    /// Target address, if the kernel takes it for a direct jump
    /// (arch/x86/kernel/kprobes/opt.c:insn_jump_into_range), which a few VEX instructions are, too.
    pub jump_target: Option<u64>,
}

impl KernelOpcode {
    /// Decodes the instruction at the beginning of `code`, which lies at `address`. Absent when it
    /// does not decode.
    pub fn parse(code: &[u8], address: u64) -> Option<Self> {
        let emulate_prefix = emulate_prefix_bytes(code);
        let code = code.get(emulate_prefix..)?;
        let instruction = decoder(code, address.wrapping_add(emulate_prefix as u64)).decode();
        if instruction.is_invalid() {
            return None;
        }
        let legacy = code.iter().take_while(|byte| is_legacy_prefix(**byte)).count();
        let has_prefix = |prefix| code.iter().take(legacy).any(|byte| *byte == prefix);
        let rest = code.get(legacy..)?;
        let rest = rest.get(usize::from(rest.first().is_some_and(|byte| byte & 0xf0 == 0x40))..)?;
        let (opcode_at, one_byte) = match rest {
            [0xc5, ..] => (2, true),
            [0xc4, ..] => (3, true),
            [0x62, ..] => (4, true),
            _ => (0, false),
        };
        let opcode = rest.get(opcode_at..)?;
        let (first, second, opcode_bytes) = match *opcode {
            [0x0f, map @ (0x38 | 0x3a), ..] if !one_byte => (0x0f, map, 3),
            [0x0f, second, ..] if !one_byte => (0x0f, second, 2),
            [first, ..] => (first, 0, 1_u8),
            [] => return None,
        };
        let in_memory = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
        Some(Self {
            first,
            second,
            modrm: opcode.get(usize::from(opcode_bytes)).copied().unwrap_or_default(),
            opcode_bytes,
            short_addresses: has_prefix(0x67),
            code_segment: has_prefix(0x2e),
            length: u8::try_from(emulate_prefix + instruction.len()).unwrap_or_default(),
            emulated: emulate_prefix > 0,
            rip_relative: (in_memory && instruction.is_ip_rel_memory_operand())
                .then(|| instruction.ip_rel_memory_address()),
            jump_target: jumps(first, second).then(|| jump_target(&instruction)),
        })
    }

    /// The middle bits of ModRM (`X86_MODRM_REG`).
    pub fn reg(&self) -> u8 {
        (self.modrm >> 3) & 7
    }

    /// The top bits of ModRM (`X86_MODRM_MOD`); 3: no memory operand.
    pub fn mode(&self) -> u8 {
        self.modrm >> 6
    }
}

/// LOOP, JCXZ, near and short jumps, conditional or not.
fn jumps(first: u8, second: u8) -> bool {
    match first {
        0x0f => second & 0xf0 == 0x80,
        0x70..=0x7f | 0xe0..=0xe3 | 0xe9 | 0xeb => true,
        _ => false,
    }
}

/// The end of the instruction, plus its immediate if it has one.
fn jump_target(instruction: &Instruction) -> u64 {
    let immediate = (0..instruction.op_count()).find(|i| instruction.op_kind(*i) == OpKind::Immediate8);
    if instruction.op0_kind() == OpKind::NearBranch64 {
        instruction.near_branch_target()
    } else {
        let distance = if immediate.is_some() { instruction.immediate8().cast_signed() } else { 0 };
        instruction.next_ip().wrapping_add_signed(distance.into())
    }
}

fn is_legacy_prefix(byte: u8) -> bool {
    matches!(byte, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_are_not_the_opcode() {
        let parse = |code: &[u8]| KernelOpcode::parse(code, 0).unwrap();
        let parts = |code: &[u8]| (parse(code).first, parse(code).second, parse(code).reg());
        assert_eq!(parts(&[0x48, 0xcf]), (0xcf, 0, 0), "iretq");
        assert_eq!(parts(&[0x8e, 0xd2]), (0x8e, 0, 2), "mov %edx,%ss");
        assert_eq!(parts(&[0x0f, 0x01, 0xc1]), (0x0f, 0x01, 0), "vmcall");
        assert_eq!(parts(&[0xf2, 0x66, 0x0f, 0x38, 0xf1, 0xc1]), (0x0f, 0x38, 0), "crc32");
        assert_eq!(parts(&[0xc5, 0xf9, 0xea, 0xc1]), (0xea, 0, 0), "vpminsw is a far jump to the kernel");
        assert!(parse(&[0x67, 0xff, 0x10]).short_addresses);
        assert!(parse(&[0x0f, 0x0b, b'k', b'v', b'm', 0x0f, 0xa2]).emulated);
        assert_eq!(KernelOpcode::parse(&[0x06], 0), None);
    }

    #[test]
    fn direct_jumps_lead_somewhere() {
        let target = |code: &[u8]| KernelOpcode::parse(code, 0x1000).unwrap().jump_target;
        assert_eq!(target(&[0xeb, 0x10]), Some(0x1012));
        assert_eq!(target(&[0x74, 0xfe]), Some(0x1000));
        assert_eq!(target(&[0x0f, 0x84, 0, 1, 0, 0]), Some(0x1106));
        assert_eq!(target(&[0xe3, 0]), Some(0x1002));
        assert_eq!(target(&[0xe8, 0, 1, 0, 0]), None, "a call comes back");
        assert_eq!(target(&[0xff, 0xe0]), None, "not direct");
        assert_eq!(target(&[0xc5, 0xf9, 0x70, 0xc0, 0xf0]), Some(0xff5), "vpshufd looks like a jump");
        assert_eq!(target(&[0xc5, 0xf8, 0x77]), Some(0x1003), "vzeroupper too");
    }

    #[test]
    fn rip_relative_operands_have_an_address() {
        // mov 0x10(%rip),%rax
        let code = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
        assert_eq!(KernelOpcode::parse(&code, 0x1000).unwrap().rip_relative, Some(0x1017));
        assert_eq!(KernelOpcode::parse(&[0x48, 0x8b, 0x00], 0x1000).unwrap().rip_relative, None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(code in proptest::collection::vec(any::<u8>(), 0..20), address: u64) {
            if let Some(opcode) = KernelOpcode::parse(&code, address) {
                prop_assert!((1..=code.len()).contains(&opcode.length.into()));
                prop_assert!((1..=3).contains(&opcode.opcode_bytes));
            }
        }
    }
}
