//! Surroundings of a place: the code around it, and the nearest places that work.
//!
//! Owns how much is shown. Costs a decoded and printed function: never computed unless a client
//! asks for it.

use super::places::{Nearest, Places, nearest};
use super::report::Report;
use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, Diagnostic, ProbeDefinition};
use kprobed_proto::v1;

/// The surroundings of a place.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Instructions around the place.
    pub listing: Vec<v1::Instruction>,
    /// The nearest places that work.
    pub nearest: Nearest,
}

/// Why a return probe cannot be at an instruction.
const RETURN_PLACE: &str = "a return probe is at the entry of the function";

/// Instructions that a listing shows on either side of the place.
const CONTEXT_INSTRUCTIONS: usize = 8;

/// Instructions around the place of a report, each judged by the same rules. The window grows until
/// it contains a working place on either side, if the function has one. Empty if the report has no
/// place.
pub fn surroundings(definition: &ProbeDefinition, report: &Report, facts: &KernelFacts) -> Surroundings {
    let Some(places) = Places::of_report(definition, report, facts) else { return Surroundings::default() };
    let nearest = nearest(definition, report, facts);
    let listing = places.listing();
    let window = window(&listing, report.offset, nearest);
    let shown = listing.into_iter().skip(window.start).take(window.len());
    let listing = shown
        .map(|instruction| {
            let reason = |refusal: Diagnostic| match refusal.code {
                // The same for each of them.
                Code::BadRetprobe | Code::NotEntryAddress => RETURN_PLACE.to_owned(),
                _ => refusal.message,
            };
            let refusal = places.judge(instruction.offset).err().map(reason);
            let insn::Instruction { offset, bytes: code, text } = instruction;
            let probeable = refusal.is_none();
            v1::Instruction { offset, code, text, probeable, refusal: refusal.unwrap_or_default() }
        })
        .collect();
    Surroundings { listing, nearest }
}

/// The range of instructions to show.
fn window(listing: &[insn::Instruction], offset: u64, nearest: Nearest) -> std::ops::Range<usize> {
    let index_of = |offset: u64| listing.partition_point(|one| u64::from(one.offset) < offset);
    let at = index_of(offset);
    let before = nearest.before.map_or(at, |before| index_of(before.into()));
    let after = nearest.after.map_or(at, |after| index_of(after.into()));
    let first = at.saturating_sub(CONTEXT_INSTRUCTIONS).min(before);
    let last = (at + CONTEXT_INSTRUCTIONS).max(after);
    first..(last + 1).min(listing.len())
}
