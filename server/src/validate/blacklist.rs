//! Code that kprobes itself needs is never probed (kernel/kprobes.c:within_kprobe_blacklist).

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::Span;
use crate::kernel::KernelFacts;

pub(super) fn check(target: &Target, offset: u64, facts: &KernelFacts, span: Span) -> Result<(), Refusal> {
    let address = target.address_of(target.effective_offset(offset));
    if !facts.blacklist.contains(address) {
        return Ok(());
    }
    let message = format!("`{}` is on the kernel's kprobe blacklist", target.function);
    Err(Refusal { rule: Rule::Blacklisted, message, hint: "probe a function that calls it".to_owned(), span })
}
