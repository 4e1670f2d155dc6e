//! A probe replaces the beginning of an instruction (arch/x86/kernel/kprobes/core.c:can_probe).

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::Span;

pub(super) fn check(target: &Target, offset: u64, span: Span) -> Result<(), Refusal> {
    if target.is_boundary(offset) {
        return Ok(());
    }
    let within =
        target.boundaries.iter().rev().find(|start| u64::from(**start) < offset).copied().unwrap_or(0);
    let message =
        format!("+{offset} is in the middle of the instruction at +{within} of `{}`", target.function);
    Err(Refusal { rule: Rule::InstructionBoundary, message, hint: String::new(), span })
}
