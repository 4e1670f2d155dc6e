//! Report of a check: the verdict on a place, and how a probe would be armed.
//!
//! Owns its form, and that of a refusal. Never decides that a place is refused.

use std::ops::Range;

use nix::errno::Errno;

use super::case::Case;
use kprobed_lang::definition::{Code, Diagnostic, RefusedBy, Span, Step};

/// How the kernel would arm a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// Through the function's ftrace call site. Stops when `kernel.ftrace_enabled` is 0.
    Ftrace,
    /// Through a breakpoint. Either no prediction was made whether the kernel replaces it by a
    /// jump, or it would not.
    Breakpoint,
    /// Through a breakpoint that the kernel is expected to replace by a jump soon after. A
    /// prediction: see [`super::predicted_arming`].
    Optimised,
}

/// Outcome of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The kernel's refusal; absent if the kernel would accept the probe.
    pub refusal: Option<Diagnostic>,
    /// This daemon's objection to a probe that the kernel would accept.
    pub objection: Option<Diagnostic>,
    /// `FUNCTION+0xOFFSET`, if that is known. The function is the one that the place leads to.
    pub location: String,
    /// The place of that function among all of its name, if there are several: see [`v1::Function::place`].
    ///
    /// [`v1::Function::place`]: kprobed_proto::v1::Function::place
    pub among: Option<String>,
    /// Whether the place is the entry of a function, at which its arguments still are in their
    /// registers.
    pub is_entry: bool,
    /// Addresses of the function.
    pub code_range: Option<Range<u64>>,
    /// The place, in bytes from the beginning of the function.
    pub offset: u64,
    /// How it would be armed; absent if it would not.
    pub arming: Option<Arming>,
    /// The name of the probe's module, if that is not loaded: the kernel accepts the probe and
    /// registers it when the module is loaded.
    pub absent_module: Option<String>,
}

impl Report {
    pub(super) fn accepted(case: &Case<'_>, objection: Option<Diagnostic>) -> Self {
        Self { objection, arming: Some(case.arming(case.offset)), ..Self::about(case) }
    }

    pub(super) fn refused_at(refusal: Diagnostic, case: &Case<'_>) -> Self {
        Self { refusal: Some(refusal), ..Self::about(case) }
    }

    pub(super) fn refused(refusal: Diagnostic) -> Self {
        Self { refusal: Some(refusal), ..Self::default() }
    }

    pub(super) fn never_armed(objection: Diagnostic) -> Self {
        Self { objection: Some(objection), ..Self::default() }
    }

    pub(super) fn waiting(module: &str, objection: Option<Diagnostic>) -> Self {
        Self { absent_module: Some(module.to_owned()), objection, ..Self::default() }
    }

    /// The location, for people: as a name of one function only.
    pub fn told_location(&self) -> String {
        match &self.among {
            Some(place) => format!("{} ({place})", self.location),
            None => self.location.clone(),
        }
    }

    fn about(case: &Case<'_>) -> Self {
        Self {
            location: case.location(),
            among: case.among(),
            is_entry: case.is_entry(case.offset),
            code_range: Some(case.range()),
            offset: case.offset,
            ..Self::default()
        }
    }
}

/// A refusal of a place, without a hint: by the kernel when it registers the probe, or by this daemon.
pub(super) fn refusal(code: Code, message: String, span: Span) -> Diagnostic {
    let step = match code.refused_by() {
        RefusedBy::Kernel => Step::REGISTRATION,
        RefusedBy::Kprobed => Step::OwnPlace,
    };
    Diagnostic { hint: None, ..Diagnostic::error(code, span, message) }.at(step)
}

/// The code that the kernel would write to `error_log` for a refusal of a place
/// (kernel/trace/trace_kprobe.c:__trace_kprobe_create): it has a code of its own for few of the
/// rules, and one for all others.
pub fn kernel_code(refusal: &Diagnostic) -> &'static str {
    match (refusal.code, Errno::from_raw(refusal.errno)) {
        (Code::BadProbeAddr | Code::NonUniqSymbol | Code::BadRetprobe, _) => refusal.code.name(),
        (_, Errno::EILSEQ) => "BAD_INSN_BNDRY",
        (_, Errno::ENOENT) => "BAD_PROBE_ADDR",
        _ => "FAIL_REG_PROBE",
    }
}
