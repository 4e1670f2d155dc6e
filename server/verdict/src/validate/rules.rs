//! Rules of the kernel about the place of a probe.
//!
//! Owns the table of them, in the order in which the kernel applies them when it registers a probe,
//! and the text of each. A rule judges one offset of one function. Never looks up the symbol, which
//! comes before (`symbol`), and never judges places that the kernel accepts and this daemon does
//! not, which comes after (`objection`).

use super::case::Case;
use super::{instruction, memory_symbols};
use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, Diagnostic, Place, Step};

/// Refuses a place, given in bytes from the beginning of the function.
type Check = fn(&Case<'_>, u64) -> Result<(), Diagnostic>;

/// What a rule depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LooksAt {
    /// The address.
    Address,
    /// Whether an instruction begins there. The kernel does not check this, nor the instruction, if
    /// ftrace or an existing probe already replaces it.
    Boundary,
    /// The instruction.
    Instruction,
}

/// Every rule with its source, in the order of the kernel:
/// kernel/trace/trace_kprobe.c:__register_trace_kprobe, kernel/kprobes.c:register_kretprobe,
/// check_kprobe_address_safe, then arch/x86/kernel/kprobes/core.c:arch_prepare_kprobe.
const RULES: [(&str, LooksAt, Check); 13] = [
    ("kernel/trace/trace_kprobe.c:within_notrace_func", LooksAt::Address, traceable),
    ("kernel/trace/trace_probe.c:traceprobe_update_arg", LooksAt::Address, memory_symbols::check),
    ("kernel/kprobes.c:kprobe_on_func_entry", LooksAt::Address, entry),
    ("arch/x86/kernel/kprobes/core.c:kretprobe_blacklist", LooksAt::Address, return_blacklist),
    ("kernel/kprobes.c:check_ftrace_location", LooksAt::Address, call_site),
    ("kernel/kprobes.c:check_kprobe_address_safe", LooksAt::Address, text),
    ("kernel/kprobes.c:within_kprobe_blacklist", LooksAt::Address, blacklist),
    ("kernel/jump_label.c:jump_label_text_reserved", LooksAt::Address, jump_label),
    ("kernel/static_call_inline.c:static_call_text_reserved", LooksAt::Address, static_call),
    ("lib/bug.c:find_bug", LooksAt::Address, bug),
    ("kernel/kprobes.c:is_cfi_preamble_symbol", LooksAt::Address, preamble),
    ("arch/x86/kernel/kprobes/core.c:can_probe", LooksAt::Boundary, boundary),
    ("arch/x86/kernel/kprobes/core.c:__copy_instruction", LooksAt::Instruction, instruction::check),
];

/// Applies the rules to one offset of the function.
pub(super) fn judge(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    judge_unless(case, offset, None)
}

/// Like [`judge`], for an offset that is known to be the beginning of an instruction.
pub(super) fn judge_boundary(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    judge_unless(case, offset, Some(LooksAt::Boundary))
}

fn judge_unless(case: &Case<'_>, offset: u64, known: Option<LooksAt>) -> Result<(), Diagnostic> {
    for (index, (_source, looks_at, check)) in RULES.iter().enumerate() {
        if *looks_at != LooksAt::Address && replaces_nothing(case, offset) {
            return Ok(());
        }
        if Some(*looks_at) != known {
            check(case, offset).map_err(|refusal| refusal.at(Step::Registration(index)))?;
        }
    }
    Ok(())
}

/// Whether no instruction must be replaced: ftrace, or an existing probe, has done it. Otherwise
/// the kernel checks the instruction (arch/x86/kernel/kprobes/core.c:arch_prepare_kprobe).
fn replaces_nothing(case: &Case<'_>, offset: u64) -> bool {
    let address = case.address_of(offset);
    case.facts.traceable.is_site(address) || case.facts.armed.is_registered(address)
}

/// A kprobe event must be in a function that ftrace can trace.
fn traceable(case: &Case<'_>, _offset: u64) -> Result<(), Diagnostic> {
    if is_traced(case.function, case.start, case.size, case.facts) {
        return Ok(());
    }
    let message =
        format!("`{}` cannot be traced by ftrace, and probe events only go where ftrace can", case.function);
    let hint = "probe a function that calls it; `available_filter_functions` lists what can be traced";
    Err(case.refuse(Code::NotraceFunction, message).with_hint(hint))
}

