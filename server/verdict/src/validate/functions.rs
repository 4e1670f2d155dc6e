//! Functions as places for probes: listing them, finding the one that a place means, and an
//! unambiguous name for each.
//!
//! Owns these lookups. Never says whether a probe in one would work: that depends on the place in
//! it.

use super::rules;
use kprobed_host::kernel::{KernelFacts, Symbol};
use kprobed_lang::definition::Place;
use kprobed_proto::v1;

pub use super::spelling::similar as similar_names;

/// The meaning of a place.
#[derive(Debug)]
pub enum Meant {
    /// The function at `start`, and a place in it.
    One {
        /// The function.
        function: v1::Function,
        /// Its address, for readers of its code.
        start: u64,
        /// The place, in bytes from its beginning.
        offset: u64,
    },
    /// Several functions of that name.
    Several(Vec<v1::Function>),
    /// No function.
    Nothing,
}

/// The function that a place is in.
pub fn meant(place: &Place, facts: &KernelFacts) -> Meant {
    let address = match place {
        Place::Event { .. } => return Meant::Nothing,
        Place::Address { address, .. } => *address,
        Place::Symbol { module, symbol, offset, .. } => {
            let named = code_named(symbol, module.as_deref(), facts);
            match named.as_slice() {
                [] => return Meant::Nothing,
                [only] => only.address.wrapping_add(u64::from(*offset)),
                several => return Meant::Several(several.iter().map(|one| function(*one, facts)).collect()),
            }
        }
    };
    match facts.symbols.locate(address) {
        Some(located) if located.symbol.is_code() => Meant::One {
            function: function(located.symbol, facts),
            start: located.symbol.address,
            offset: located.offset,
        },
        _ => Meant::Nothing,
    }
}

/// The same place by the name of the function that it is in, if it names another symbol.
pub fn in_function(place: &Place, facts: &KernelFacts) -> Place {
    match (place, meant(place, facts)) {
        (Place::Symbol { symbol, span, .. }, Meant::One { function, offset, .. })
            if *symbol != function.name =>
        {
            let v1::Function { name, module, .. } = function;
            let module = Some(module).filter(|module| !module.is_empty());
            let offset = u32::try_from(offset).unwrap_or(u32::MAX);
            Place::Symbol { module, symbol: name, offset, span: *span }
        }
        _ => place.clone(),
    }
}

/// A query for functions.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "functions have none")]
pub struct FunctionQuery<'a> {
    /// Which names match.
    pub fits: &'a dyn Fn(&str) -> bool,
    /// Only those of this module.
    pub module: Option<&'a str>,
    /// Only those that ftrace can trace.
    pub traceable_only: bool,
    /// Only names after this one.
    pub after: &'a str,
    /// Most functions, and the rest of those that have the name of the last.
    pub limit: usize,
}

/// Functions in the order of their names, and whether there may be more.
pub fn list(query: &FunctionQuery<'_>, facts: &KernelFacts) -> (Vec<v1::Function>, bool) {
    let mut found: Vec<v1::Function> = Vec::new();
    let of_module = |symbol: &Symbol<'_>| query.module.is_none() || symbol.module == query.module;
    let names = facts.symbols.by_name(query.after).filter(|symbol| symbol.name > query.after);
    for symbol in names.filter(is_function).filter(of_module).filter(|symbol| (query.fits)(symbol.name)) {
        if found.len() >= query.limit && found.last().is_none_or(|last| last.name != symbol.name) {
            return (found, true);
        }
        found.extend(Some(function(symbol, facts)).filter(|one| one.traceable || !query.traceable_only));
    }
    (found, false)
}

/// Prefix of the padding in front of a function, which is never meant
/// (arch/x86/include/asm/linkage.h, since 6.2).
const PADDING_PREFIX: &str = "__pfx_";

/// The module of BPF programs in kallsyms, which cannot be used in a definition.
const BPF: &str = "bpf";

fn is_function(symbol: &Symbol<'_>) -> bool {
    symbol.is_code() && symbol.module != Some(BPF) && !symbol.name.starts_with(PADDING_PREFIX)
}

/// Code of that name, each address once.
fn code_named<'a>(name: &'a str, module: Option<&'a str>, facts: &'a KernelFacts) -> Vec<Symbol<'a>> {
    let mut named: Vec<_> = facts.symbols.named(name, module).filter(Symbol::is_code).collect();
    named.dedup_by_key(|symbol| symbol.address);
    named
}

fn function(symbol: Symbol<'_>, facts: &KernelFacts) -> v1::Function {
    let size_bytes = facts.symbols.locate(symbol.address).map_or(0, |located| located.size);
    let named = code_named(symbol.name, None, facts);
    v1::Function {
        name: symbol.name.to_owned(),
        module: symbol.module.unwrap_or_default().to_owned(),
        size_bytes,
        traceable: rules::is_traced(symbol.name, symbol.address, size_bytes, facts),
        blacklisted: rules::is_listed(symbol.name, symbol.address, facts),
        same_name: u32::try_from(named.len()).unwrap_or(u32::MAX),
        place: place(symbol, &named, facts).unwrap_or_default(),
    }
}

/// How many functions of a module, or of the kernel itself, have a name.
pub(super) fn count(name: &str, module: Option<&str>, facts: &KernelFacts) -> usize {
    code_named(name, None, facts).iter().filter(|symbol| symbol.module == module).count()
}

/// The unambiguous place of a function, if others of the kernel or of its module have its name.
pub(super) fn among(symbol: Symbol<'_>, facts: &KernelFacts) -> Option<String> {
    if count(symbol.name, symbol.module, facts) <= 1 {
        return None;
    }
    place(symbol, &code_named(symbol.name, None, facts), facts)
}

/// The unambiguous place of one of several functions of a name: a function of a module by its
/// module, the kernel's own by its distance from the beginning of the text, which is valid until
/// the next kernel.
fn place(symbol: Symbol<'_>, named: &[Symbol<'_>], facts: &KernelFacts) -> Option<String> {
    let alone = named.iter().filter(|other| other.module == symbol.module).count() <= 1;
    match symbol.module {
        Some(module) => alone.then(|| format!("{module}:{}", symbol.name)),
        None if named.len() <= 1 => Some(symbol.name.to_owned()),
        None => {
            let distance = symbol.address.checked_sub(facts.core_text.start)?;
            Some(format!("_stext+{distance}"))
        }
    }
}
