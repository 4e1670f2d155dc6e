//! Instruction boundaries: where each instruction of a piece of code begins and ends.
//!
//! Decodes forward from the first byte, as the kernel does before it accepts the place of a probe
//! (arch/x86/kernel/kprobes/core.c:can_probe). Never resynchronises after a byte that does not
//! decode.

use iced_x86::{Code, Decoder, Instruction};

use super::{decoder, emulate_prefix_bytes};

/// Where an instruction is, in bytes from the beginning of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// The instructions of some code, from its first byte on.
#[expect(missing_debug_implementations, reason = "the decoder has none")]
pub struct Boundaries<'a> {
    code: &'a [u8],
    decoder: Decoder<'a>,
    instruction: Instruction,
}

/// Decodes forward from the first byte of `code`. Decoding stops at a byte that does not decode, as
/// the kernel's does (arch/x86/kernel/kprobes/core.c:can_probe): nothing after it is a boundary.
pub fn boundaries(code: &[u8]) -> Boundaries<'_> {
    Boundaries { code, decoder: decoder(code, 0), instruction: Instruction::default() }
}

impl Iterator for Boundaries<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
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
        Some(Extent { start, end: self.decoder.position() })
    }
}

impl Boundaries<'_> {
    /// Decodes again after the mark of forced emulation, if the UD2 at `start` is part of one.
    fn decode_emulated(&mut self, start: usize) -> Option<()> {
        let prefix = emulate_prefix_bytes(self.code.get(start..)?);
        if prefix > 0 {
            self.decoder.set_position(start + prefix).ok()?;
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
