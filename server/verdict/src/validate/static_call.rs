//! Static calls are rewritten while the kernel runs (kernel/static_call_inline.c:static_call_text_reserved).

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    if case.facts.patch_sites.static_call_over(case.address_of(offset)).is_none() {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is a static call, which the kernel rewrites", case.function);
    Err(case.refuse(Rule::StaticCall, message))
}
