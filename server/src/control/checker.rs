//! From the text of a definition to a verdict, without a write to the kernel.

use std::sync::Arc;

use super::ControlError;
use crate::definition::{Code, Definition, Diagnostic, Features, ProbeDefinition, guard, parse};
use crate::kernel::{FactsCache, KernelFacts};
use crate::validate::{self, Report, Surroundings};

/// Judges definitions. Shared by all callers: it changes nothing.
#[derive(Debug)]
pub struct Checker {
    features: Features,
    facts: Arc<FactsCache>,
}

/// What a check found out about a well-formed definition.
#[derive(Clone, Debug)]
pub struct CheckOutcome {
    /// The definition, with a name for every argument.
    pub definition: ProbeDefinition,
    /// The verdict.
    pub report: Report,
    /// A problem of the definition that only shows at this place, such as arguments in the middle of a function.
    pub misplaced: Option<Diagnostic>,
    facts: Arc<KernelFacts>,
}

impl CheckOutcome {
    /// The code around the place and the nearest places that work. Costs far more than the verdict.
    pub fn surroundings(&self) -> Surroundings {
        validate::surroundings(&self.definition, &self.report, &self.facts)
    }
}

/// The line for the kernel.
#[derive(Clone, Debug)]
pub(super) struct KernelLine {
    /// The line.
    pub(super) text: String,
    /// The event group.
    pub(super) group: String,
    /// The event.
    pub(super) event: String,
}

/// The group of probes without one: the kernel's own default (kernel/trace/trace_kprobe.c, `KPROBE_EVENT_SYSTEM`).
const DEFAULT_GROUP: &str = "kprobes";

impl Checker {
    /// A checker for the running kernel.
    pub fn new(features: Features, facts: Arc<FactsCache>) -> Self {
        Self { features, facts }
    }

    /// What the kernel's probe language knows.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Parses one line.
    ///
    /// # Errors
    /// [`ControlError::Definition`].
    pub fn parse(&self, text: &str) -> Result<Definition, ControlError> {
        parse(text, &self.features)
            .map_err(|diagnostics| ControlError::Definition { text: text.to_owned(), diagnostics })
    }

    /// Parses one line that has to define a probe.
    ///
    /// # Errors
    /// [`ControlError::Definition`], also for a line that deletes.
    pub fn parse_probe(&self, text: &str) -> Result<ProbeDefinition, ControlError> {
        match self.parse(text)? {
            Definition::Probe(definition) => Ok(definition.with_explicit_names()),
            Definition::Delete(delete) => {
                let diagnostic = Diagnostic::error(
                    Code::UnknownCommand,
                    delete.span,
                    "this line deletes and does not define",
                )
                .with_hint("delete with `kprobectl delete`, or apply the line as a whole");
                Err(ControlError::Definition { text: text.to_owned(), diagnostics: vec![diagnostic] })
            }
        }
    }

    /// Judges a definition.
    ///
    /// # Errors
    /// [`ControlError::Definition`] when the text is no definition, [`ControlError::Facts`] when the kernel hides too much.
    pub fn check(&self, text: &str) -> Result<CheckOutcome, ControlError> {
        let definition = self.parse_probe(text)?;
        let facts = self.facts.current()?;
        let report = validate::check(&definition, &facts);
        // The kernel looks at the place before it looks at the arguments; and whether the place is an entry only matters once it exists.
        let misplaced = definition
            .entry_requirement(&self.features)
            .filter(|_| report.refusal.is_none() && !report.is_entry);
        let misplaced = misplaced.filter(|_| {
            report.absent_module.is_none() || definition.kind == crate::definition::ProbeKind::Entry
        });
        Ok(CheckOutcome { definition, report, misplaced, facts })
    }

    /// The line for the kernel, with the hidden arguments that tell faults from values.
    pub(super) fn kernel_line(&self, definition: &ProbeDefinition, event: String) -> KernelLine {
        let group = definition.group.as_ref().map_or(DEFAULT_GROUP, |group| &group.text).to_owned();
        let text = guard::guarded(definition, &self.features).definition.render(&group, &event);
        KernelLine { text, group, event }
    }

    /// The line that a definition would become if nothing else existed, and the name that it would have.
    pub fn preview(&self, definition: &ProbeDefinition) -> (String, String) {
        let event = definition
            .event
            .as_ref()
            .map_or_else(|| definition.default_event_name(), |event| event.text.clone());
        let line = self.kernel_line(definition, event);
        let name = format!("{}/{}", line.group, line.event);
        (line.text, name)
    }
}
