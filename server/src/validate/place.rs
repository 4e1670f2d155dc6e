//! From the text of a place to an address: the symbol must exist, once, and hold the offset.

use super::report::{Refusal, Rule};
use super::target::Target;
use crate::definition::{Place, ProbeDefinition};
use crate::kernel::{KernelFacts, Symbol};

/// Functions are at most this large here; reading more of what kallsyms takes for one (a hole between sections) makes no sense.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// What a place stands for.
pub(super) enum Resolved {
    /// Code.
    Target(Target),
    /// A function of a module that is not loaded.
    AbsentModule {
        /// The module.
        module: String,
    },
}

/// Resolves the place of a definition.
pub(super) fn resolve(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<Resolved, Refusal> {
    let span = definition.place.span();
    let refuse = |rule, message, hint: String| Refusal { rule, message, hint, span };
    let (address, symbol_start) = match &definition.place {
        Place::Symbol { module, symbol, offset, .. } => {
            if let Some(module) = module.as_ref().filter(|module| !facts.symbols.has_module(module)) {
                return Ok(Resolved::AbsentModule { module: module.clone() });
            }
            let found = unique_symbol(symbol, module.as_deref(), facts)
                .map_err(|(rule, message, hint)| refuse(rule, message, hint))?;
            (found.address.wrapping_add(u64::from(*offset)), Some((found, u64::from(*offset))))
        }
        Place::Address { address, .. } => (*address, None),
    };
    if let Some((symbol, offset)) = symbol_start {
        let size = facts.symbols.size_at(symbol.address);
        if offset >= size {
            let message = format!("`{}` is {size} bytes long: offset {offset} is not in it", symbol.name);
            let hint = "the kernel would probe whatever function comes next; name that one".to_owned();
            return Err(refuse(Rule::OutsideFunction, message, hint));
        }
    }
    let located = facts
        .symbols
        .locate(address)
        .filter(|located| located.symbol.is_code() && located.offset < MAX_FUNCTION_BYTES);
    let Some(located) = located else {
        let message = format!("{address:#x} is in no function");
        let hint = "the kernel would accept this and never fire".to_owned();
        return Err(refuse(Rule::NoFunction, message, hint));
    };
    let length = usize::try_from(located.size.min(MAX_FUNCTION_BYTES)).unwrap_or_default();
    let start = located.symbol.address;
    let code = facts
        .text
        .read(start, length)
        .map_err(|error| refuse(Rule::UnreadableCode, error.to_string(), String::new()))?;
    // The name as written, where there is one: an alias is as good as the first symbol of the address.
    let name = symbol_start.map_or(located.symbol.name, |(symbol, _)| symbol.name);
    Ok(Resolved::Target(Target::new(name, located.symbol.module, start, located.offset, code)))
}

/// The kernel refuses names that stand for several symbols (kernel/trace/trace_kprobe.c:validate_probe_symbol, since 6.7 and in
/// the stable trees), since it would take any one of them.
fn unique_symbol<'a>(
    name: &'a str,
    module: Option<&'a str>,
    facts: &'a KernelFacts,
) -> Result<Symbol<'a>, (Rule, String, String)> {
    let mut found = facts.symbols.named(name, module);
    let Some(symbol) = found.next() else {
        let message = format!("the kernel has no symbol `{name}`");
        return Err((Rule::UnknownSymbol, message, suggestion(name, facts)));
    };
    let others = found.count();
    if others > 0 {
        let message = format!("`{name}` is the name of {} functions", others + 1);
        let hint = "name the module (`MODULE:FUNCTION`), or give the place as `_stext+OFFSET`".to_owned();
        return Err((Rule::AmbiguousSymbol, message, hint));
    }
    Ok(symbol)
}

/// Names of functions that were renamed and that everybody still has in mind.
const RENAMED: [(&str, &str); 4] = [
    ("_do_fork", "kernel_clone"),
    ("do_fork", "kernel_clone"),
    ("do_sys_open", "do_sys_openat2"),
    ("sys_open", "__x64_sys_open"),
];

fn suggestion(name: &str, facts: &KernelFacts) -> String {
    let exists = |candidate: &str| facts.symbols.named(candidate, None).next().is_some();
    if let Some((_, today)) = RENAMED.iter().find(|(old, today)| *old == name && exists(today)) {
        return format!("it is called `{today}` today");
    }
    let best = facts
        .symbols
        .code_names()
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= MAX_DISTANCE)
        .filter_map(|candidate| Some((distance(name, candidate)?, candidate)))
        .min();
    best.map_or_else(
        || "a function of a module that is not loaded is named `MODULE:FUNCTION`; static functions may have been inlined".to_owned(),
        |(_, candidate)| format!("did you mean `{candidate}`?"),
    )
}

/// Names further apart than this are not a slip of the finger.
const MAX_DISTANCE: usize = 2;

/// Edits between two names (insertions, deletions, replacements), if there are at most [`MAX_DISTANCE`].
fn distance(a: &str, b: &str) -> Option<usize> {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, cb) in row.iter_mut().skip(1).zip(b.bytes()) {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        if row.iter().all(|edits| *edits > MAX_DISTANCE) {
            return None;
        }
    }
    row.last().copied().filter(|edits| *edits <= MAX_DISTANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_edits() {
        for (a, b, expected) in [
            ("vfs_read", "vfs_read", Some(0)),
            ("vfs_raed", "vfs_read", Some(2)),
            ("vfs_rea", "vfs_read", Some(1)),
            ("kitten", "sitting", None),
            ("", "ab", Some(2)),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
