//! Return probes sit at a function's entry (kernel/kprobes.c:kprobe_on_func_entry).
//!
//! The kernel asks twice: about a symbol while it reads the definition, with a message of its own, and about an address when it registers
//! the probe.

use super::case::Case;
use super::refusal::{Refusal, Rule};
use kprobed_lang::definition::Place;

/// Asked about symbols, before everything that follows.
pub(super) fn check_symbol(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    check(case, offset, Rule::NotFunctionEntry)
}

/// Asked about addresses.
pub(super) fn check_address(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    match case.definition.place {
        Place::Address { .. } => check(case, offset, Rule::NotEntryAddress),
        Place::Symbol { .. } => check(case, offset, Rule::NotFunctionEntry),
    }
}

fn check(case: &Case<'_>, offset: u64, rule: Rule) -> Result<(), Refusal> {
    if !case.is_return() || case.is_entry(offset) {
        return Ok(());
    }
    let message =
        format!("a return probe must be at the entry of a function, not at +{offset} of `{}`", case.function);
    Err(case.refuse(rule, message).with_hint("leave the offset out"))
}
