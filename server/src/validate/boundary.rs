//! A probe replaces the beginning of an instruction (arch/x86/kernel/kprobes/core.c:can_probe).

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::Span;

const INT3: u8 = 0xcc;

pub(super) fn check(target: &Target, offset: u64, span: Span) -> Result<(), Refusal> {
    let refuse =
        |message| Err(Refusal { rule: Rule::InstructionBoundary, message, hint: String::new(), span });
    if target.is_boundary(offset) {
        // Breakpoints fill the space behind returns and jumps; nothing ever runs into them.
        let padding = usize::try_from(offset).is_ok_and(|at| target.code.get(at) == Some(&INT3));
        return if padding {
            refuse(format!("+{offset} of `{}` is padding", target.function))
        } else {
            Ok(())
        };
    }
    let within =
        target.boundaries.iter().rev().find(|start| u64::from(**start) < offset).copied().unwrap_or(0);
    let message =
        format!("+{offset} is in the middle of the instruction at +{within} of `{}`", target.function);
    refuse(message)
}