/// Whether ftrace can trace a function of this name at this place.
pub(super) fn is_traced(function: &str, start: u64, size: u64, facts: &KernelFacts) -> bool {
    let functions = &facts.traceable;
    functions.is_empty() || functions.touches(start, size) || base_is_traced(function, facts)
}

/// A part that the compiler has split off (`foo.cold`) is treated like its function.
fn base_is_traced(function: &str, facts: &KernelFacts) -> bool {
    let Some(base) = base_address(function, facts) else { return false };
    // An address without a name is in no function that could be notrace.
    let Some(located) = facts.symbols.locate(base) else { return true };
    facts.traceable.touches(located.symbol.address, located.size)
}

/// The address of the function that a name with a suffix belongs to: the first symbol whose name is
/// the part before the first dot (kernel/kprobes.c:kprobe_lookup_name).
fn base_address(function: &str, facts: &KernelFacts) -> Option<u64> {
    let (base, _suffix) = function.split_once('.')?;
    facts.symbols.address(base)
}

/// Return probes must be at a function's entry. The kernel checks this for a symbol while it parses
/// the definition, with a message of its own.
pub(super) fn entry_of_symbol(case: &Case<'_>) -> Result<(), Diagnostic> {
    at_entry(case, case.offset, Code::BadRetprobe).map_err(|refusal| refusal.at(Step::Entry))
}

/// The same rule when the probe is registered: the only check for an address.
fn entry(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let code = match case.definition.place {
        Place::Address { .. } => Code::NotEntryAddress,
        Place::Symbol { .. } | Place::Event { .. } => Code::BadRetprobe,
    };
    at_entry(case, offset, code)
}

fn at_entry(case: &Case<'_>, offset: u64, code: Code) -> Result<(), Diagnostic> {
    if !case.is_return() || case.is_entry(offset) {
        return Ok(());
    }
    let message =
        format!("a return probe must be at the entry of a function, not at +{offset} of `{}`", case.function);
    Err(case.refuse(code, message).with_hint("leave the offset out"))
}

/// The only function whose return address must not be replaced: it switches to another stack before
/// it returns.
const SWITCH_TO: &str = "__switch_to";

fn return_blacklist(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let listed = || case.facts.symbols.address(SWITCH_TO);
    if !case.is_return() || listed() != Some(case.address_of(offset)) {
        return Ok(());
    }
    let message = format!("`{}` returns on another stack, where its return cannot be probed", case.function);
    Err(case.refuse(Code::ReturnBlacklisted, message).with_hint("probe its entry"))
}

/// To kernels before 5.18 every byte of a call site is a place of ftrace, and only the first one can be
/// probed.
fn call_site(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let address = case.address_of(offset);
    let site = case.facts.traceable.overlapping(address, 1).next();
    let Some(site) = site.filter(|site| case.facts.behaviour.checks_call_site_first && *site != address)
    else {
        return Ok(());
    };
    let at = site.wrapping_sub(case.start);
    let message = format!("+{offset} is in the middle of the instruction at +{at} of `{}`", case.function);
    Err(case.refuse(Code::BadInsnBndry, message))
}

/// A probe must be in code of the kernel or of a module (kernel/extable.c:core_kernel_text,
/// kernel/module/main.c:is_module_text_address).
fn text(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let is_text = match case.module {
        None => case.facts.core_text.contains(&case.address_of(offset)),
        Some(module) => case.is_code && case.facts.symbols.has_module(module),
    };
    if is_text {
        return Ok(());
    }
    let message = format!("`{}` is not code of the running kernel or of a module", case.function);
    Err(case.refuse(Code::NotText, message))
}

/// Code that kprobes itself needs cannot be probed.
fn blacklist(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let message = if case.facts.blacklist.contains(case.address_of(offset)) {
        format!("`{}` is on the kernel's kprobe blacklist", case.function)
    } else if base_is_listed(case.function, case.facts) {
        format!("`{}` is part of a function on the kernel's kprobe blacklist", case.function)
    } else {
        return Ok(());
    };
    Err(case.refuse(Code::Blacklisted, message).with_hint("probe a function that calls it"))
}

