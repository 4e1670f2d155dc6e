//! A probe replaces the beginning of an instruction (arch/x86/kernel/kprobes/core.c:can_probe).

use nix::errno::Errno;

use super::case::Case;
use super::refusal::{Refusal, Rule};
use kprobed_host::insn;

pub(super) fn check(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    let function = case.function;
    if case.code().is_empty() {
        let message = format!("the code of `{function}` cannot be read");
        return Err(case.refuse(Rule::UnreadableCode, message));
    }
    // The kernel decodes up to the place and does not look at what is there yet.
    let offset = usize::try_from(case.effective_offset(offset)).unwrap_or(usize::MAX);
    let before = insn::boundaries(case.code()).take_while(|extent| extent.start < offset).last();
    let message = match before {
        None if offset == 0 => return Ok(()),
        Some(extent) if extent.end == offset => return Ok(()),
        Some(extent) if extent.end > offset => {
            format!("+{offset} is in the middle of the instruction at +{} of `{function}`", extent.start)
        }
        stopped => {
            let at = stopped.map_or(0, |extent| extent.end);
            format!("+{offset} lies after bytes that are not an instruction, at +{at} of `{function}`")
        }
    };
    Err(case.refuse(Rule::InstructionBoundary, message).with_errno(Errno::EILSEQ))
}
