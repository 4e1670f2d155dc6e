//! Check whether the daemon can adopt an event that it did not define.
//!
//! Owns the obstacles. The daemon records an adopted event as it is, and defines it anew if it is
//! lost or the host was booted: so it must be one that the daemon would define itself. Never writes
//! anything.

use std::sync::Arc;

use super::create::refuse;
use kprobed_host::kernel::RecentFacts;
use kprobed_lang::definition::{BaseType, Code, Place, guard};
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::{CheckOutcome, Checker, DefinitionText};

/// Why an event cannot be adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// For programs: in upper snake case.
    pub code: &'static str,
    /// For people: a sentence without its full stop.
    pub message: String,
}

impl Obstacle {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Whether a line has arguments that only this daemon adds.
pub(super) fn has_guards(listing: &str) -> bool {
    listing.split(' ').any(|word| word.starts_with(guard::PREFIX))
}

/// A line of the kernel as its writer may have written it: without the arguments that this daemon
/// adds. Values contain no blanks: the kernel cuts a definition at each of them.
fn without_guards(listing: &str) -> String {
    let words: Vec<_> = listing.split(' ').filter(|word| !word.starts_with(guard::PREFIX)).collect();
    words.join(" ")
}

/// Judges an event by its lines. Returns the outcome of the check of its definition.
pub(super) fn judge(
    checker: &Checker,
    facts: &mut RecentFacts<'_>,
    (group, event): (&str, &str),
    lines: &[String],
) -> Result<CheckOutcome, Obstacle> {
    ProbeName::new(group, event).map_err(|error| Obstacle::new("NAME", error.to_string()))?;
    let [listing] = lines else {
        let message =
            format!("it has {} probe points under one name, and a probe of kprobed has one", lines.len());
        return Err(Obstacle::new("SEVERAL_PLACES", message));
    };
    let text = Arc::new(DefinitionText::new(without_guards(listing)));
    let written = checker.probe(&text).map_err(|error| {
        Obstacle::new("UNREADABLE", format!("its definition is in words that kprobed does not know: {error}"))
    })?;
    if let Place::Address { .. } = written.place {
        // The kernel hashes it (kernel/trace/trace_kprobe.c: trace_kprobe_show prints it with %p).
        let message =
            "it is placed by its address, and the kernel does not say which: kprobed cannot define it again";
        return Err(Obstacle::new("ADDRESS", message));
    }
    if written.args.iter().any(|argument| argument.base_type() == BaseType::SymbolString) {
        let message = "it has an argument of type `symstr`, which kprobed defines in another way";
        return Err(Obstacle::new("SYMBOL_NAMES", message));
    }
    let outcome =
        checker.check_text(&text, facts).map_err(|error| Obstacle::new("UNREADABLE", error.to_string()))?;
    if let Some(module) = &outcome.report.absent_module {
        let message = format!(
            "its module `{module}` is not loaded, so that nothing proves its address: load the module first"
        );
        return Err(Obstacle::new(Code::ModuleAbsent.name(), message));
    }
    refuse(text.as_str(), &outcome, None)
        .map_err(|error| Obstacle::new("REFUSED", format!("kprobed would not define it again: {error}")))?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kprobed_host::kernel::{FactsCache, KernelPaths};
    use kprobed_lang::definition::Features;

    /// The code of the obstacle to these lines, on a kernel of which nothing is known.
    fn obstacle(lines: &[&str]) -> &'static str {
        let nowhere = || "/nonexistent".into();
        let paths =
            KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
        let facts = Arc::new(FactsCache::new(paths));
        let checker = Checker::new(Features::from_readme("char, string, symstr, ustring"), facts);
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        judge(&checker, &mut checker.recent_facts(), ("g", "e"), &lines).unwrap_err().code
    }

    #[test]
    fn what_kprobed_could_not_define_itself_is_not_adopted() {
        assert_eq!(obstacle(&["p:g/e f", "p:g/e h"]), "SEVERAL_PLACES");
        assert_eq!(obstacle(&["p:g/e f a=%nosuch"]), "UNREADABLE");
        assert_eq!(obstacle(&["-:g/e"]), "UNREADABLE");
        assert_eq!(obstacle(&["p:g/e 0x00000000a1b2c3d4 a=%di:x64"]), "ADDRESS");
        assert_eq!(obstacle(&["p:g/e f a=%di:symstr"]), "SYMBOL_NAMES");
        // The only question left is one to the kernel, of which nothing is known here.
        assert_eq!(obstacle(&["p:g/e f a=%di:u64 __kpd_end=$comm:string"]), "UNREADABLE");
    }

    #[test]
    fn a_line_of_ours_is_read_without_what_we_added() {
        let line = "p:g/e f a=+0(%di):u64 __kpd_g0=-2147483647(+0(%di)):ustring __kpd_end=$comm:string";
        assert!(has_guards(line) && !has_guards("p:g/e f a__kpd_=%di"));
        assert_eq!(without_guards(line), "p:g/e f a=+0(%di):u64");
    }

    proptest! {
        /// Whatever is listed, nothing panics, and there is an obstacle: nothing is known of this
        /// kernel.
        #[test]
        fn any_line_is_judged(lines in prop::collection::vec("[pr-][0-9]{0,2}:g/e [ -~]{0,40}", 0..3)) {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            prop_assert!(!obstacle(&lines).is_empty());
        }
    }
}
