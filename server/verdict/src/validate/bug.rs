//! The instruction of a BUG or WARN means something to the trap handler (lib/bug.c:find_bug): its first byte is no place for a probe. The
//! kernel does not ask about the bytes behind it.

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    if !case.facts.patch_sites.is_bug(case.address_of(offset)) {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is the trap of a BUG or WARN", case.function);
    Err(case.refuse(Rule::BugTrap, message))
}
