//! Places of a function: the beginnings of its instructions, and which of them work for a probe.
//!
//! Owns the search for the nearest ones. Never applies a rule of its own.

use super::case::Case;
use super::objection::harm;
use super::report::Report;
use super::rules::{judge, judge_boundary};
use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, Diagnostic, ProbeDefinition};

/// A function with the beginnings of its instructions.
pub(super) struct Places<'a> {
    /// The function; its place is its first byte.
    pub(super) case: Case<'a>,
    /// Beginnings of instructions as the kernel finds them, ascending.
    starts: Vec<u32>,
}

/// The nearest places that work, in bytes from the beginning of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nearest {
    /// The last one before the place.
    pub before: Option<u32>,
    /// The first one after the place.
    pub after: Option<u32>,
}

/// The nearest places that work instead. None if the report has no place, or if its reason holds
/// for the whole function.
pub fn nearest(definition: &ProbeDefinition, report: &Report, facts: &KernelFacts) -> Nearest {
    let of_function =
        |refusal: &Diagnostic| matches!(refusal.code, Code::NotraceFunction | Code::OutsideFunction);
    match Case::of_report(definition, report, facts).map(Case::whole) {
        Some(case) if !report.refusal.iter().chain(&report.objection).any(of_function) => {
            around(&case, report.offset)
        }
        _ => Nearest::default(),
    }
}

/// The nearest places that work on either side of an offset. Decodes no further than the one after
/// it.
pub(super) fn around(case: &Case<'_>, offset: u64) -> Nearest {
    // A return probe works at the entry only: other places need no check.
    let possible = |start: u64| !case.is_return() || case.is_entry(start);
    let works = |start: &u32| {
        let start = (*start).into();
        possible(start) && judge_boundary(case, start).is_ok() && harm(case, start).is_none()
    };
    let mut before = Vec::new();
    for start in beginnings(case) {
        if u64::from(start) < offset {
            before.push(start);
        } else if u64::from(start) > offset && works(&start) {
            let before = before.into_iter().rev().find(works);
            return Nearest { before, after: Some(start) };
        }
    }
    Nearest { before: before.into_iter().rev().find(works), after: None }
}

/// The beginnings of the instructions of a function, as the kernel finds them.
fn beginnings(case: &Case<'_>) -> impl Iterator<Item = u32> {
    let size = case.size;
    insn::boundaries(case.code())
        .map_while(|extent| u32::try_from(extent.start).ok())
        .take_while(move |start| u64::from(*start) < size)
}

impl<'a> Places<'a> {
    /// The places of the function of a case.
    pub(super) fn new(case: Case<'a>) -> Self {
        let case = case.whole();
        let starts = beginnings(&case).collect();
        Self { case, starts }
    }

    /// Whether an instruction begins at an offset.
    pub(super) fn is_boundary(&self, offset: u32) -> bool {
        self.starts.binary_search(&offset).is_ok()
    }

    /// The verdict on an offset, of the kernel and of this daemon.
    pub(super) fn judge(&self, offset: u32) -> Result<(), Diagnostic> {
        // The beginnings of instructions are known: they need not be found again for each.
        let judge = if self.is_boundary(offset) { judge_boundary } else { judge };
        judge(&self.case, offset.into())?;
        harm(&self.case, offset.into()).map_or(Ok(()), Err)
    }

    /// All instructions as text, with the names of their targets.
    pub(super) fn listing(&self) -> Vec<insn::Instruction> {
        let Case { facts, start, .. } = self.case;
        let size = usize::try_from(self.case.size).unwrap_or(usize::MAX);
        let code = self.case.code();
        let name = |address| facts.symbols.locate(address).map(|located| located.short());
        insn::listing(code.get(..size).unwrap_or(code), start, &name)
    }
}

impl Nearest {
    /// The places that work, in words; empty if there are none.
    pub fn hint(&self) -> String {
        match (self.before, self.after) {
            (Some(before), Some(after)) => format!("+{before} and +{after} work"),
            (Some(only), None) | (None, Some(only)) => format!("+{only} works"),
            (None, None) => String::new(),
        }
    }
}