/// Whether an address in a function of this name is on the blacklist.
pub(super) fn is_listed(function: &str, address: u64, facts: &KernelFacts) -> bool {
    facts.blacklist.contains(address) || base_is_listed(function, facts)
}

/// A part that the compiler has split off is treated like its function.
fn base_is_listed(function: &str, facts: &KernelFacts) -> bool {
    base_address(function, facts).is_some_and(|base| facts.blacklist.contains(base))
}

/// Jump labels are rewritten while the kernel runs.
fn jump_label(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let address = case.address_of(offset);
    let mut labels = case.facts.patch_sites.jump_labels_near(address);
    // A label that begins before the function belongs to another one.
    let code_from = |label: u64| label.checked_sub(case.start).map(|offset| case.code_from(offset));
    if !labels.any(|label| address - label < jump_label_bytes(code_from(label))) {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is a jump label, which the kernel rewrites", case.function);
    Err(case.refuse(Code::JumpLabel, message))
}

/// A short jump or the NOP in its place, or the long forms
/// (arch/x86/kernel/jump_label.c:arch_jump_entry_size). Without the code at the label, it counts as
/// long: no probe can be placed in the rest of it.
pub(super) fn jump_label_bytes(code: Option<&[u8]>) -> u64 {
    const SHORT_NOP: [u8; 2] = [0x66, 0x90];
    const SHORT_JUMP: u8 = 0xeb;
    const LONG_BYTES: u64 = 5;
    let Some(code) = code else { return LONG_BYTES };
    if code.starts_with(&SHORT_NOP) || code.first() == Some(&SHORT_JUMP) { 2 } else { LONG_BYTES }
}

/// Static calls are rewritten while the kernel runs.
fn static_call(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    if case.facts.patch_sites.static_call_over(case.address_of(offset)).is_none() {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is a static call, which the kernel rewrites", case.function);
    Err(case.refuse(Code::StaticCall, message))
}

/// The trap handler interprets the instruction of a BUG or WARN: no probe can be placed at its
/// first byte. The kernel does not check the bytes after it.
fn bug(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    if !case.facts.patch_sites.is_bug(case.address_of(offset)) {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is the trap of a BUG or WARN", case.function);
    Err(case.refuse(Code::BugTrap, message))
}

/// The bytes in front of a function are not executed (since 6.6 and in the stable trees; before,
/// such places had no call site and were refused for that).
fn preamble(case: &Case<'_>, _offset: u64) -> Result<(), Diagnostic> {
    if !(case.function.starts_with("__cfi_") || case.function.starts_with("__pfx_")) {
        return Ok(());
    }
    let message = format!("`{}` is the padding in front of a function", case.function);
    Err(case.refuse(Code::Preamble, message).with_hint("probe the function itself"))
}

/// A probe replaces the beginning of an instruction.
fn boundary(case: &Case<'_>, offset: u64) -> Result<(), Diagnostic> {
    let function = case.function;
    if case.code().is_empty() {
        let message = format!("the code of `{function}` cannot be read");
        return Err(case.refuse(Code::UnreadableCode, message));
    }
    // The kernel decodes up to the place and does not yet read the instruction at it.
    let offset = usize::try_from(case.effective_offset(offset)).unwrap_or(usize::MAX);
    let before = insn::boundaries(case.code()).take_while(|extent| extent.start < offset).last();
    let message = match before {
        None if offset == 0 => return Ok(()),
        Some(extent) if extent.end == offset => return Ok(()),
        Some(extent) if extent.end > offset => {
            format!("+{offset} is in the middle of the instruction at +{} of `{function}`", extent.start)
        }
        stopped => {
            let at = stopped.map_or(0, |extent| extent.end);
            format!("+{offset} lies after bytes that are not an instruction, at +{at} of `{function}`")
        }
    };
    Err(case.refuse(Code::BadInsnBndry, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_names_a_file_of_the_kernel_and_a_function() {
        for (source, _looks_at, _check) in RULES {
            let (file, function) = source.split_once(':').unwrap();
            assert!(
                file.strip_suffix(".c").is_some()
                    && function.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{source}"
            );
        }
        // Rules that need the code come after those that do not.
        assert!(RULES.is_sorted_by_key(|(_source, looks_at, _check)| *looks_at != LooksAt::Address));
    }
}
