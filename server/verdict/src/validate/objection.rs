//! Objections: places that the kernel accepts, and this daemon does not.
//!
//! The kernel accepts more than a writer means: it adds an offset without checking that it is still
//! in the function, and it accepts addresses that it has no name for, as those of modules that may
//! be loaded later. And it accepts what harms it: it replaces breakpoints by jumps without a look at
//! what other code does with the bytes behind them, it executes a copy of an instruction that has a
//! handler of its faults, it evaluates jumps wrongly, and it puts breakpoints where a CPU has no handler
//! of them. Verdicts follow the kernel, and never change for an objection.

use nix::errno::Errno;

use super::case::Case;
use super::memory_symbols;
use super::optimise::JUMP_BYTES;
use super::places::around;
use super::report::{Arming, refusal};
use super::symbol::Symbols;
use kprobed_host::insn::KernelOpcode;
use kprobed_host::kernel::{KernelFacts, Landing, Way};
use kprobed_lang::definition::{Code, Diagnostic, Place, ProbeDefinition, Step};

/// Symbols of the beginning of the kernel's text: an offset from them may lead into any function.
const ANCHORS: [&str; 2] = ["_stext", "_text"];

/// Functions that a CPU executes without a table of interrupts: the first loads it while the CPU comes
/// up (arch/x86/kernel/cpu/common.c:cpu_init_exception_handling), the others take it away before
/// another kernel is started (arch/x86/kernel/machine_kexec_64.c:machine_kexec). What else runs there
/// cannot be traced by ftrace. A breakpoint there resets the CPU.
const WITHOUT_INTERRUPTS: [&str; 3] = ["load_current_idt", "idt_invalidate", "machine_kexec"];

/// The objection to a place that harms the kernel, at an offset in the function of a case.
pub(super) fn harm(case: &Case<'_>, offset: u64) -> Option<Diagnostic> {
    without_interrupts(case)
        .or_else(|| expected_fault(case, offset))
        .or_else(|| misjudged_jump(case, offset))
        .or_else(|| end_of_module(case, offset))
        .or_else(|| over_landing(case, offset))
}

/// The objection to a place where no breakpoint can be handled.
fn without_interrupts(case: &Case<'_>) -> Option<Diagnostic> {
    let function = case.function;
    if case.module.is_some() || !WITHOUT_INTERRUPTS.contains(&function) {
        return None;
    }
    let message = format!(
        "`{function}` runs while its CPU has no table of interrupts: a breakpoint would reset the CPU"
    );
    Some(case.refuse(Code::NoInterruptTable, message).with_hint("probe a function that calls it"))
}

/// The objection to an instruction that has an entry in the exception table. The kernel executes a
/// copy of the instruction. For a page fault it finds the entry nevertheless, for other faults it does
/// not (arch/x86/kernel/traps.c:exc_general_protection looks for the entry of the copy, and
/// kprobe_fault_handler sets the address right after that), and stops with an oops.
fn expected_fault(case: &Case<'_>, offset: u64) -> Option<Diagnostic> {
    let offset = case.effective_offset(offset);
    if !case.facts.patch_sites.may_fault(case.start.wrapping_add(offset)) {
        return None;
    }
    let message = format!(
        "the kernel expects that the instruction at +{offset} of `{}` can fault, and finds no handler for a fault of the copy that a probe executes",
        case.function
    );
    Some(case.refuse(Code::ExpectedFault, message))
}

/// The objection to a place in another function than the named one.
pub(super) fn outside(found: &Symbols<'_>, case: &Case<'_>) -> Option<Diagnostic> {
    let (length, inside) = left(found, case)?;
    let message =
        format!("{length}: the kernel would probe `{}` at offset {}", case.location(), found.offset);
    let inside = inside.map(|last| format!("+{last} is the last offset in it; ")).unwrap_or_default();
    let hint = format!("{inside}name the other function, if it is meant");
    Some(case.refuse(Code::OutsideFunction, message).with_hint(hint))
}

/// The objection to a conditional jump that the kernel evaluates wrongly, so that its function takes
/// the other way while it is probed.
fn misjudged_jump(case: &Case<'_>, offset: u64) -> Option<Diagnostic> {
    let offset = case.effective_offset(offset);
    let opcode = KernelOpcode::parse(case.code_from(offset), case.start.wrapping_add(offset))?;
    let is_affected = matches!((opcode.first, opcode.second), (0x7e | 0x7f, _) | (0x0f, 0x8e | 0x8f));
    if !case.facts.behaviour.misjudges_jumps || !is_affected {
        return None;
    }
    let message = format!(
        "this kernel evaluates the conditional jump at +{offset} of `{}` wrongly while it is probed",
        case.function
    );
    Some(case.refuse(Code::MisjudgedJump, message).with_hint("Linux 6.0, 5.19.4 and 5.15.64 have the fix"))
}

