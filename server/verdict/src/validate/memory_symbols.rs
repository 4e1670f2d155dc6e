//! Memory symbols: the symbols that arguments read from must exist
//! (kernel/trace/trace_probe.c:traceprobe_update_arg).
//!
//! Owns this rule. Never reads memory.

use nix::errno::Errno;

use super::case::Case;
use super::report::refusal;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{
    Code, Diagnostic, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition, Step, dangerous,
};

pub(super) fn check(case: &Case<'_>, _offset: u64) -> Result<(), Diagnostic> {
    check_definition(case.definition, case.facts)
}

pub(super) fn check_definition(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<(), Diagnostic> {
    // The kernel's caret is at the place: it parses no argument any more.
    let span = definition.place.span();
    definition.args.iter().try_for_each(|argument| {
        if let Some(problem) = argument.fetch.symbol_problem() {
            return Err(Diagnostic { span, ..problem }.at(Step::REGISTRATION));
        }
        let absent =
            symbol_of(&argument.fetch).filter(|(symbol, _)| facts.symbols.lookup_spelled(symbol).is_none());
        let Some((absent, _)) = absent else { return Ok(()) };
        let message = format!("the kernel has no symbol `{absent}` to read from");
        Err(refusal(Code::UnknownMemorySymbol, message, span).with_errno(Errno::ENOENT as i32))
    })
}

/// The objection to an argument that reads where a read harms the kernel, at a distance from a symbol.
pub(super) fn harm(definition: &ProbeDefinition, facts: &KernelFacts) -> Option<Diagnostic> {
    definition.args.iter().find_map(|argument| {
        let (symbol, offset) = symbol_of(&argument.fetch)?;
        let address = facts.symbols.lookup_spelled(symbol)?.address.wrapping_add_signed(offset);
        let harm = dangerous::harm_of_read(address)?;
        let message = format!("kprobed refuses this, because a kernel without the fix {harm}");
        let refusal = refusal(Code::DangerousMemory, message, argument.fetch.span);
        Some(refusal.with_hint(Code::DangerousMemory.hint()))
    })
}

/// The symbol from which an expression reads, and the distance from it.
fn symbol_of(fetch: &Fetch) -> Option<(&str, i64)> {
    match &fetch.root().kind {
        FetchKind::Memory(MemoryAddress::Symbol { symbol, offset }) => Some((symbol.as_str(), *offset)),
        _ => None,
    }
}

/// Whether the kernel accepts a probe although an argument reads from a symbol that it does not
/// find: with an address for a place it takes the symbol for one of a module that is not loaded yet
/// (kernel/trace/trace_kprobe.c:register_trace_kprobe). Such a probe is never armed: the kernel
/// tries again when a module is loaded, but only for places in that module
/// (trace_kprobe_module_callback).
pub(super) fn is_forgiven(refusal: &Diagnostic, definition: &ProbeDefinition) -> bool {
    let is_of_symbol = matches!(refusal.code, Code::UnknownMemorySymbol | Code::BadMemSymbol);
    is_of_symbol && refusal.errno == Errno::ENOENT as i32 && matches!(definition.place, Place::Address { .. })
}

/// A probe that waits for its module, and cannot be registered when that is loaded.
pub(super) fn never_found(definition: &ProbeDefinition) -> Option<Diagnostic> {
    definition.registration_problem().map(never_armed)
}

/// The refusal of a probe that the kernel accepts and does not arm, for this reason.
pub(super) fn never_armed(reason: Diagnostic) -> Diagnostic {
    let message = format!("{}: the kernel would accept this and never arm it", reason.message);
    Diagnostic { hint: reason.hint, ..refusal(Code::NeverArmed, message, reason.span) }
}
