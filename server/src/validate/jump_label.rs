//! Jump labels are rewritten while the kernel runs (kernel/jump_label.c:jump_label_text_reserved).

use super::case::Case;
use super::refusal::{Refusal, Rule};

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let address = case.address_of(offset);
    let labels = case.facts.patch_sites.jump_labels_near(address);
    if !labels.iter().any(|label| address - label < bytes_of(case, *label)) {
        return Ok(());
    }
    let message = format!("+{offset} of `{}` is a jump label, which the kernel rewrites", case.function);
    Err(case.refuse(Rule::JumpLabel, message))
}

/// A short jump or the NOP in its place, or the long forms (arch/x86/kernel/jump_label.c:arch_jump_entry_size).
fn bytes_of(case: &Case<'_>, label: u64) -> u64 {
    const SHORT_NOP: [u8; 2] = [0x66, 0x90];
    const SHORT_JUMP: u8 = 0xeb;
    const LONG_BYTES: u64 = 5;
    // One that begins before the function is of another one, and its rest is no place for a probe.
    let Some(offset) = label.checked_sub(case.start) else { return LONG_BYTES };
    let code = case.code_from(offset);
    if code.starts_with(&SHORT_NOP) || code.first() == Some(&SHORT_JUMP) { 2 } else { LONG_BYTES }
}
