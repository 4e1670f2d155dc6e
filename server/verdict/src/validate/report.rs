//! Report of a check: the verdict on a place, and how a probe would be armed.
//!
//! Owns these types. Never computes one.

use std::ops::Range;

use super::case::Case;
use super::refusal::Refusal;

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
#[derive(Clone, Debug)]
pub struct Report {
    /// The kernel's refusal; absent if the kernel would accept the probe.
    pub refusal: Option<Refusal>,
    /// This daemon's objection to a probe that the kernel would accept.
    pub objection: Option<Refusal>,
    /// `FUNCTION+0xOFFSET`, if that is known. The function is the one that the place leads to.
    pub location: String,
    /// The place of that function among all of its name, if there are several: see
    /// [`super::functions::Function::place`].
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
    pub(super) fn accepted(case: &Case<'_>, objection: Option<Refusal>) -> Self {
        Self { objection, arming: Some(case.arming(case.offset)), ..Self::about(Some(case)) }
    }

    pub(super) fn refused_at(refusal: Refusal, case: &Case<'_>) -> Self {
        Self { refusal: Some(refusal), ..Self::about(Some(case)) }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..Self::about(None) }
    }

    pub(super) fn never_armed(objection: Refusal) -> Self {
        Self { objection: Some(objection), ..Self::about(None) }
    }

    /// Of an event of the host: its place is not the daemon's to judge.
    pub(super) fn of_event() -> Self {
        Self::about(None)
    }

    pub(super) fn waiting(module: &str, objection: Option<Refusal>) -> Self {
        Self { absent_module: Some(module.to_owned()), objection, ..Self::about(None) }
    }

    /// The location, for people: as a name of one function only.
    pub fn told_location(&self) -> String {
        match &self.among {
            Some(place) => format!("{} ({place})", self.location),
            None => self.location.clone(),
        }
    }

    fn about(case: Option<&Case<'_>>) -> Self {
        Self {
            refusal: None,
            objection: None,
            location: case.map(Case::location).unwrap_or_default(),
            among: case.and_then(Case::among),
            is_entry: case.is_some_and(|case| case.is_entry(case.offset)),
            code_range: case.map(Case::range),
            offset: case.map_or(0, |case| case.offset),
            arming: None,
            absent_module: None,
        }
    }
}
