//! Retpolines: indirect calls and jumps that the compiler led to a thunk. Boot keeps them, makes
//! them direct again, or leads them elsewhere (arch/x86/kernel/alternative.c:patch_retpoline).

use super::super::super::SymbolTable;
use super::nops::NopStyle;
use super::padded;

/// Prefix of the names of thunks; the register is the rest (arch/x86/lib/retpoline.S).
const THUNK_PREFIX: &str = "__x86_indirect_thunk_";

const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

const CALL: u8 = 0xe8;
const JUMP: u8 = 0xe9;
const LONG_CONDITION: u8 = 0x80;
const SHORT_CONDITION: u8 = 0x70;
/// A prefix without a meaning, which makes room.
const CS: u8 = 0x2e;
const TRAP: u8 = 0xcc;
const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];

/// Code that boot may write at the branch at `start`: without a detour first, then with a fence,
/// and as the image has it.
pub(super) fn possible(start: u64, image: Vec<u8>, style: NopStyle, symbols: &SymbolTable) -> Vec<Vec<u8>> {
    let length = image.len();
    let Some((condition, is_call, opcode_at)) = form(&image) else { return vec![image] };
    let register = || {
        let distance = i32::from_le_bytes(*image.get(opcode_at..)?.first_chunk()?);
        let target = start.wrapping_add(length as u64).wrapping_add_signed(distance.into());
        let located = symbols.locate(target)?;
        let name = located.symbol.name.strip_prefix(THUNK_PREFIX)?;
        REGISTERS.iter().position(|register| *register == name)
    };
    let mut states = Vec::new();
    if let Some(register) = register().and_then(|register| u8::try_from(register).ok()) {
        for fence in [&[][..], &LFENCE] {
            states.push(indirect(condition, is_call, fence, register, length));
        }
    }
    // Other thunks are led to without the prefix (since 6.2).
    if image.first() == Some(&CS) {
        states.push(padded(image.get(1..).unwrap_or_default().to_vec(), length));
    }
    states.retain(|state| state.len() == length);
    let optimised = states.into_iter().flat_map(|state| style.optimised(&state));
    optimised.chain([image]).collect()
}

/// The condition of a branch, whether it is a call, and where its distance begins.
fn form(image: &[u8]) -> Option<(Option<u8>, bool, usize)> {
    match image {
        [CALL, ..] => Some((None, true, 1)),
        [JUMP, ..] => Some((None, false, 1)),
        [CS, CALL, ..] => Some((None, true, 2)),
        [CS, JUMP, ..] => Some((None, false, 2)),
        [0x0f, condition, ..] if condition & 0xf0 == LONG_CONDITION => {
            Some((Some(condition & 0x0f), false, 2))
        }
        _ => None,
    }
}

/// The branch itself, as it was before the compiler led it to a thunk.
fn indirect(condition: Option<u8>, is_call: bool, fence: &[u8], register: u8, length: usize) -> Vec<u8> {
    let mut code = Vec::new();
    if let Some(condition) = condition {
        // Over the branch, on the opposite condition.
        let distance = u8::try_from(length.saturating_sub(2)).unwrap_or_default();
        code.extend([SHORT_CONDITION | condition ^ 1, distance]);
    }
    code.extend(fence);
    if register >= 8 {
        code.push(0x41);
    }
    let reg = if is_call { 0xd0 } else { 0xe0 };
    code.extend([0xff, reg | register & 7]);
    if !is_call && code.len() < length {
        code.push(TRAP);
    }
    padded(code, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn symbols() -> SymbolTable {
        SymbolTable::parse(
            "ffffffff81000000 T _stext\nffffffff81001000 T __x86_indirect_thunk_rax\nffffffff81001020 T __x86_indirect_thunk_r11\nffffffff81001040 T _end\n",
        )
    }

    fn of(code: &[u8], distance: i32) -> Vec<Vec<u8>> {
        let image = [code, &distance.to_le_bytes()].concat();
        possible(BASE, image, NopStyle::OneByteRuns, &symbols())
    }

    #[test]
    fn every_form_is_known() {
        let call = of(&[CALL], 0x1000 - 5);
        assert_eq!(call[..2], [vec![0xff, 0xd0, 0x0f, 0x1f, 0x00], vec![0x0f, 0xae, 0xe8, 0xff, 0xd0]]);
        assert_eq!(call[2][0], CALL, "as it was");
        let jump = of(&[CS, JUMP], 0x1020 - 6);
        assert_eq!(jump[0], [0x41, 0xff, 0xe3, TRAP, 0x66, 0x90]);
        assert_eq!(jump[1], [0x0f, 0xae, 0xe8, 0x41, 0xff, 0xe3]);
        assert_eq!((jump[2][0], jump[3][0]), (JUMP, CS));
        let condition = of(&[0x0f, 0x84], 0x1000 - 6);
        assert_eq!(condition[0], [0x75, 4, 0xff, 0xe0, TRAP, 0x90]);
        assert_eq!(of(&[CALL], 0x500).len(), 1, "no thunk");
        assert_eq!(of(&[0x55, 0x90], 0).len(), 1);
    }

    proptest! {
        #[test]
        fn any_code_is_survived(code in proptest::collection::vec(any::<u8>(), 0..15)) {
            let length = code.len();
            for state in possible(BASE, code, NopStyle::AnyRuns, &symbols()) {
                prop_assert_eq!(state.len(), length);
            }
        }
    }
}
