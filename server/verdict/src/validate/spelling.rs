//! Spelling suggestions: names that a mistyped or outdated one may mean.
//!
//! Owns renamed functions and similar names. Never accepts a name that does not exist.

use kprobed_host::kernel::KernelFacts;

/// Functions that were renamed and are still widely known by their old names.
const RENAMED: [(&str, &str); 4] = [
    ("_do_fork", "kernel_clone"),
    ("do_fork", "kernel_clone"),
    ("do_sys_open", "do_sys_openat2"),
    ("sys_open", "__x64_sys_open"),
];

/// The advice if no name is similar.
const ELSEWHERE: &str = "a function of a module that is not loaded is named `MODULE:FUNCTION`; a static function may have been inlined";

/// The hint for a symbol that does not exist.
pub fn suggestion(name: &str, facts: &KernelFacts) -> String {
    if let Some(today) = renamed(name, facts) {
        return format!("its current name is `{today}`");
    }
    match facts.symbols.similar_code_names(name).first() {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => ELSEWHERE.to_owned(),
    }
}

/// Names that a mistyped one may mean, the likeliest first.
pub(super) fn similar<'a>(name: &str, facts: &'a KernelFacts) -> Vec<&'a str> {
    renamed(name, facts).into_iter().chain(facts.symbols.similar_code_names(name)).collect()
}

/// The present name of a function that was renamed.
fn renamed(name: &str, facts: &KernelFacts) -> Option<&'static str> {
    let exists = |candidate: &str| facts.symbols.named(candidate, None).next().is_some();
    RENAMED.iter().find(|(old, today)| *old == name && exists(today)).map(|(_, today)| *today)
}
