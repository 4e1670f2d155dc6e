//! Listings of code, each instruction judged as a place for a probe: a function, and the surroundings of a place.
//!
//! Owns how much is shown. Never applies a rule of its own.

use super::case::Case;
use super::places::{Nearest, Places, nearest};
use super::report::{Arming, Report};
use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, Diagnostic, ProbeDefinition};
use kprobed_proto::v1;

/// One instruction.
#[derive(Clone, Debug)]
pub struct JudgedInstruction {
    /// The instruction.
    pub instruction: insn::Instruction,
    /// Whether the kernel sees the beginning of an instruction here.
    pub boundary: bool,
    /// Whether this is the function's entry.
    pub entry: bool,
    /// How a probe would be armed, or why it is refused.
    pub verdict: Result<Arming, Diagnostic>,
    /// Whether the host has a probe here, of any program.
    pub probed: bool,
}

/// Longer functions are shown up to this size only.
const SHOWN_BYTES: u64 = 128 << 10;

/// All instructions of the function at `start`, judged for a probe of the kind of `definition`, and
/// how many bytes at its end were left out. None if the code cannot be read.
pub fn disassembly(
    definition: &ProbeDefinition,
    start: u64,
    facts: &KernelFacts,
) -> (Vec<JudgedInstruction>, u64) {
    let Some(mut case) = Case::at(definition, start, facts) else { return (Vec::new(), 0) };
    let omitted = case.size.saturating_sub(SHOWN_BYTES);
    case.size -= omitted;
    let places = Places::new(case);
    let judged = |instruction: insn::Instruction| {
        let offset = instruction.offset;
        let address = places.case.address_of(offset.into());
        let verdict = places.judge(offset).map(|()| places.case.final_arming(offset.into()));
        JudgedInstruction {
            boundary: places.is_boundary(offset),
            entry: places.case.is_entry(offset.into()),
            verdict,
            probed: facts.armed.is_registered(address),
            instruction,
        }
    };
    (places.listing().into_iter().map(judged).collect(), omitted)
}

/// Why a return probe cannot be at an instruction.
const RETURN_PLACE: &str = "a return probe is at the entry of the function";

/// Instructions that a listing shows on either side of the place.
const CONTEXT_INSTRUCTIONS: usize = 8;

/// Instructions around the place of a report, each judged by the same rules. The window grows until
/// it contains a working place on either side, if the function has one: these come with it. Nothing if
/// the report has no place, or one outside of the function that it names.
///
/// Costs a decoded and printed function: never computed unless a client asks for it.
pub fn surroundings(
    definition: &ProbeDefinition,
    report: &Report,
    facts: &KernelFacts,
) -> (Vec<v1::Instruction>, Nearest) {
    let mut against = report.refusal.iter().chain(&report.objection);
    let is_outside = against.any(|refusal| refusal.code == Code::OutsideFunction);
    let case = Case::of_report(definition, report, facts).filter(|_| !is_outside);
    let Some(case) = case else { return Default::default() };
    let places = Places::new(case);
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
    (listing, nearest)
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
