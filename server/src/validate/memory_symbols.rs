//! Symbols that arguments read from must exist (kernel/trace/trace_probe.c:traceprobe_update_arg).

use nix::errno::Errno;

use super::case::Case;
use super::refusal::{Refusal, Rule};
use crate::definition::{Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition};
use crate::kernel::KernelFacts;

pub(super) fn check(case: &Case<'_>, _offset: u64) -> Result<(), Refusal> {
    check_definition(case.definition, case.facts)
}

/// With an address for a place the kernel takes this for a module that is not loaded yet, and accepts it
/// (kernel/trace/trace_kprobe.c:register_trace_kprobe).
pub(super) fn check_definition(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<(), Refusal> {
    let Place::Symbol { span, .. } = definition.place else { return Ok(()) };
    let Some(absent) = definition.args.iter().find_map(|argument| absent_symbol(&argument.fetch, facts))
    else {
        return Ok(());
    };
    let message = format!("the kernel has no symbol `{absent}` to read from");
    Err(Refusal::new(Rule::UnknownMemorySymbol, message, span).with_errno(Errno::ENOENT))
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
