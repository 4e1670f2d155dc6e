//! Jump optimisation of kprobes: whether the kernel replaces breakpoints by jumps, and where it
//! does not (arch/x86/kernel/kprobes/opt.c:can_optimize).
//!
//! Owns the switch (`debug.kprobes-optimization`), the entry code, and whether functions with
//! indirect jumps are left out. Never decides about a place.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{SymbolTable, read_text};

/// Facts that decide about the optimisation of all probes
/// (arch/x86/kernel/kprobes/opt.c:can_optimize).
#[derive(Debug)]
pub struct Optimisation {
    /// Whether the kernel has it at all (CONFIG_OPTPROBES), whatever the switch says.
    pub is_built: bool,
    /// A file with 0 or 1, which only a kernel that has optimisation has. Absent for a kernel that was not booted:
    /// it is on after boot if the kernel has optimisation.
    switch: Option<PathBuf>,
    /// Code that runs on an unfinished stack.
    pub entry_text: Range<u64>,
    /// Whether an indirect jump in a function leaves the whole function out: it may be a jump
    /// table, which kernels with retpolines or IBT do not have. Before 6.6 (and the stable trees)
    /// they did not rely on that.
    pub indirect_jumps_matter: bool,
    /// Targets that make a jump count as indirect: the thunks of kernels with retpolines, before
    /// 6.6. Empty since then.
    pub thunks: Range<u64>,
}

impl Optimisation {
    /// Reads the facts of the running kernel.
    pub fn new(procfs: &Path, symbols: &SymbolTable) -> Self {
        let file = procfs.join("sys/debug/kprobes-optimization");
        let has_file = file.exists();
        let optimisation = Self::with_switch(Some(file), symbols);
        Self { is_built: optimisation.is_built || has_file, ..optimisation }
    }

    /// Of a kernel that was not booted: it optimises if it can, unless its command line forbids
    /// that (kernel/kprobes.c:init_kprobes).
    pub fn predicted(symbols: &SymbolTable) -> Self {
        Self::with_switch(None, symbols)
    }

    fn with_switch(switch: Option<PathBuf>, symbols: &SymbolTable) -> Self {
        let has_one = |names: [&str; 2]| names.into_iter().any(|name| symbols.address(name).is_some());
        let thunks = symbols.between("__indirect_thunk_start", "__indirect_thunk_end");
        // Symbols that only kernels with retpolines, and with IBT, have.
        let no_jump_tables = has_one(["__x86_indirect_thunk_rax", "ibt_save"]);
        Self {
            is_built: has_one(["optprobe_template_entry", "arch_optimize_kprobes"]),
            switch,
            entry_text: symbols.between("__entry_text_start", "__entry_text_end").unwrap_or_default(),
            indirect_jumps_matter: thunks.is_some() || !no_jump_tables,
            thunks: thunks.unwrap_or_default(),
        }
    }

    /// Whether the kernel optimises now (kernel/kprobes.c:kprobes_allow_optimization).
    pub fn enabled(&self) -> bool {
        match &self.switch {
            Some(file) => read_text(file).is_ok_and(|text| text.trim() == "1"),
            None => self.is_built,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_jumps_matter_where_there_may_be_jump_tables() {
        let of = |symbols: &str| Optimisation::new(Path::new("/nonexistent"), &SymbolTable::parse(symbols));
        assert!(of("").indirect_jumps_matter && !of("").enabled());
        assert!(!of("ffffffff81000000 T __x86_indirect_thunk_rax\n").indirect_jumps_matter);
        let before = of("\
ffffffff81000000 T __indirect_thunk_start
ffffffff81000000 T __x86_indirect_thunk_rax
ffffffff81000400 T __indirect_thunk_end
");
        assert!(before.indirect_jumps_matter);
        assert_eq!(before.thunks, 0xffff_ffff_8100_0000..0xffff_ffff_8100_0400);
    }

    #[test]
    fn a_kernel_that_can_is_expected_to() {
        let of = |symbols: &str| Optimisation::predicted(&SymbolTable::parse(symbols)).enabled();
        assert!(of("ffffffff81000000 D optprobe_template_entry\n") && !of(""));
        assert!(
            of("ffffffff81000000 T arch_optimize_kprobes\n"),
            "the template is data, which may not be listed"
        );
    }

    #[test]
    fn the_switch_is_read_each_time() {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("sys/debug");
        std::fs::create_dir_all(&switch).unwrap();
        let optimisation = Optimisation::new(directory.path(), &SymbolTable::default());
        for (text, enabled) in [("1\n", true), ("0\n", false)] {
            std::fs::write(switch.join("kprobes-optimization"), text).unwrap();
            assert_eq!(optimisation.enabled(), enabled);
        }
        assert!(!optimisation.is_built, "there was no file when it was looked for");
        assert!(Optimisation::new(directory.path(), &SymbolTable::default()).is_built, "it can be on again");
    }
}
