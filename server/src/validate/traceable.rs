//! A kprobe event lives in a function that ftrace can trace (kernel/trace/trace_kprobe.c:within_notrace_func).

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::Span;
use crate::kernel::KernelFacts;

pub(super) fn check(target: &Target, facts: &KernelFacts, span: Span) -> Result<(), Refusal> {
    let functions = &facts.traceable;
    if functions.is_empty() || functions.first_in(target.start, target.size).is_some() {
        return Ok(());
    }
    // A part that the compiler has split off (`foo.cold`) goes with its function.
    if let Some((base, _)) = target.function.split_once('.') {
        let traced = |symbol: crate::kernel::Symbol<'_>| {
            functions.first_in(symbol.address, facts.symbols.size_at(symbol.address)).is_some()
        };
        if facts.symbols.named(base, target.module.as_deref()).any(traced) {
            return Ok(());
        }
    }
    let message = format!(
        "`{}` can not be traced by ftrace, and probe events only go where ftrace can",
        target.function
    );
    let hint =
        "probe a function that calls it; `available_filter_functions` lists what can be traced".to_owned();
    Err(Refusal { rule: Rule::NotraceFunction, message, hint, span })
}
