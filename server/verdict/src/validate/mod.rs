//! Whether the running kernel would take a probe, from facts alone.
//!
//! Owns the rules, one per file, in the order in which the kernel applies them. The verdict is the kernel's, errno included; what this
//! daemon itself minds about a place that the kernel takes is an objection beside it. Never writes anything, to the kernel or elsewhere.

mod blacklist;
mod boot;
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
pub(crate) mod tests;
mod text;
mod traceable;
pub mod typed;

pub use boot::{BootDependence, boot_dependence};
pub use disassembly::{JudgedInstruction, disassembly};
pub use places::{Nearest, nearest};
pub use refusal::{Refusal, Rule};
pub use report::{Arming, Report};
pub use spelling::suggestion;
pub use surroundings::{ShownInstruction, Surroundings, surroundings};

use case::Case;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Place, ProbeDefinition};

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

/// What the place of a definition leads to.
struct Looked<'a> {
    /// Absent for an address.
    symbols: Option<symbol::Symbols<'a>>,
    address: Option<u64>,
    /// Absent where there is no symbol at the address.
    case: Option<Case<'a>>,
}

impl<'a> Looked<'a> {
    /// The module that would have to be loaded to know.
    fn up(definition: &'a ProbeDefinition, facts: &'a KernelFacts) -> Result<Self, &'a str> {
        let symbols = match symbol::look_up(definition, facts) {
            symbol::Found::AbsentModule(module) => return Err(module),
            symbol::Found::Symbols(symbols) => Some(symbols),
            symbol::Found::Address => None,
        };
        let address = match &definition.place {
            Place::Address { address, .. } => Some(*address),
            Place::Symbol { .. } => symbols.as_ref().and_then(symbol::Symbols::address),
        };
        let case = address.and_then(|address| Case::at(definition, address, facts));
        Ok(Self { symbols, address, case })
    }

    fn refused(self, refusal: Refusal) -> Report {
        match self.case {
            // Which of several functions was meant is not known.
            Some(case) if refusal.rule != Rule::AmbiguousSymbol => Report::refused_at(refusal, &case),
            _ => Report::refused(refusal),
        }
    }
}

/// Judges a definition whose text was found good.
pub fn check(definition: &ProbeDefinition, facts: &KernelFacts) -> Report {
    let looked = match Looked::up(definition, facts) {
        Ok(looked) => looked,
        Err(module) => return Report::waiting(module, memory_symbols::never_found(definition)),
    };
    let early =
        while_reading(&looked, definition, facts).and_then(|()| behind_reading(&looked, definition, facts));
    let verdict = early.and_then(|()| match &looked.case {
        Some(case) => judge(case, case.offset),
        None => landing::check_unnamed(definition, facts),
    });
    match (verdict, looked) {
        (Ok(()), Looked { symbols, case: Some(case), .. }) => {
            let objection = symbols.and_then(|symbols| landing::objection(&symbols, &case));
            Report::accepted(&case, objection)
        }
        (Ok(()), looked) => Report::never_armed(landing::never_armed(definition, looked.address)),
        (Err(refusal), _) if memory_symbols::is_forgiven(&refusal, definition) => {
            Report::never_armed(memory_symbols::never_armed(refusal))
        }
        (Err(refusal), looked) => looked.refused(refusal),
    }
}

/// Asks only what the kernel asks before it reads what follows the place. Absent when it would go on reading.
pub fn check_while_reading(definition: &ProbeDefinition, facts: &KernelFacts) -> Option<Report> {
    let looked = Looked::up(definition, facts).ok()?;
    let refusal = while_reading(&looked, definition, facts).err()?;
    Some(looked.refused(refusal))
}

/// Whether a place is the entry of a function that is there.
pub fn is_entry(definition: &ProbeDefinition, facts: &KernelFacts) -> bool {
    let case = Looked::up(definition, facts).ok().and_then(|looked| looked.case);
    case.is_some_and(|case| case.is_entry(case.offset))
}

/// Whether a refusal is one of [`check_while_reading`].
pub fn is_asked_while_reading(refusal: &Refusal, definition: &ProbeDefinition, facts: &KernelFacts) -> bool {
    match refusal.rule {
        Rule::NotFunctionEntry => true,
        Rule::UnknownSymbol | Rule::AmbiguousSymbol => looks_while_reading(definition, facts),
        _ => false,
    }
}

/// Whether the kernel looks the symbol up while it still reads: all do that count the symbols of a name, but the first of them do not count
/// those of a module.
fn looks_while_reading(definition: &ProbeDefinition, facts: &KernelFacts) -> bool {
    let of_module = matches!(definition.place, Place::Symbol { module: Some(_), .. });
    facts.behaviour.checks_symbol_first || facts.behaviour.counts_symbols && !of_module
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
fn while_reading(
    looked: &Looked<'_>,
    definition: &ProbeDefinition,
    facts: &KernelFacts,
) -> Result<(), Refusal> {
    let Some(symbols) = &looked.symbols else { return Ok(()) };
    let entry = || looked.case.as_ref().map_or(Ok(()), |case| entry::check_symbol(case, case.offset));
    if facts.behaviour.checks_symbol_first {
        symbol::check(symbols, definition, facts)?;
        return entry();
    }
    entry()?;
    if looks_while_reading(definition, facts) { symbol::check(symbols, definition, facts) } else { Ok(()) }
}

/// What some kernels only ask when they have read all of it.
fn behind_reading(
    looked: &Looked<'_>,
    definition: &ProbeDefinition,
    facts: &KernelFacts,
) -> Result<(), Refusal> {
    match &looked.symbols {
        Some(symbols) if !looks_while_reading(definition, facts) => {
            // It looks for the symbols that arguments read, and then for that of the place.
            if symbols.address().is_none() {
                memory_symbols::check_definition(definition, facts)?;
            }
            symbol::check(symbols, definition, facts)
        }
        _ => Ok(()),
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
