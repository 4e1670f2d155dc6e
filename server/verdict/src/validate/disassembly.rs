//! Disassembly of a function, each instruction judged as a place for a probe.
//!
//! Owns the list. Never applies a rule of its own.

use super::case::Case;
use super::places::Places;
use super::report::Arming;
use kprobed_host::insn;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Diagnostic, ProbeDefinition};

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
    let makes_jump = |offset| {
        let offset = places.case.effective_offset(offset);
        places.case.optimiser().is_some_and(|optimiser| optimiser.makes_jump(offset))
    };
    let judged = |instruction: insn::Instruction| {
        let offset = instruction.offset;
        let address = places.case.address_of(offset.into());
        let verdict = places.judge(offset).map(|()| match places.case.arming(offset.into()) {
            Arming::Breakpoint if makes_jump(offset.into()) => Arming::Optimised,
            arming => arming,
        });
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
