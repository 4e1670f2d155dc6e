//! Disassembly of a function in AT&T syntax, with the names of branch targets.
//!
//! Never shows an address: a target without a name is a distance (`.+5`).

use std::cell::RefCell;
use std::rc::Rc;

use iced_x86::{Formatter as _, GasFormatter, OpKind, SymbolResolver, SymbolResult};

use super::{decoder, emulate_prefix_bytes};

/// One instruction of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Distance from the beginning of the function, in bytes.
    pub offset: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// AT&T syntax, as objdump prints it; `(bad)` for a byte that the decoder does not know.
    pub text: String,
}

/// All instructions of a function that lies at `address`, with `name` giving the symbol of an
/// address that an operand refers to. Addresses themselves are not shown: without a name, a branch
/// shows its distance (`.+5`). A byte that does not decode is listed as `(bad)`, and decoding
/// continues after it, so that a listing never ends early.
pub fn listing(code: &[u8], address: u64, name: &dyn Fn(u64) -> Option<String>) -> Vec<Instruction> {
    let mut decoder = decoder(code, address);
    let names = Names::default();
    let mut formatter = GasFormatter::with_options(Some(Box::new(names.clone())), None);
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(false);
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    options.set_rip_relative_addresses(true);
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
            names.look_up(&instruction, name);
            formatter.format(&instruction, &mut text);
        } else {
            text.push_str("(bad)");
        }
        let bytes = code.get(start..decoder.position()).unwrap_or_default().to_vec();
        instructions.extend(u32::try_from(start).map(|offset| Instruction { offset, bytes, text }));
    }
    instructions
}

/// Names of the addresses that the next printed instruction refers to. Shared, because the
/// formatter owns its resolver.
#[derive(Clone, Default)]
struct Names(Rc<RefCell<Vec<(u64, String)>>>);

impl Names {
    fn look_up(&self, instruction: &iced_x86::Instruction, name: &dyn Fn(u64) -> Option<String>) {
        let spoken_of = |operand| match instruction.op_kind(operand) {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                let target = instruction.near_branch_target();
                let distance = || format!(".{:+}", target.wrapping_sub(instruction.ip()).cast_signed());
                Some((target, name(target).unwrap_or_else(distance)))
            }
            OpKind::Memory => {
                let address = instruction.memory_displacement64();
                Some((address, name(address)?))
            }
            OpKind::Immediate32to64 | OpKind::Immediate64 => {
                let address = instruction.immediate(operand);
                Some((address, name(address)?))
            }
            _ => None,
        };
        *self.0.borrow_mut() = (0..instruction.op_count()).filter_map(spoken_of).collect();
    }
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _instruction: &iced_x86::Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let names = self.0.borrow();
        let (_, name) = names.iter().find(|(named, _)| *named == address)?;
        Some(SymbolResult::with_string(address, name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn listings_read_like_objdump() {
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xc3];
        let texts: Vec<_> =
            listing(&code, 0xffff_ffff_8100_0000, &|_| None).into_iter().map(|i| i.text).collect();
        assert_eq!(texts, ["nopl (%rax,%rax)", "push %rbp", "mov %rsp,%rbp", "call .+5", "ret"]);
        let bad: Vec<_> =
            listing(&[0x06, 0x90], 0, &|_| None).into_iter().map(|i| (i.offset, i.text)).collect();
        assert_eq!(bad, [(0, "(bad)".to_owned()), (1, "nop".to_owned())]);
        let emulated = listing(&[0x0f, 0x0b, 0x78, 0x65, 0x6e, 0x0f, 0xa2, 0xc3], 0, &|_| None);
        assert_eq!(emulated[0].text, "forced emulation of: cpuid");
        assert_eq!(emulated[1].offset, 7);
    }

    #[test]
    fn what_has_a_name_is_called_by_it() {
        const BASE: u64 = 0xffff_ffff_8100_0000;
        let text = |code: &[u8]| {
            let name = |address: u64| match address.checked_sub(BASE)? {
                0 => Some("f".to_owned()),
                offset @ 1..0x1000 => Some(format!("f+{offset:#x}")),
                _ => None,
            };
            listing(code, BASE, &name).remove(0).text
        };
        assert_eq!(text(&[0xe8, 0x0b, 0, 0, 0]), "call f+0x10");
        assert_eq!(text(&[0x74, 0xfe]), "je f");
        assert_eq!(text(&[0xe9, 0, 0, 0, 0x10]), "jmp .+268435461");
        assert_eq!(text(&[0xeb, 0xf0]), "jmp .-14");
        assert_eq!(text(&[0x48, 0x8b, 0x05, 0x19, 0, 0, 0]), "mov f+0x20(%rip),%rax");
        assert_eq!(text(&[0x48, 0x8b, 0x05, 0xe9, 0xff, 0xff, 0xff]), "mov -0x17(%rip),%rax");
        assert_eq!(text(&[0x48, 0xc7, 0xc7, 0x10, 0, 0, 0x81]), "mov $f+0x10,%rdi");
        assert_eq!(text(&[0x48, 0xc7, 0xc7, 0xea, 0xff, 0xff, 0xff]), "mov $0xffffffffffffffea,%rdi");
        assert_eq!(text(&[0x48, 0x8b, 0x04, 0xc5, 0x20, 0, 0, 0x81]), "mov f+0x20(,%rax,8),%rax");
    }

    proptest! {
        #[test]
        fn any_bytes_are_listed_whole(code in proptest::collection::vec(any::<u8>(), 0..200), address: u64) {
            let listed: Vec<u8> = listing(&code, address, &|_| None).into_iter().flat_map(|i| i.bytes).collect();
            prop_assert_eq!(&listed, &code);
        }
    }
}
