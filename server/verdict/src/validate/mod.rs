//! Place validation: whether the running kernel would accept the place of a probe, from facts
//! alone.
//!
//! Owns the steps from the place of a definition to a verdict: the symbol, then the table of rules
//! (`rules`). The verdict is the kernel's, errno included, with the step at which the kernel
//! reaches it; what this daemon itself refuses about a place that the kernel accepts is an
//! objection, apart from the verdict. Never writes anything, to the kernel or elsewhere.

mod case;
pub mod functions;
mod instruction;
mod listing;
mod memory_symbols;
mod objection;
mod optimise;
mod places;
mod report;
mod rules;
pub(crate) mod spelling;
mod symbol;
#[cfg(test)]
pub(crate) mod tests;
pub mod typed;

pub use listing::{JudgedInstruction, disassembly, surroundings};
pub use places::{Nearest, nearest};
pub use report::{Arming, Report, kernel_code};
pub use spelling::suggestion;

use case::Case;
use kprobed_host::kernel::{BootSite, KernelFacts};
use kprobed_lang::definition::{Code, Diagnostic, Place, ProbeDefinition, Step};

/// What was found of the place of a definition.
struct Looked<'a> {
    /// Absent for an address.
    symbols: Option<symbol::Symbols<'a>>,
    address: Option<u64>,
    /// Absent if there is no symbol at the address.
    case: Option<Case<'a>>,
}

impl<'a> Looked<'a> {
    /// Looks the place up. The error is the module that must be loaded first.
    fn up(definition: &'a ProbeDefinition, facts: &'a KernelFacts) -> Result<Self, &'a str> {
        let symbols = symbol::look_up(definition, facts)?;
        let address = match &definition.place {
            Place::Address { address, .. } => Some(*address),
            Place::Symbol { .. } => symbols.as_ref().and_then(symbol::Symbols::address),
            Place::Event { .. } => None,
        };
        let case = address.and_then(|address| Case::at(definition, address, facts));
        Ok(Self { symbols, address, case })
    }

    fn refused(self, refusal: Diagnostic) -> Report {
        match (self.case, self.symbols) {
            // Which of several functions was meant is not known.
            (Some(case), symbols) if refusal.code != Code::NonUniqSymbol => {
                let refusal = match &symbols {
                    Some(symbols) => objection::behind_the_end(refusal, symbols, &case),
                    None => refusal,
                };
                Report::refused_at(refusal, &case)
            }
            _ => Report::refused(refusal),
        }
    }
}

/// Judges a definition whose text is valid.
pub fn check(definition: &ProbeDefinition, facts: &KernelFacts) -> Report {
    if definition.is_of_host_event() {
        // Its place is not the daemon's to judge.
        return Report::default();
    }
    let looked = match Looked::up(definition, facts) {
        Ok(looked) => looked,
        Err(module) => return Report::waiting(module, memory_symbols::never_found(definition)),
    };
    let verdict = before_registration(&looked, definition, facts).and_then(|()| match &looked.case {
        Some(case) => rules::judge(case, case.offset),
        None => objection::check_unnamed(definition, facts),
    });
    match (verdict, looked) {
        (Ok(()), Looked { symbols, case: Some(case), .. }) => {
            let outside = symbols.and_then(|symbols| objection::outside(&symbols, &case));
            let objection = outside
                .or_else(|| memory_symbols::harm(definition, facts))
                .or_else(|| objection::harm(&case, case.offset));
            Report::accepted(&case, objection)
        }
        (Ok(()), looked) => Report::never_armed(objection::never_armed(definition, looked.address)),
        (Err(refusal), _) if memory_symbols::is_forgiven(&refusal, definition) => {
            Report::never_armed(memory_symbols::never_armed(refusal))
        }
        (Err(refusal), looked) => looked.refused(refusal),
    }
}

/// How a probe that a report accepts would finally be armed: distinguishes a breakpoint from one
/// that the kernel is expected to replace by a jump. Costs the decoding of a function.
pub fn predicted_arming(
    definition: &ProbeDefinition,
    report: &Report,
    facts: &KernelFacts,
) -> Option<Arming> {
    if report.arming != Some(Arming::Breakpoint) {
        return report.arming;
    }
    let case = Case::of_report(definition, report, facts);
    case.map(|case| case.final_arming(report.offset)).or(report.arming)
}

/// Verdicts that depend on how boot patches a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDependence {
    /// The code that boot may rewrite. Several if the sites of two tables overlap.
    pub sites: Vec<BootSite>,
    /// Whether the place works with some of the possible patches.
    pub some_accept: bool,
    /// Whether it does not work with some.
    pub some_refuse: bool,
}

/// How the verdict of a report depends on boot. None if it is always the same: for a running
/// kernel, and for a place that is refused before its code is read. Only places inside of what boot may rewrite depend
/// on it: whole instructions replace whole instructions there, so that all others keep their boundaries and their
/// opcodes. Each possibility is judged by the rules that judge the likeliest; no image is patched.
pub fn boot_dependence(
    definition: &ProbeDefinition,
    report: &Report,
    facts: &KernelFacts,
) -> Option<BootDependence> {
    let start = report.code_range.as_ref()?.start;
    let case = || Some(Case::at(definition, start.checked_add(report.offset)?, facts)?.whole());
    let likeliest = case()?;
    let offset = likeliest.offset;
    let found = facts.boot_sites.over(likeliest.address_of(offset), &facts.text, &facts.symbols);
    let key = |verdict: Result<(), Diagnostic>| verdict.map_err(|refusal| (refusal.code, refusal.errno));
    let mut verdicts: Vec<Result<(), (Code, i32)>> = vec![key(rules::judge(&likeliest, offset))];
    let mut sites = Vec::new();
    for (site, possible) in found {
        let Ok(at) = usize::try_from(site.range.start.wrapping_sub(start)) else { continue };
        for bytes in possible {
            let mut code = likeliest.code().to_vec();
            if let Some(place) = code.get_mut(at..at.saturating_add(bytes.len())) {
                place.copy_from_slice(&bytes);
            }
            let verdict = key(rules::judge(&case()?.with_code(code), offset));
            if !verdicts.contains(&verdict) {
                verdicts.push(verdict);
            }
        }
        sites.push(site);
    }
    (verdicts.len() > 1).then(|| BootDependence {
        sites,
        some_accept: verdicts.iter().any(Result::is_ok),
        some_refuse: verdicts.iter().any(Result::is_err),
    })
}

/// The kernel's checks while it still parses the definition
/// (kernel/trace/trace_kprobe.c:__trace_kprobe_create), and those of the symbol after that.
fn before_registration(
    looked: &Looked<'_>,
    definition: &ProbeDefinition,
    facts: &KernelFacts,
) -> Result<(), Diagnostic> {
    let Some(symbols) = &looked.symbols else { return Ok(()) };
    let step = symbol::step(definition, facts);
    let check_symbol = || symbol::check(symbols, definition, facts).map_err(|refusal| refusal.at(step));
    if step < Step::Entry {
        check_symbol()?;
    }
    if let Some(case) = &looked.case {
        rules::entry_of_symbol(case)?;
    }
    if step < Step::Entry {
        return Ok(());
    }
    if step >= Step::REGISTRATION && symbols.address().is_none() {
        // It looks up the symbols that arguments read, and then that of the place.
        memory_symbols::check_definition(definition, facts).map_err(|refusal| refusal.at(step))?;
    }
    check_symbol()
}
