//! A probe goes into code of the kernel or of a module (kernel/kprobes.c:check_kprobe_address_safe; kernel/extable.c:core_kernel_text,
//! kernel/module/main.c:is_module_text_address).

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let is_text = match case.module {
        None => case.facts.core_text.contains(&case.address_of(offset)),
        Some(module) => case.is_code && case.facts.symbols.has_module(module),
    };
    if is_text {
        return Ok(());
    }
    let message = format!("`{}` is not code of the running kernel or of a module", case.function);
    Err(case.refuse(Rule::NotText, message))
}
