//! Code that kprobes itself needs is never probed (kernel/kprobes.c:within_kprobe_blacklist).

use super::case::Case;
use super::refusal::{Refusal, Rule};
use super::traceable::base_address;
use kprobed_host::kernel::KernelFacts;

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let message = if case.facts.blacklist.contains(case.address_of(offset)) {
        format!("`{}` is on the kernel's kprobe blacklist", case.function)
    } else if base_is_listed(case.function, case.facts) {
        format!("`{}` is part of a function on the kernel's kprobe blacklist", case.function)
    } else {
        return Ok(());
    };
    Err(case.refuse(Rule::Blacklisted, message).with_hint("probe a function that calls it"))
}

/// Whether an address in a function of this name is on the list.
pub(super) fn is_listed(function: &str, address: u64, facts: &KernelFacts) -> bool {
    facts.blacklist.contains(address) || base_is_listed(function, facts)
}

/// A part that the compiler has split off goes with its function.
fn base_is_listed(function: &str, facts: &KernelFacts) -> bool {
    base_address(function, facts).is_some_and(|base| facts.blacklist.contains(base))
}
