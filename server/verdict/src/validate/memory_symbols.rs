//! Memory symbols: the symbols that arguments read from must exist
//! (kernel/trace/trace_probe.c:traceprobe_update_arg).
//!
//! Owns this rule. Never reads memory.

use nix::errno::Errno;

use super::case::Case;
use super::refusal::{Refusal, Rule};
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Diagnostic, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition};

pub(super) fn check(case: &Case<'_>, _offset: u64) -> Result<(), Refusal> {
    check_definition(case.definition, case.facts)
}

pub(super) fn check_definition(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<(), Refusal> {
    // The kernel's caret is at the place: it parses no argument any more.
    let span = definition.place.span();
    definition.args.iter().try_for_each(|argument| {
        if let Some(problem) = argument.fetch.symbol_problem() {
            return Err(malformed(Diagnostic { span, ..problem }));
        }
        let Some(absent) = absent_symbol(&argument.fetch, facts) else { return Ok(()) };
        let message = format!("the kernel has no symbol `{absent}` to read from");
        Err(Refusal::new(Rule::UnknownMemorySymbol, message, span).with_errno(Errno::ENOENT))
    })
}

/// Whether the kernel accepts a probe although an argument reads from a symbol that it does not
/// find: with an address for a place it takes the symbol for one of a module that is not loaded yet
/// (kernel/trace/trace_kprobe.c:register_trace_kprobe). Such a probe is never armed: the kernel
/// tries again when a module is loaded, but only for places in that module
/// (trace_kprobe_module_callback).
pub(super) fn is_forgiven(refusal: &Refusal, definition: &ProbeDefinition) -> bool {
    let is_of_symbol = matches!(refusal.rule, Rule::UnknownMemorySymbol | Rule::BadMemorySymbol);
    is_of_symbol && refusal.errno == Errno::ENOENT && matches!(definition.place, Place::Address { .. })
}

/// A probe that waits for its module, and cannot be registered when that is loaded.
pub(super) fn never_found(definition: &ProbeDefinition) -> Option<Refusal> {
    definition.registration_problem().map(|problem| never_armed(malformed(problem)))
}

/// The refusal of a probe that the kernel accepts and does not arm, for the reason of `refusal`.
pub(super) fn never_armed(refusal: Refusal) -> Refusal {
    let message = format!("{}: the kernel would accept this and never arm it", refusal.message);
    Refusal { message, ..Refusal::new(Rule::NeverArmed, String::new(), refusal.span).with_hint(refusal.hint) }
}

fn malformed(problem: Diagnostic) -> Refusal {
    let refusal = Refusal::new(Rule::BadMemorySymbol, problem.message, problem.span);
    refusal.with_errno(Errno::from_raw(problem.errno)).with_hint(problem.hint.unwrap_or_default())
}

fn absent_symbol<'a>(fetch: &'a Fetch, facts: &KernelFacts) -> Option<&'a str> {
    match &fetch.kind {
        FetchKind::Deref { inner, .. } => absent_symbol(inner, facts),
        FetchKind::Memory(MemoryAddress::Symbol { symbol, .. }) => {
            let (module, name) = match symbol.split_once(':') {
                Some((module, name)) => (Some(module), name),
                None => (None, symbol.as_str()),
            };
            facts.symbols.lookup(name, module).is_none().then_some(symbol)
        }
        _ => None,
    }
}
