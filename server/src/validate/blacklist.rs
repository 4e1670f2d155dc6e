//! Code that kprobes itself needs is never probed (kernel/kprobes.c:within_kprobe_blacklist).

use super::case::Case;
use super::refusal::{Refusal, Rule};
use super::traceable::base_address;

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let list = &case.facts.blacklist;
    let message = if list.contains(case.address_of(offset)) {
        format!("`{}` is on the kernel's kprobe blacklist", case.function)
    } else if base_address(case.function, case.facts).is_some_and(|base| list.contains(base)) {
        format!("`{}` is part of a function on the kernel's kprobe blacklist", case.function)
    } else {
        return Ok(());
    };
    Err(case.refuse(Rule::Blacklisted, message).with_hint("probe a function that calls it"))
}
