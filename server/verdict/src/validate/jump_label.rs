//! Jump labels are rewritten while the kernel runs (kernel/jump_label.c:jump_label_text_reserved).

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let address = case.address_of(offset);
    let labels = case.facts.patch_sites.jump_labels_near(address);
    // One that begins before the function is of another one.
    let code_from = |label: u64| label.checked_sub(case.start).map(|offset| case.code_from(offset));
    if !labels.iter().any(|label| address - label < bytes_of(code_from(*label))) {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is a jump label, which the kernel rewrites", case.function);
    Err(case.refuse(Rule::JumpLabel, message))
}

/// A short jump or the NOP in its place, or the long forms (arch/x86/kernel/jump_label.c:arch_jump_entry_size).
/// Without the code at the label, it is taken for long: its rest is no place for a probe.
pub(super) fn bytes_of(code: Option<&[u8]>) -> u64 {
    const SHORT_NOP: [u8; 2] = [0x66, 0x90];
    const SHORT_JUMP: u8 = 0xeb;
    const LONG_BYTES: u64 = 5;
    let Some(code) = code else { return LONG_BYTES };
    if code.starts_with(&SHORT_NOP) || code.first() == Some(&SHORT_JUMP) { 2 } else { LONG_BYTES }
}
