//! The code around a place, and the nearest places that work.
//!
//! Costs as much as a check for every instruction of the function: computed when somebody wants to see it.

use super::case::Case;
use super::judge;
use super::report::Report;
use crate::definition::ProbeDefinition;
use crate::insn;
use crate::kernel::KernelFacts;

/// One instruction of a listing.
#[derive(Clone, Debug)]
pub struct ShownInstruction {
    /// The instruction.
    pub instruction: insn::Instruction,
    /// Why no probe can be placed here; absent when one can.
    pub refusal: Option<String>,
}

/// What is around a place.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Instructions around the place.
    pub listing: Vec<ShownInstruction>,
    /// The nearest offset before the place that works.
    pub nearest_before: Option<u32>,
    /// The nearest offset after the place that works.
    pub nearest_after: Option<u32>,
}

/// How many instructions a listing shows on either side of the place.
const CONTEXT_INSTRUCTIONS: usize = 8;

/// Instructions around the place of a report, each judged by the same rules. The window grows until it holds a working place on either
/// side, if the function has one. Empty when the report has no place.
pub fn surroundings(definition: &ProbeDefinition, report: &Report, facts: &KernelFacts) -> Surroundings {
    let start = report.code_range.as_ref().map(|range| range.start);
    let Some(case) = start.and_then(|start| Case::at(definition, start, facts)).map(Case::whole) else {
        return Surroundings::default();
    };
    let size = usize::try_from(case.size).unwrap_or(usize::MAX);
    let code = case.code();
    let shown: Vec<_> = insn::listing(code.get(..size).unwrap_or(code), case.start)
        .into_iter()
        .map(|instruction| {
            let offset = instruction.offset.into();
            let verdict = judge(&case, offset);
            ShownInstruction { instruction, refusal: verdict.err().map(|refusal| refusal.message) }
        })
        .collect();
    around(shown, report.offset)
}

fn around(shown: Vec<ShownInstruction>, offset: u64) -> Surroundings {
    let works = |index: &usize| shown.get(*index).is_some_and(|shown| shown.refusal.is_none());
    let offset_of = |index: usize| shown.get(index).map(|shown| shown.instruction.offset);
    let at = shown.partition_point(|shown| u64::from(shown.instruction.offset) < offset);
    let is_listed = offset_of(at).is_some_and(|listed| u64::from(listed) == offset);
    let before = (0..at).rev().find(works);
    let after = (at + usize::from(is_listed)..shown.len()).find(works);
    let first = at.saturating_sub(CONTEXT_INSTRUCTIONS).min(before.unwrap_or(at));
    let last = (at + CONTEXT_INSTRUCTIONS).max(after.unwrap_or(at)).min(shown.len().saturating_sub(1));
    let (nearest_before, nearest_after) = (before.and_then(offset_of), after.and_then(offset_of));
    let listing = shown.into_iter().skip(first).take((last + 1).saturating_sub(first)).collect();
    Surroundings { listing, nearest_before, nearest_after }
}

impl Surroundings {
    /// The places that work, in words; empty when there are none.
    pub fn hint(&self) -> String {
        match (self.nearest_before, self.nearest_after) {
            (Some(before), Some(after)) => format!("+{before} and +{after} work"),
            (Some(only), None) | (None, Some(only)) => format!("+{only} works"),
            (None, None) => String::new(),
        }
    }
}
