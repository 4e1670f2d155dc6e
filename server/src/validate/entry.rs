//! Return probes sit at a function's entry (kernel/kprobes.c:kprobe_on_func_entry).

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::{ProbeKind, Span};

pub(super) fn check(kind: ProbeKind, target: &Target, offset: u64, span: Span) -> Result<(), Refusal> {
    if kind == ProbeKind::Entry || target.is_entry(offset) {
        return Ok(());
    }
    let message = format!("a return probe sits at the entry of a function, not at +{offset}");
    Err(Refusal { rule: Rule::NotFunctionEntry, message, hint: "leave the offset out".to_owned(), span })
}
