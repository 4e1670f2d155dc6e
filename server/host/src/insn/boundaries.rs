//! Instruction boundaries: where each instruction of a piece of code begins and ends.
//!
//! Decodes forward from the first byte, as the kernel does before it accepts the place of a probe
//! (arch/x86/kernel/kprobes/core.c:can_probe). Never resynchronises after a byte that does not
//! decode.

use std::ops::Range;

use iced_x86::{Code, Decoder, Instruction, OpKind};

use super::{decoder, emulate_prefix_bytes};

/// Where the instructions of some code are, from its first byte on, in bytes from there.
#[expect(missing_debug_implementations, reason = "the decoder has none")]
pub struct Boundaries<'a> {
    code: &'a [u8],
    address: u64,
    decoder: Decoder<'a>,
    instruction: Instruction,
}

/// Decodes forward from the first byte of `code`. Decoding stops at a byte that does not decode, as
/// the kernel's does (arch/x86/kernel/kprobes/core.c:can_probe): nothing after it is a boundary.
pub fn boundaries(code: &[u8]) -> Boundaries<'_> {
    Boundaries::at(code, 0)
}

/// The direct near jumps and calls of the code at `address`, and how many of its bytes decode.
pub fn branches(code: &[u8], address: u64) -> (Vec<Branch>, usize) {
    let mut boundaries = Boundaries::at(code, address);
    let (mut found, mut decoded) = (Vec::new(), 0);
    while let Some(extent) = boundaries.next() {
        let instruction = &boundaries.instruction;
        if instruction.op0_kind() == OpKind::NearBranch64 {
            let target = instruction.near_branch_target();
            found.push(Branch { offset: extent.start, target, is_call: instruction.is_call_near() });
        }
        decoded = extent.end;
    }
    (found, decoded)
}

/// A direct near jump or call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its first byte, in bytes from the beginning of the code.
    pub offset: usize,
    /// The address that it leads to.
    pub target: u64,
    /// Whether it is a call.
    pub is_call: bool,
}

impl Iterator for Boundaries<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = self.decoder.position();
        if !self.decoder.can_decode() {
            return None;
        }
        self.decoder.decode_out(&mut self.instruction);
        // UD2 is rare: only then is it worth a look whether it is a prefix.
        if self.instruction.code() == Code::Ud2 {
            self.decode_emulated(start)?;
        }
        if self.instruction.is_invalid() {
            // So that the next call finds the end as well.
            self.decoder = decoder(&[], 0);
            return None;
        }
        Some(start..self.decoder.position())
    }
}

impl<'a> Boundaries<'a> {
    fn at(code: &'a [u8], address: u64) -> Self {
        Self { code, address, decoder: decoder(code, address), instruction: Instruction::default() }
    }

    /// Decodes again after the mark of forced emulation, if the UD2 at `start` is part of one.
    fn decode_emulated(&mut self, start: usize) -> Option<()> {
        let prefix = emulate_prefix_bytes(self.code.get(start..)?);
        if prefix > 0 {
            self.decoder.set_position(start + prefix).ok()?;
            self.decoder.set_ip(self.address.wrapping_add((start + prefix) as u64));
            self.decoder.can_decode().then(|| self.decoder.decode_out(&mut self.instruction))?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn starts(code: &[u8]) -> Vec<usize> {
        boundaries(code).map(|extent| extent.start).collect()
    }

    #[test]
    fn boundaries_are_instruction_starts() {
        // nopl 0(%rax,%rax,1); push %rbp; mov %rsp,%rbp; call +0; ret
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xc3];
        assert_eq!(starts(&code), [0, 5, 6, 9, 14]);
        assert_eq!(starts(&[0x90, 0x06, 0x90]), [0], "06 is no instruction in 64-bit mode");
        assert_eq!(starts(&[0x90, 0x48]), [0], "the last one is cut off");
    }

    #[test]
    fn a_forced_emulation_is_one_instruction() {
        // ud2, "xen", cpuid; ret
        assert_eq!(starts(&[0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x0f, 0xa2, 0xc3]), [0, 7]);
        assert_eq!(starts(&[0x0f, 0x0b, 0xc3]), [0, 2]);
    }

    #[test]
    fn branches_are_direct_jumps_and_calls() {
        // jmp +1; int3; je -2; call +0x100; cpuid, emulated; jmp *%rax; jmp +0; cut off
        let code = [
            &[0xeb, 1, 0xcc, 0x74, 0xfe, 0xe8, 0, 1, 0, 0][..],
            &[0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x0f, 0xa2, 0xff, 0xe0, 0xe9, 0, 0, 0, 0, 0x0f],
        ]
        .concat();
        let branch = |offset, target, is_call| Branch { offset, target, is_call };
        let expected = vec![
            branch(0, 0x1003, false),
            branch(3, 0x1003, false),
            branch(5, 0x110a, true),
            branch(19, 0x1018, false),
        ];
        assert_eq!(branches(&code, 0x1000), (expected, code.len() - 1));
    }

    proptest! {
        #[test]
        fn any_bytes_give_ascending_extents(code in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut end = 0;
            for extent in boundaries(&code) {
                prop_assert_eq!(extent.start, end);
                prop_assert!(extent.end > extent.start && extent.end <= code.len());
                end = extent.end;
            }
        }
    }
}
