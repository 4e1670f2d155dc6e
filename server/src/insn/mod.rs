//! x86-64 instructions: where they begin and what they say.
//!
//! Owns the only use of the decoder crate, behind an interface of two functions. Never reads memory and never judges.

use iced_x86::{Decoder, DecoderOptions, Formatter as _, GasFormatter};

/// One instruction of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Distance from the beginning of the function, in bytes.
    pub offset: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// AT&T syntax, as objdump prints it.
    pub text: String,
    /// Whether the decoder knows it. If not, it stands for one byte.
    pub valid: bool,
}

/// Where the instructions of `code` begin, decoding forward from its first byte. After a byte that is no instruction decoding stops,
/// as the kernel's does (arch/x86/kernel/kprobes/core.c:can_probe): nothing behind it is a boundary.
pub fn boundaries(code: &[u8]) -> Vec<u32> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut starts = Vec::with_capacity(code.len() / 4);
    while decoder.can_decode() {
        let start = decoder.position();
        if decoder.decode().is_invalid() {
            break;
        }
        starts.extend(u32::try_from(start));
    }
    starts
}

/// All instructions of a function that lies at `address`. A byte that is no instruction is listed as `(bad)`, and decoding goes on behind
/// it, so that a listing never ends early.
pub fn listing(code: &[u8], address: u64) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(false);
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    let mut instructions = Vec::new();
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        let valid = !instruction.is_invalid();
        if !valid && decoder.set_position(start + 1).is_err() {
            break;
        }
        let mut text = String::new();
        if valid {
            formatter.format(&instruction, &mut text);
        } else {
            text.push_str("(bad)");
            decoder.set_ip(address.wrapping_add(start as u64 + 1));
        }
        let bytes = code.get(start..decoder.position()).unwrap_or_default().to_vec();
        instructions.extend(u32::try_from(start).map(|offset| Instruction { offset, bytes, text, valid }));
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // nopl 0(%rax,%rax,1); push %rbp; mov %rsp,%rbp; call +0; ret
    const CODE: [u8; 15] = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xc3];

    #[test]
    fn boundaries_are_instruction_starts() {
        assert_eq!(boundaries(&CODE), [0, 5, 6, 9, 14]);
        assert_eq!(boundaries(&[0x90, 0x06, 0x90]), [0], "06 is no instruction in 64-bit mode");
    }

    #[test]
    fn listings_read_like_objdump() {
        let texts: Vec<_> = listing(&CODE, 0xffff_ffff_8100_0000).into_iter().map(|i| i.text).collect();
        assert_eq!(
            texts,
            ["nopl (%rax,%rax)", "push %rbp", "mov %rsp,%rbp", "call 0xffffffff8100000e", "ret"]
        );
        let bad: Vec<_> = listing(&[0x06, 0x90], 0).into_iter().map(|i| (i.offset, i.valid)).collect();
        assert_eq!(bad, [(0, false), (1, true)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_listed_whole(code in proptest::collection::vec(any::<u8>(), 0..200), address: u64) {
            let listed: Vec<u8> = listing(&code, address).into_iter().flat_map(|i| i.bytes).collect();
            prop_assert_eq!(&listed, &code);
            let starts = boundaries(&code);
            prop_assert!(starts.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(starts.iter().all(|start| (*start as usize) < code.len()));
        }
    }
}
