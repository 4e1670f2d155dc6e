//! Differences between kernel releases in the checks of a kprobe.
//!
//! Owns the switches with which one set of rules fits every kernel, and detecting them from the
//! symbol table and the tracefs `README`. Never compares version numbers: distributions backport.

use super::SymbolTable;

/// Switches of the rules in `kprobed_verdict::validate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// A name that stands for several symbols is refused (6.7, and the stable trees). Without this
    /// the kernel takes the first.
    pub counts_symbols: bool,
    /// A name without a module means the symbols of modules as well: in kernels that count nothing, by
    /// kallsyms_lookup_name. Kernels that count did so first with kallsyms_on_each_symbol, which goes through modules
    /// until 5.12, and again since count_mod_symbols (6.7, and the stable trees).
    pub counts_module_symbols: bool,
    /// A name that the kernel itself has is never looked for in modules (7.2).
    pub kernel_symbol_wins: bool,
    /// The symbol is checked before everything else, and whatever is wrong with it is EINVAL
    /// (kernel/trace/trace_kprobe.c:validate_probe_symbol, 6.8). Before, it came after the place of
    /// return probes, and had errnos of its own.
    pub checks_symbol_first: bool,
    /// The instruction at the place must decode, and INT and UD instructions cannot be probed
    /// (arch/x86/kernel/kprobes/core.c:can_probe, is_exception_insn, 6.9). Before, can_probe only
    /// decoded up to the place, and INT3 was found when the instruction was copied, with another
    /// errno.
    pub traps_are_no_boundary: bool,
    /// A place inside of a call site is refused before all else about the place
    /// (kernel/kprobes.c:check_ftrace_location, to 5.17). Since 5.18 it is only the middle of an
    /// instruction, which the kernel finds last.
    pub checks_call_site_first: bool,
    /// The kernel evaluates calls, jumps and returns itself, and refuses those that it cannot evaluate
    /// (arch/x86/kernel/kprobes/core.c:prepare_emulation, 5.13). Before, it executed a copy of each and
    /// then mended the address at which it went on (resume_execution).
    pub emulates: bool,
    /// A probe at JLE or JG goes the wrong way: since 5.13 the kernel evaluates conditional jumps
    /// itself (arch/x86/kernel/kprobes/core.c:kprobe_emulate_jcc), these two wrongly until
    /// 8924779df820 (6.0, and the stable kernels 5.19.4 and 5.15.64).
    pub misjudges_jumps: bool,
    /// The trigger `stacktrace` of an event writes to the instance that it is in (5.17, and some stable kernels).
    /// Before, it wrote to the top-level buffer (kernel/trace/trace_events_trigger.c:stacktrace_trigger).
    pub has_stacks_in_instances: bool,
}

impl Behaviour {
    /// Detects the switches.
    ///
    /// The functions that count symbols are called through pointers, so that they are in the symbol
    /// table of every kernel that has them. `validate_probe_symbol` is not, and a compiler may have
    /// dissolved it; then the README of the release after it speaks. What `can_probe` does shows
    /// nowhere. It changed in the release that gave return probes the arguments of the entry (6.9),
    /// which the README says.
    pub(crate) fn detect(symbols: &SymbolTable, readme: &str) -> Self {
        let has = |name| symbols.lookup(name, None).is_some();
        let entry_args_in_return_probes = readme.contains("kernel return probes support");
        let checks_symbol_first = has("validate_probe_symbol") || entry_args_in_return_probes;
        let counts_symbols = has("count_symbols") || checks_symbol_first;
        // It is called through a pointer, and so it has a symbol.
        let emulates = has("kprobe_emulate_jcc");
        Self {
            counts_symbols,
            // 5.12 took modules out of kallsyms_on_each_symbol, and this section out of the kernel.
            counts_module_symbols: !counts_symbols
                || checks_symbol_first
                || ["count_mod_symbols", "__start___ksymtab_unused"].into_iter().any(has),
            kernel_symbol_wins: readme.contains("[(structname"),
            checks_symbol_first,
            traps_are_no_boundary: entry_args_in_return_probes,
            // One series of commits changed both. The README is that of the release after it, for a
            // kernel in which a compiler dissolved the function.
            checks_call_site_first: !has("arch_adjust_kprobe_addr")
                && !readme.contains("[<group>/][<event>]")
                && !entry_args_in_return_probes,
            emulates,
            // Its own release shows nowhere: return probes got these trampolines in 5.18.
            has_stacks_in_instances: has("rethook_trampoline_handler")
                || readme.contains("[<group>/][<event>]"),
            // The README of 6.0 has unnamed events of a group, and the stable series got `symstr` later
            // than the fix.
            misjudges_jumps: emulates
                && !["[<group>/][<event>]", "symstr"].iter().any(|later| readme.contains(later)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_source_is_enough() {
        let none = Behaviour::detect(&SymbolTable::default(), "");
        assert!(!none.counts_symbols && !none.checks_symbol_first && !none.traps_are_no_boundary);
        let symbols = SymbolTable::parse("ffffffff81000000 t validate_probe_symbol\n");
        let middle = Behaviour::detect(&symbols, "");
        assert!(middle.counts_symbols && middle.checks_symbol_first && !middle.traps_are_no_boundary);
        let new =
            Behaviour::detect(&SymbolTable::default(), "\t     kernel return probes support: $retval\n");
        assert!(new.checks_symbol_first && new.traps_are_no_boundary);
        let symbols = SymbolTable::parse("ffffffff81000000 t kprobe_emulate_jcc\n");
        let counts = |text: &str| {
            let found = Behaviour::detect(&SymbolTable::parse(text), "");
            (found.counts_symbols, found.counts_module_symbols)
        };
        let count = "ffffffff81000000 t count_symbols\n";
        let (unused, modules) =
            ("ffffffff82000000 R __start___ksymtab_unused\n", "ffffffff81000020 t count_mod_symbols\n");
        // 5.9, the stable trees of 5.10 and of 6.1 before they counted those of modules, and 6.1 since.
        assert_eq!(counts(""), (false, true));
        assert_eq!(counts(&[count, unused].concat()), (true, true));
        assert_eq!(counts(count), (true, false));
        assert_eq!(counts(&[count, modules].concat()), (true, true));
        let misjudges =
            |symbols: &SymbolTable, readme: &str| Behaviour::detect(symbols, readme).misjudges_jumps;
        let adjusts = SymbolTable::parse("ffffffff81000000 T arch_adjust_kprobe_addr\n");
        assert!(none.checks_call_site_first && !new.checks_call_site_first);
        assert!(!Behaviour::detect(&adjusts, "").checks_call_site_first);
        assert!(Behaviour::detect(&symbols, "").emulates && !none.emulates);
        assert!(misjudges(&symbols, "p[:[<group>/]<event>]") && !misjudges(&SymbolTable::default(), ""));
        assert!(!misjudges(&symbols, "p[:[<group>/][<event>]]") && !misjudges(&symbols, "symstr"));
    }
}
