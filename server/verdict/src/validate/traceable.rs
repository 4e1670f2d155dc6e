//! A kprobe event lives in a function that ftrace can trace (kernel/trace/trace_kprobe.c:within_notrace_func).

use super::case::Case;
use super::refusal::{Refusal, Rule};
use kprobed_host::kernel::KernelFacts;

pub(super) fn check(case: &Case<'_>, _offset: u64) -> Result<(), Refusal> {
    if is_traced(case.function, case.start, case.size, case.facts) {
        return Ok(());
    }
    let message =
        format!("`{}` cannot be traced by ftrace, and probe events only go where ftrace can", case.function);
    let hint = "probe a function that calls it; `available_filter_functions` lists what can be traced";
    Err(case.refuse(Rule::NotraceFunction, message).with_hint(hint))
}

/// Whether ftrace can trace a function of this name at this place.
pub(super) fn is_traced(function: &str, start: u64, size: u64, facts: &KernelFacts) -> bool {
    let functions = &facts.traceable;
    functions.is_empty() || functions.touches(start, size) || base_is_traced(function, facts)
}

/// A part that the compiler has split off (`foo.cold`) goes with its function.
fn base_is_traced(function: &str, facts: &KernelFacts) -> bool {
    let Some(base) = base_address(function, facts) else { return false };
    // An address without a name is in no function that could be notrace.
    let Some(located) = facts.symbols.locate(base) else { return true };
    facts.traceable.touches(located.symbol.address, located.size)
}

/// The address of the function that a name with a suffix belongs to: the first symbol called what stands before the first dot, whichever
/// that is (kernel/kprobes.c:kprobe_lookup_name).
pub(super) fn base_address(function: &str, facts: &KernelFacts) -> Option<u64> {
    let (base, _suffix) = function.split_once('.')?;
    Some(facts.symbols.lookup(base, None)?.address)
}
