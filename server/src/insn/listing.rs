//! What instructions say.

use iced_x86::{Formatter as _, GasFormatter};

use super::{decoder, emulate_prefix_bytes};

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

/// All instructions of a function that lies at `address`. A byte that is no instruction is listed as `(bad)`, and decoding goes on behind
/// it, so that a listing never ends early.
pub fn listing(code: &[u8], address: u64) -> Vec<Instruction> {
    let mut decoder = decoder(code, address);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(false);
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    let mut instructions = Vec::new();
    while decoder.can_decode() {
        let start = decoder.position();
        let prefix = code.get(start..).map_or(0, emulate_prefix_bytes);
        if prefix > 0 && decoder.set_position(start + prefix).is_err() {
            break;
        }
        decoder.set_ip(address.wrapping_add((start + prefix) as u64));
        let instruction = decoder.decode();
        let valid = !instruction.is_invalid();
        if !valid && decoder.set_position(start + 1).is_err() {
            break;
        }
        let mut text = String::new();
        if prefix > 0 && valid {
            text.push_str("forced emulation of: ");
        }
        if valid {
            formatter.format(&instruction, &mut text);
        } else {
            text.push_str("(bad)");
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

    #[test]
    fn listings_read_like_objdump() {
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xc3];
        let texts: Vec<_> = listing(&code, 0xffff_ffff_8100_0000).into_iter().map(|i| i.text).collect();
        assert_eq!(
            texts,
            ["nopl (%rax,%rax)", "push %rbp", "mov %rsp,%rbp", "call 0xffffffff8100000e", "ret"]
        );
        let bad: Vec<_> = listing(&[0x06, 0x90], 0).into_iter().map(|i| (i.offset, i.valid)).collect();
        assert_eq!(bad, [(0, false), (1, true)]);
        let emulated = listing(&[0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x0f, 0xa2, 0xc3], 0);
        assert_eq!(emulated[0].text, "forced emulation of: cpuid");
        assert_eq!(emulated[1].offset, 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_listed_whole(code in proptest::collection::vec(any::<u8>(), 0..200), address: u64) {
            let listed: Vec<u8> = listing(&code, address).into_iter().flat_map(|i| i.bytes).collect();
            prop_assert_eq!(&listed, &code);
        }
    }
}
