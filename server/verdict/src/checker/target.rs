//! Target of a probe: the function that its place lies in, by all of its names.
//!
//! Owns which names a rule about functions is compared with. Never decides about a probe.

use kprobed_lang::definition::Place;

use super::CheckOutcome;

/// The module name of the kernel itself, as `kallsyms` of other tools and the build call it.
const VMLINUX: &str = "vmlinux";

/// The function that a probe lies in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Every name of it: its symbol and its aliases. A place such as `first+0x400` can lie in a
    /// function that it does not name. Empty if nothing is known.
    pub functions: Vec<String>,
    /// Its module; `vmlinux` for the kernel itself. Absent if nothing is known.
    pub module: Option<String>,
    /// Whether these are all of its names. They are not while its module is not loaded: the function can have
    /// aliases, and a place after its beginning can lie in another one.
    pub whole: bool,
}

impl CheckOutcome {
    /// The function of the probe on the running kernel. If its module is not loaded, the function as
    /// it is written; none for a place after its beginning, which may lie in another one.
    pub fn target(&self) -> Target {
        let Some(code) = &self.report.code_range else { return self.written_target() };
        let symbols = self.facts.symbols.code_in(code.start..code.start.saturating_add(1));
        let (functions, modules): (Vec<_>, Vec<_>) =
            symbols.map(|symbol| (symbol.name.to_owned(), symbol.module.map(str::to_owned))).unzip();
        let module = modules.into_iter().next().map(|module| module.unwrap_or_else(|| VMLINUX.to_owned()));
        Target { functions, module, whole: true }
    }

    fn written_target(&self) -> Target {
        match &self.definition.place {
            Place::Symbol { module, symbol, offset, .. } => Target {
                functions: if *offset == 0 { vec![symbol.clone()] } else { Vec::new() },
                module: module.clone(),
                whole: false,
            },
            Place::Address { .. } => Target::default(),
            // It lies in no function.
            Place::Event { .. } => Target { whole: true, ..Target::default() },
        }
    }
}
