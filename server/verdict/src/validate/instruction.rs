//! Instructions that can be neither executed out of line nor emulated
//! (arch/x86/kernel/kprobes/core.c: can_probe, __copy_instruction, prepare_emulation).
//!
//! Owns these rules. Never reads code.

use nix::errno::Errno;

use super::case::Case;
use kprobed_host::insn::KernelOpcode;
use kprobed_lang::definition::{Code, Diagnostic};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let at = case.effective_offset(offset);
    let refuse = |code, errno: Errno, what: &str| {
        Err(case.refuse(code, format!("+{at} of `{}` is {what}", case.function)).with_errno(errno as i32))
    };
    let address = case.start.wrapping_add(at);
    let early = case.facts.behaviour.traps_are_no_boundary;
    let Some(opcode) = KernelOpcode::parse(case.code_from(at), address) else {
        let errno = if early { Errno::EILSEQ } else { Errno::EINVAL };
        return refuse(Code::BadInsnBndry, errno, "no instruction");
    };
    if early && traps(&opcode) {
        return refuse(Code::TrapInstruction, Errno::EILSEQ, "an instruction that traps by itself");
    }
    if let Some((code, what)) = uncopyable(&opcode) {
        return refuse(code, Errno::EINVAL, what);
    }
    // Kernels that evaluate nothing execute a copy of these too.
    match Some(&opcode).filter(|_| case.facts.behaviour.emulates).and_then(unsupported) {
        Some(what) => refuse(Code::UnsupportedInstruction, Errno::EOPNOTSUPP, what),
        None => Ok(()),
    }
}

/// Why the kernel would not copy an instruction (__copy_instruction).
pub(super) fn uncopyable(opcode: &KernelOpcode) -> Option<(Code, &'static str)> {
    if opcode.first == INT3 {
        Some((Code::TrapInstruction, "a breakpoint instruction"))
    } else if opcode.emulated {
        Some((Code::UnsupportedInstruction, "an instruction that the hypervisor emulates"))
    } else if masks_exceptions(opcode) {
        Some((Code::UnsupportedInstruction, "an instruction that defers exceptions"))
    } else if opcode.rip_relative.is_some_and(|target| !reachable_from_slots(target)) {
        let what = "an instruction with an operand too far away from where a copy could be executed";
        Some((Code::UnsupportedInstruction, what))
    } else {
        None
    }
}

const INT3: u8 = 0xcc;

/// UD0, UD1, UD2, INT3, INT, INTO and INT1 (is_exception_insn).
fn traps(opcode: &KernelOpcode) -> bool {
    match opcode.first {
        0x0f => matches!(opcode.second, 0xff | 0xb9 | 0x0b),
        first => matches!(first, INT3 | 0xcd | 0xce | 0xf1),
    }
}

/// `pop %ss` and `mov ...,%ss` (arch/x86/include/asm/insn.h:insn_masking_exception).
fn masks_exceptions(opcode: &KernelOpcode) -> bool {
    opcode.first == 0x1f || opcode.first == 0x8e && opcode.reg() == 2
}

/// Area in which copies of instructions are executed: that of modules, whose limits depend on KASLR
/// (arch/x86/include/asm/pgtable_64_types.h:MODULES_VADDR, MODULES_END).
const SLOTS: [u64; 2] = [0xffff_ffff_a000_0000, 0xffff_ffff_ff00_0000];

/// Whether a copy at either end of the area could still address `target`. Only the kernel knows the
/// place of the copy; memory of the kernel and of modules, and per-CPU data, is in reach from
/// everywhere.
fn reachable_from_slots(target: u64) -> bool {
    SLOTS.iter().any(|slot| i32::try_from(target.wrapping_sub(*slot).cast_signed()).is_ok())
}

/// Instructions for which prepare_emulation returns EOPNOTSUPP.
fn unsupported(opcode: &KernelOpcode) -> Option<&'static str> {
    match opcode.first {
        0x9a | 0xea => Some("a far call or jump"),
        0xcf => Some("a return from an interrupt"),
        0x0f if opcode.second == 0x01 && opcode.mode() == 3 && opcode.reg() == 0 => {
            Some("an instruction of virtualisation or enclaves")
        }
        0xff => match opcode.reg() {
            3 | 5 => Some("a far call or jump"),
            2 | 4 if opcode.short_addresses || opcode.mode() != 3 => {
                Some("a call or jump through memory, which the kernel does not emulate")
            }
            _ => None,
        },
        _ => None,
    }
}
