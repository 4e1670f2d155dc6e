//! What stands in front of a function is not executed (kernel/kprobes.c:is_cfi_preamble_symbol, since 6.6 and in the stable trees; before,
//! such places had no call site and were refused for that).

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, _offset: u64) -> Result<(), Refusal> {
    if !(case.function.starts_with("__cfi_") || case.function.starts_with("__pfx_")) {
        return Ok(());
    }
    let message = format!("`{}` is the padding in front of a function", case.function);
    Err(case.refuse(Rule::Preamble, message).with_hint("probe the function itself"))
}
