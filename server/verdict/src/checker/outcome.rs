//! Outcome of a check: the findings, and the problem that the kernel finds first.
//!
//! Owns how the findings of parser, types, rules and names are ordered, and which names of the function a rule
//! about functions is compared with. Never computes a finding itself.

use std::collections::HashMap;
use std::sync::Arc;

use kprobed_filter::Notation;
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Code, Diagnostic, Dialect, Place, ProbeDefinition, RefusedBy, Step};
use kprobed_lang::model::ProbeName;
use kprobed_proto::v1;

use super::{DefinitionText, Taken};
use crate::meaning::{self, Meaning, Subject};
use crate::validate::{self, Arming, BootDependence, Nearest, Report, typed};

/// The findings of a check of a well-formed definition.
#[derive(Clone, Debug)]
pub struct CheckOutcome {
    /// The definition, with a name for every argument, and with offsets instead of names of members
    /// if these are known.
    pub definition: ProbeDefinition,
    /// The definition as it was written.
    pub(super) written: ProbeDefinition,
    /// The meaning of its names.
    pub(super) notes: Vec<typed::Note>,
    /// The dialect in which it was written.
    pub dialect: Dialect,
    /// The text to store: as it was written, with its dialect if another kernel could read it in
    /// another one.
    pub text: Arc<DefinitionText>,
    /// The verdict.
    pub report: Report,
    /// A problem of the definition that only shows at this place, such as arguments in the middle
    /// of a function, or a parameter that the function does not have.
    pub misplaced: Option<Diagnostic>,
    /// The problems of the text after the place. If there are any, the definition is that of the
    /// place alone, and the report says why the kernel would not even parse further.
    pub unread: Vec<Diagnostic>,
    pub(super) facts: Arc<KernelFacts>,
}

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

/// The reason for which a definition is refused: one of several kinds.
#[derive(Clone, Copy, Debug)]
pub enum Against<'a> {
    /// Its place.
    Place(&'a Diagnostic),
    /// Another part of its text.
    Text(&'a Diagnostic),
    /// Its name.
    Name(&'a Taken),
}

impl Against<'_> {
    /// The step at which the kernel finds it.
    fn step(&self) -> Step {
        match self {
            Self::Place(refusal) => refusal.step,
            Self::Text(finding) => finding.step,
            Self::Name(taken) if taken.problem.by == RefusedBy::Kernel => Step::Name,
            Self::Name(_) => Step::OwnName,
        }
    }
}

impl CheckOutcome {
    /// As that of the probe `name`: see [`super::named`].
    ///
    /// # Errors
    /// The name of another probe, if the definition is of that.
    pub fn named(self, name: &ProbeName) -> Result<Self, String> {
        Ok(Self { definition: super::named(self.definition, self.dialect, name)?, ..self })
    }

    /// Why the definition is refused, if it is: the problem that the kernel finds first, or else
    /// one by this daemon's own rules. `taken` is the result of [`super::Checker::taken`].
    pub fn against<'a>(&'a self, taken: Option<&'a Taken>) -> Option<Against<'a>> {
        let place = |refusal: &'a Option<Diagnostic>| refusal.as_ref().map(Against::Place);
        let text = self.misplaced.as_ref().map(Against::Text);
        let found =
            [place(&self.report.refusal), text, taken.map(Against::Name), place(&self.report.objection)];
        found.into_iter().flatten().min_by_key(Against::step)
    }

    /// Whether the kernel and this daemon accept it, whatever its name.
    pub fn is_taken(&self) -> bool {
        self.against(None).is_none()
    }

    /// What the writer should know of a place in a module that is not loaded: the kernel accepts any, and
    /// nothing proves it.
    pub fn waiting(&self) -> Option<Diagnostic> {
        let module = self.report.absent_module.as_deref()?;
        let Place::Symbol { symbol, span, .. } = &self.definition.place else { return None };
        let warning = |message| Diagnostic::warning(Code::ModuleAbsent, *span, message);
        if self.waits_in_vain() {
            let message = format!(
                "module `{module}` is not loaded, and `{symbol}` is in the kernel itself: the probe waits for a module \
                 that may be a part of this kernel"
            );
            return Some(warning(message).with_hint(format!("write `{symbol}` without the module")));
        }
        let message = format!(
            "module `{module}` is not loaded: the address is checked, and the probe defined, when the module is loaded"
        );
        let hint = format!("`modinfo {module}` shows whether there is such a module");
        Some(warning(message).with_hint(hint))
    }

    /// Whether the function of a place in a module that is not loaded is in the kernel itself.
    pub(super) fn waits_in_vain(&self) -> bool {
        let Place::Symbol { symbol, .. } = &self.definition.place else { return false };
        let mut named = self.facts.symbols.named(symbol, None);
        self.report.absent_module.is_some() && named.any(|named| named.module.is_none() && named.is_code())
    }

    /// The nearest places that work. Costs a few times the verdict.
    pub fn nearest(&self) -> Nearest {
        validate::nearest(&self.definition, &self.report, &self.facts)
    }

    /// How the probe would be armed in the end, with jumps that the kernel is expected to make of
    /// breakpoints. Costs more than the verdict.
    pub fn predicted_arming(&self) -> Option<Arming> {
        validate::predicted_arming(&self.definition, &self.report, &self.facts)
    }

    /// How the verdict on the place depends on what boot makes of its code. Always none for a
    /// running kernel. Costs more than the verdict.
    pub fn boot_dependence(&self) -> Option<BootDependence> {
        validate::boot_dependence(&self.definition, &self.report, &self.facts)
    }

    /// Its meaning on this kernel.
    pub fn meaning(&self) -> Meaning {
        meaning::capture(&self.subject())
    }

    /// How people write the numbers that it records, by the name of the field.
    pub fn notations(&self) -> HashMap<String, Notation> {
        meaning::notations(&self.subject())
    }

    /// The definition that records on this kernel what `before` says the original did: see
    /// [`meaning::port`].
    pub fn ported(&self, before: &Meaning) -> Option<ProbeDefinition> {
        meaning::port(before, &self.subject())
    }

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

    fn subject(&self) -> Subject<'_> {
        Subject {
            written: &self.written,
            resolved: &self.definition,
            notes: &self.notes,
            report: &self.report,
            facts: &self.facts,
        }
    }

    /// The code around the place and the nearest places that work. Costs far more than the verdict.
    pub fn surroundings(&self) -> (Vec<v1::Instruction>, Nearest) {
        validate::surroundings(&self.definition, &self.report, &self.facts)
    }
}
