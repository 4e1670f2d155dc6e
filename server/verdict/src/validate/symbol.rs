//! Symbol lookup: the symbol of a place must exist, and be the only one
//! (kernel/trace/trace_kprobe.c:validate_probe_symbol, number_of_same_symbols).
//!
//! Owns the kernel's choice among symbols of one name. Never judges the place in it.

use nix::errno::Errno;

use super::report::refusal;
use super::spelling;
use kprobed_host::kernel::{KernelFacts, Symbol, SymbolTable};
use kprobed_lang::definition::{Code, Diagnostic, Place, ProbeDefinition, Step};

/// The symbols of the name that a definition gives.
pub(super) struct Symbols<'a> {
    /// The one that the kernel chooses.
    pub(super) taken: Option<Symbol<'a>>,
    /// Added to its address.
    pub(super) offset: u32,
    name: &'a str,
    module: Option<&'a str>,
    count: usize,
}

impl Symbols<'_> {
    /// The resulting address.
    pub(super) fn address(&self) -> Option<u64> {
        Some(self.taken?.address.wrapping_add(u64::from(self.offset)))
    }
}

/// Looks the symbol up; absent for an address. The error is a module that is not loaded: the kernel
/// accepts its function and waits.
pub(super) fn look_up<'a>(
    definition: &'a ProbeDefinition,
    facts: &'a KernelFacts,
) -> Result<Option<Symbols<'a>>, &'a str> {
    let Place::Symbol { module, symbol, offset, .. } = &definition.place else { return Ok(None) };
    let module = module.as_deref();
    if let Some(module) = module.filter(|module| !facts.symbols.has_module(module)) {
        return Err(module);
    }
    // Nearly every name has one symbol: one search finds everything that is needed about it.
    let named: Vec<Symbol<'_>> = facts.symbols.named(symbol, module).collect();
    Ok(Some(Symbols {
        taken: SymbolTable::taken(named.iter().copied()),
        offset: *offset,
        name: symbol,
        module,
        count: count(&named, module, facts),
    }))
}

fn count(named: &[Symbol<'_>], module: Option<&str>, facts: &KernelFacts) -> usize {
    let behaviour = &facts.behaviour;
    let own = named.iter().filter(|symbol| symbol.module.is_none()).count();
    let of_modules = named.len() - own;
    match module {
        Some(_) => of_modules,
        None if own > 0 && behaviour.kernel_symbol_wins || !behaviour.counts_module_symbols => own,
        None => own + of_modules,
    }
}

/// The step at which the kernel looks the symbol up. All kernels that count the symbols of a name
/// do so while they parse the definition, but the first of them do not count those of a module.
pub(super) fn step(definition: &ProbeDefinition, facts: &KernelFacts) -> Step {
    let of_module = matches!(definition.place, Place::Symbol { module: Some(_), .. });
    if facts.behaviour.checks_symbol_first {
        Step::SymbolFirst
    } else if facts.behaviour.counts_symbols && !of_module {
        Step::SymbolThen
    } else {
        Step::REGISTRATION
    }
}

pub(super) fn check(
    found: &Symbols<'_>,
    definition: &ProbeDefinition,
    facts: &KernelFacts,
) -> Result<(), Diagnostic> {
    let behaviour = &facts.behaviour;
    let span = definition.place.span();
    let name = found.name;
    // Kernels without a check for it notice an unknown symbol when they register it: with the same
    // errno.
    let unknown = found.taken.is_none() || found.module.is_none() && found.count == 0;
    if unknown {
        let early = behaviour.checks_symbol_first && found.count == 0;
        let errno = if early { Errno::EINVAL } else { Errno::ENOENT };
        let (message, hint) =
            if let Some(problem) = definition.registration_problem().filter(|_| name.is_empty()) {
                (problem.message, problem.hint.unwrap_or_default())
            } else {
                let hint = spelling::suggestion(name, found.module, facts);
                let message = match found.module {
                    Some(module) => format!("the module `{module}` has no symbol `{name}`"),
                    None => format!("the kernel has no symbol `{name}`"),
                };
                (message, hint)
            };
        return Err(refusal(Code::BadProbeAddr, message, span).with_errno(errno as i32).with_hint(hint));
    }
    // Early kernels did not count names with a module.
    let counted = behaviour.counts_symbols && (behaviour.checks_symbol_first || found.module.is_none());
    if counted && found.count > 1 {
        let errno = if behaviour.checks_symbol_first { Errno::EINVAL } else { Errno::EADDRNOTAVAIL };
        let message = format!("`{name}` is the name of {} symbols", found.count);
        let hint = candidates(found, facts);
        return Err(refusal(Code::NonUniqSymbol, message, span).with_errno(errno as i32).with_hint(hint));
    }
    Ok(())
}

/// Most places that a hint offers.
const MAX_CANDIDATES: usize = 4;

/// The same places without ambiguity: those in a module by the name of the function, the kernel's own by
/// distances from the beginning of its text, which are valid until the next kernel.
fn candidates(found: &Symbols<'_>, facts: &KernelFacts) -> String {
    let place = |symbol: Symbol<'_>| {
        if let Some(module) = symbol.module {
            let offset = if found.offset == 0 { String::new() } else { format!("+{}", found.offset) };
            return Some(format!("{module}:{}{offset}", symbol.name));
        }
        let distance = symbol.address.checked_sub(facts.core_text.start)?;
        Some(format!("_stext+{}", distance.saturating_add(u64::from(found.offset))))
    };
    let mut places: Vec<String> =
        facts.symbols.named(found.name, found.module).filter(Symbol::is_code).filter_map(place).collect();
    let more = places.len().saturating_sub(MAX_CANDIDATES);
    places.truncate(MAX_CANDIDATES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("they are at {}{rest}", places.join(", "))
}