/// The objection to a breakpoint in the last function of a module. To find out whether it could be a jump,
/// the kernel decodes what it takes for the rest of the function, up to the end of the module's pages
/// (arch/x86/kernel/kprobes/opt.c:can_optimize), and one byte more if the last instruction begins with
/// their last byte. Since 6.4, no page follows that can be read.
fn end_of_module(case: &Case<'_>, offset: u64) -> Option<Diagnostic> {
    if case.arming(offset) != Arming::Breakpoint || !case.optimiser()?.reads_behind_module() {
        return None;
    }
    let message = format!(
        "`{}` is the last function of its module, and the kernel reads behind the end of that when a breakpoint is put into the function",
        case.function
    );
    Some(case.refuse(Code::EndOfModule, message).with_hint("probe its entry, or a function that it calls"))
}

/// The kernel's refusal of what lies behind the end of the named function, with the reason that the
/// writer can do something about.
pub(super) fn behind_the_end(refusal: Diagnostic, found: &Symbols<'_>, case: &Case<'_>) -> Diagnostic {
    // Where code is not known, and what arguments read, has nothing to do with the end.
    let is_of_place = refusal.step >= Step::REGISTRATION
        && !matches!(
            refusal.code,
            Code::UnreadableCode | Code::UnknownMemorySymbol | Code::BadMemSymbol | Code::NonUniqSymbol
        );
    let Some((length, inside)) = is_of_place.then(|| left(found, case)).flatten() else { return refusal };
    let message = format!("{length}: +{} is beyond its end", found.offset);
    let hint = inside.map(|last| format!("+{last} is the last offset in it"));
    Diagnostic { code: Code::OutsideFunction, message, hint, ..refusal }
}

/// If a place is in another function than the named one: how long that is, and the last place in it that works.
fn left(found: &Symbols<'_>, case: &Case<'_>) -> Option<(String, Option<u32>)> {
    let symbol = found.taken.filter(|symbol| symbol.address != case.start)?;
    if ANCHORS.contains(&symbol.name) {
        return None;
    }
    let named = Case::at(case.definition, symbol.address, case.facts).map(Case::whole);
    let size = named.as_ref().map_or(0, |named| named.size);
    let last = named.and_then(|named| around(&named, named.size).before);
    Some((format!("`{}` is {size} bytes long", symbol.name), last))
}

/// The objection to a place at which the kernel may put a jump over an instruction that is entered
/// from elsewhere. The kernel considers the jumps of the function itself alone
/// (arch/x86/kernel/kprobes/opt.c:can_optimize), and whatever else enters there would execute the
/// middle of the jump.
fn over_landing(case: &Case<'_>, offset: u64) -> Option<Diagnostic> {
    let offset = case.effective_offset(offset);
    let address = case.start.wrapping_add(offset);
    let Landing { to, from, way } = case.facts.landing_in(&(address + 1..address + JUMP_BYTES))?;
    case.optimiser()?.may_cover(offset)?;
    let function = case.function;
    let source = case.facts.symbols.locate(from).map_or(function, |located| located.symbol.name);
    let at = to.wrapping_sub(case.start);
    let leads = match way {
        Way::Branch => format!("code of `{source}` jumps to +{at} of `{function}`"),
        Way::JumpLabel => format!("a jump label of `{source}` leads to +{at} of `{function}`"),
        Way::Fixup => format!("the kernel continues at +{at} of `{function}` after a fault in `{source}`"),
    };
    let message = format!(
        "{leads}, inside of the {JUMP_BYTES} bytes from +{offset} on that the kernel would replace by a jump"
    );
    Some(case.refuse(Code::JumpOverLanding, message))
}

/// The verdict on a place that the kernel has no name for (kernel/kprobes.c:_kprobe_addr): ENOENT,
/// which it ignores for addresses (kernel/trace/trace_kprobe.c:register_trace_kprobe).
pub(super) fn check_unnamed(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<(), Diagnostic> {
    memory_symbols::check_definition(definition, facts)?;
    match &definition.place {
        Place::Address { address: 0, span } => {
            let message = "the kernel does not take 0 as an address".to_owned();
            Err(refusal(Code::UnnamedPlace, message, *span))
        }
        Place::Address { .. } | Place::Event { .. } => Ok(()),
        Place::Symbol { symbol, offset, span, .. } => {
            let message =
                format!("no symbol of the kernel covers the address {offset} bytes after `{symbol}`");
            Err(refusal(Code::UnnamedPlace, message, *span).with_errno(Errno::ENOENT as i32))
        }
    }
}

/// The objection to a place that the kernel has no name for and accepts.
pub(super) fn never_armed(definition: &ProbeDefinition, address: Option<u64>) -> Diagnostic {
    let address = address.unwrap_or_default();
    let message = format!("{address:#x} is not in a function: the kernel would accept this and never arm it");
    refusal(Code::NeverArmed, message, definition.place.span())
}
