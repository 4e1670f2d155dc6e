//! Functions whose return address is not to be replaced (arch/x86/kernel/kprobes/core.c:kretprobe_blacklist).

use super::case::Case;
use super::refusal::{Refusal, Rule};

/// The whole list: this function changes to another stack before it returns.
const SWITCH_TO: &str = "__switch_to";

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let listed = || case.facts.symbols.lookup(SWITCH_TO, None).map(|symbol| symbol.address);
    if !case.is_return() || listed() != Some(case.address_of(offset)) {
        return Ok(());
    }
    let message = format!("`{}` returns on another stack, where its return cannot be probed", case.function);
    Err(case.refuse(Rule::ReturnBlacklisted, message).with_hint("probe its entry"))
}
