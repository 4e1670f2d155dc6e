//! Whether the running kernel would take a probe, from facts alone.
//!
//! Owns the rules, one per file, in the order in which the kernel applies them. Never writes anything, to the kernel or elsewhere.

mod blacklist;
mod boundary;
mod entry;
mod place;
mod report;
mod target;
mod traceable;

pub use report::{Arming, Refusal, Report, Rule, ShownInstruction};
pub use target::Target;

use crate::definition::ProbeDefinition;
use crate::kernel::KernelFacts;

/// Judges a definition whose text was found good.
pub fn check(definition: &ProbeDefinition, facts: &KernelFacts) -> Report {
    let target = match place::resolve(definition, facts) {
        Ok(place::Resolved::Target(target)) => target,
        Ok(place::Resolved::AbsentModule { module }) => return Report::waiting(&module),
        Err(refusal) => return Report::refused(refusal, None, Vec::new()),
    };
    let verdict = judge(definition, &target, target.offset, facts);
    let listing = report::listing_around(definition, &target, facts);
    match verdict {
        Ok(()) => Report::accepted(&target, arming(&target, facts), listing),
        Err(refusal) => Report::refused(refusal, Some(&target), listing),
    }
}

/// Applies the rules to one offset of the function, in the kernel's order.
fn judge(
    definition: &ProbeDefinition,
    target: &Target,
    offset: u64,
    facts: &KernelFacts,
) -> Result<(), Refusal> {
    let span = definition.place.span();
    entry::check(definition.kind, target, offset, span)?;
    traceable::check(target, facts, span)?;
    blacklist::check(target, offset, facts, span)?;
    boundary::check(target, offset, span)
}

/// An address that is an ftrace call site is armed through ftrace (kernel/kprobes.c:check_ftrace_location).
fn arming(target: &Target, facts: &KernelFacts) -> Arming {
    let address = target.address_of(target.effective_offset(target.offset));
    match facts.traceable.first_in(target.start, target.size) {
        Some(site) if site == address || site == target.start && target.offset == 0 => Arming::Ftrace,
        _ => Arming::Breakpoint,
    }
}
