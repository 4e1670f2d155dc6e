//! Spelling suggestions: names that a mistyped or outdated one may mean.
//!
//! Owns renamed functions, names that the compiler has changed, system calls and similar names. Never
//! suggests a function that cannot be probed, or a name of several.

use super::rules;
use super::typed::system_call;
use kprobed_host::kernel::{KernelFacts, Symbol, nearest_name};

/// Functions that were renamed and are still widely known by their old names.
const RENAMED: [(&str, &str); 3] =
    [("_do_fork", "kernel_clone"), ("do_fork", "kernel_clone"), ("do_sys_open", "do_sys_openat2")];

/// The advice if no name is similar.
const ELSEWHERE: &str = "a function of a module that is not loaded is named `MODULE:FUNCTION`; a static function may have been inlined";

/// Most names that a hint lists.
const LISTED_MAX: usize = 4;

/// The hint for a symbol that does not exist, in a module or anywhere.
pub fn suggestion(name: &str, module: Option<&str>, facts: &KernelFacts) -> String {
    known_otherwise(name, module, facts).unwrap_or_else(|| similar_place(name, module, facts))
}

/// The hint for a name by which a function was or is known: it is not in that module, was renamed, is a system call,
/// or the compiler has made another one of it.
pub(super) fn known_otherwise(name: &str, module: Option<&str>, facts: &KernelFacts) -> Option<String> {
    let outside = module.and_then(|_| place(name, None, facts));
    let outside = outside.map(|outside| format!("did you mean `{outside}`?"));
    let today = renamed(name, facts).and_then(|candidate| place(candidate, module, facts));
    let today = today.map(|today| format!("its current name is `{today}`"));
    let call = || system_call(name, facts).filter(|_| module.is_none());
    outside.or(today).or_else(call).or_else(|| changed_by_compiler(name, module, facts))
}

/// The hint for a mistyped name.
pub(super) fn similar_place(name: &str, module: Option<&str>, facts: &KernelFacts) -> String {
    let here = |candidate: &str| place(candidate, module, facts);
    let event = module.is_none().then(|| similar_event(name, facts)).flatten();
    match (facts.symbols.similar_code_names(name).into_iter().find_map(here), event) {
        (Some(function), Some(event)) => format!("did you mean `{function}`, or the event `{event}`?"),
        (Some(meant), None) | (None, Some(meant)) => format!("did you mean `{meant}`?"),
        (None, None) if name.contains(['*', '?']) => format!(
            "a line of the kernel has no patterns: without the letter before it, `{name}` is every function that it \
             matches, and `{name}%return` their returns"
        ),
        (None, None) => match module.filter(|module| facts.symbols.has_module(module)) {
            Some(module) => format!("`kprobectl functions --module {module}` lists its functions"),
            None => ELSEWHERE.to_owned(),
        },
    }
}

/// The hint for a function in a module that is not loaded. Absent unless the kernel itself has the function.
pub(crate) fn built_in(name: &str, module: &str, facts: &KernelFacts) -> Option<String> {
    let mut named = facts.symbols.named(name, None);
    let is_built_in = named.any(|named| named.module.is_none() && named.is_code());
    is_built_in.then(|| format!("`{name}` is in the kernel itself: leave `{module}:` out"))
}

/// The event of the host whose name a mistyped one may mean.
fn similar_event(name: &str, facts: &KernelFacts) -> Option<String> {
    let events = facts.recent_host_events();
    let own_name = |event: &str| event.rsplit('/').next().unwrap_or_default().to_owned();
    let names: Vec<_> = events.iter().map(|event| own_name(event)).collect();
    let nearest = nearest_name(name, names.iter().map(String::as_str))?;
    events.iter().zip(&names).find(|(_, own)| own.as_str() == nearest).map(|(event, _)| event.clone())
}

/// The event of the host whose `GROUP/EVENT` a mistyped one may mean. No event that a program has defined is among
/// them: who may not see a probe is not told of its name.
pub(crate) fn similar_full_event(group: &str, event: &str, facts: &KernelFacts) -> Option<String> {
    let events = facts.recent_host_events();
    nearest_name(&format!("{group}/{event}"), events.iter().map(String::as_str)).map(str::to_owned)
}

/// Names that a mistyped one may mean, the likeliest first.
pub fn similar<'a>(name: &str, facts: &'a KernelFacts) -> Vec<&'a str> {
    renamed(name, facts).into_iter().chain(facts.symbols.similar_code_names(name)).collect()
}

/// The present name of a function that was renamed.
fn renamed(name: &str, facts: &KernelFacts) -> Option<&'static str> {
    let exists = |candidate: &str| facts.symbols.named(candidate, None).next().is_some();
    RENAMED.iter().find(|(old, today)| *old == name && exists(today)).map(|(_, today)| *today)
}

/// How to write the only function of a name as a place, if a probe in it can work.
fn place(name: &str, module: Option<&str>, facts: &KernelFacts) -> Option<String> {
    let mut named = facts.symbols.named(name, module).filter(Symbol::is_code);
    let symbol = named.next().filter(|_| named.next().is_none())?;
    let works = is_probeable(symbol, facts);
    // Some kernels find what a module has only by its name.
    let module = module.or(symbol.module.filter(|_| !facts.behaviour.counts_module_symbols));
    works.then(|| module.map_or_else(|| name.to_owned(), |module| format!("{module}:{name}")))
}

fn is_probeable(symbol: Symbol<'_>, facts: &KernelFacts) -> bool {
    let size = facts.symbols.locate(symbol.address).map_or(0, |located| located.size);
    rules::is_traced(symbol.name, symbol.address, size, facts)
        && !rules::is_listed(symbol.name, symbol.address, facts)
}

/// The hint for the name of a system call.
fn system_call(name: &str, facts: &KernelFacts) -> Option<String> {
    let (function, call) = system_call::named(name, facts)?;
    let place = place(&function, None, facts)?;
    // The kernel describes its event there.
    let description = format!("event_enter__{call}");
    let event = match facts.symbols.named(&description, None).next() {
        Some(_) => format!(", or record the event `syscalls/sys_enter_{call}`"),
        None => String::new(),
    };
    Some(format!("it is a system call: write `{place}`{event}"))
}

/// The hint for a name of which the kernel has only what the compiler has made of it: with a suffix
/// for other arguments (`.isra`, `.constprop`, `.llvm`), or for a part (`.part`, `.cold`).
fn changed_by_compiler(name: &str, module: Option<&str>, facts: &KernelFacts) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let prefix = format!("{name}.");
    let names = facts.symbols.by_name(&prefix).map(|symbol| symbol.name);
    let mut names: Vec<&str> = names.take_while(|name| name.starts_with(&prefix)).collect();
    names.dedup();
    let is_part = |name: &&str| name[prefix.len()..].split('.').any(|word| matches!(word, "part" | "cold"));
    let (parts, whole): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_part);
    let listed = |names: Vec<&str>| {
        let places = names.into_iter().filter_map(|name| place(name, module, facts));
        let places: Vec<_> = places.take(LISTED_MAX).map(|place| format!("`{place}`")).collect();
        (!places.is_empty()).then(|| places.join(" or "))
    };
    if let Some(places) = listed(whole) {
        return Some(format!("the compiler has made {places} of it, whose arguments may have moved"));
    }
    let places = listed(parts)?;
    Some(format!("the compiler has put it into its callers, and kept a part of it as {places}"))
}
