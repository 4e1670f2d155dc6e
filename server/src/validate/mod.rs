//! Whether the running kernel would take a probe, from facts alone.
//!
//! Owns the rules, one per file, in the order in which the kernel applies them. The verdict is the kernel's, errno included; what this
//! daemon itself minds about a place that the kernel takes is an objection beside it. Never writes anything, to the kernel or elsewhere.

mod blacklist;
mod boundary;
mod bug;
mod case;
mod disassembly;
mod entry;
pub mod functions;
mod instruction;
mod jump_label;
mod landing;
mod memory_symbols;
mod optimise;
mod places;
mod preamble;
mod refusal;
mod report;
mod return_blacklist;
mod spelling;
mod static_call;
mod surroundings;
mod symbol;
#[cfg(test)]
mod tests;
mod text;
mod traceable;
pub mod typed;

pub use disassembly::{JudgedInstruction, disassembly};
pub use places::{Nearest, nearest};
pub use refusal::{Refusal, Rule};
pub use report::{Arming, Report};
pub use spelling::suggestion;
pub use surroundings::{ShownInstruction, Surroundings, surroundings};

use crate::definition::{Place, ProbeDefinition};
use crate::kernel::KernelFacts;
use case::Case;

/// A rule: refuses a place, given in bytes from the beginning of the function.
type Check = fn(&Case<'_>, u64) -> Result<(), Refusal>;

/// What the kernel asks about every place, in its order: kernel/trace/trace_kprobe.c:__register_trace_kprobe,
/// kernel/kprobes.c:register_kretprobe, then check_kprobe_address_safe.
const OF_PLACES: [Check; 10] = [
    traceable::check,
    memory_symbols::check,
    entry::check_address,
    return_blacklist::check,
    text::check,
    blacklist::check,
    jump_label::check,
    static_call::check,
    bug::check,
    preamble::check,
];

/// Judges a definition whose text was found good.
pub fn check(definition: &ProbeDefinition, facts: &KernelFacts) -> Report {
    let found = match symbol::look_up(definition, facts) {
        symbol::Found::AbsentModule(module) => return Report::waiting(module),
        symbol::Found::Symbols(symbols) => Some(symbols),
        symbol::Found::Address => None,
    };
    let address = match &definition.place {
        Place::Address { address, .. } => Some(*address),
        Place::Symbol { .. } => found.as_ref().and_then(symbol::Symbols::address),
    };
    let case = address.and_then(|address| Case::at(definition, address, facts));
    let early = before_registration(definition, found.as_ref(), case.as_ref(), facts);
    let verdict = early.and_then(|()| match &case {
        Some(case) => judge(case, case.offset),
        None => landing::check_unnamed(definition, facts),
    });
    match (verdict, case) {
        (Ok(()), Some(case)) => {
            let objection = found.and_then(|found| landing::objection(&found, &case));
            Report::accepted(&case, objection)
        }
        (Ok(()), None) => Report::never_armed(landing::never_armed(definition, address)),
        // Which of several functions was meant is not known.
        (Err(refusal), Some(case)) if refusal.rule != Rule::AmbiguousSymbol => {
            Report::refused_at(refusal, &case)
        }
        (Err(refusal), _) => Report::refused(refusal),
    }
}

/// How a probe that a report accepts would be armed in the end: a breakpoint is told apart from one that the kernel is expected to replace
/// by a jump. Costs the decoding of a function.
pub fn predicted_arming(
    definition: &ProbeDefinition,
    report: &Report,
    facts: &KernelFacts,
) -> Option<Arming> {
    if report.arming != Some(Arming::Breakpoint) {
        return report.arming;
    }
    let start = report.code_range.as_ref().map(|range| range.start);
    let case = start.and_then(|start| Case::at(definition, start, facts));
    let jump = case.is_some_and(|case| {
        let case = case.whole();
        let offset = case.effective_offset(report.offset);
        optimise::Optimiser::new(&case).is_some_and(|optimiser| optimiser.makes_jump(offset))
    });
    Some(if jump { Arming::Optimised } else { Arming::Breakpoint })
}

/// What the kernel asks while it still reads the definition (kernel/trace/trace_kprobe.c:__trace_kprobe_create).
fn before_registration(
    definition: &ProbeDefinition,
    found: Option<&symbol::Symbols<'_>>,
    case: Option<&Case<'_>>,
    facts: &KernelFacts,
) -> Result<(), Refusal> {
    let Some(found) = found else { return Ok(()) };
    let entry = || case.map_or(Ok(()), |case| entry::check_symbol(case, case.offset));
    if facts.behaviour.checks_symbol_first {
        symbol::check(found, definition, facts)?;
        entry()
    } else {
        entry()?;
        symbol::check(found, definition, facts)
    }
}

/// Applies the rules of registration to one offset of the function, in the kernel's order.
fn judge(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    of_place(case, offset)?;
    if replaces_nothing(case, offset) {
        return Ok(());
    }
    boundary::check(case, offset)?;
    instruction::check(case, offset)
}

/// The same for an offset that is known to be the beginning of an instruction.
fn judge_boundary(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    of_place(case, offset)?;
    if replaces_nothing(case, offset) {
        return Ok(());
    }
    instruction::check(case, offset)
}

fn of_place(case: &Case<'_>, offset: u64) -> Result<(), Refusal> {
    OF_PLACES.iter().try_for_each(|rule| rule(case, offset))
}

/// Whether no instruction is to be replaced: ftrace, or a probe that is already there, does it. Otherwise the kernel looks at the
/// instruction (arch/x86/kernel/kprobes/core.c:arch_prepare_kprobe).
fn replaces_nothing(case: &Case<'_>, offset: u64) -> bool {
    let address = case.address_of(offset);
    case.facts.traceable.is_site(address) || case.facts.armed.is_registered(address)
}
