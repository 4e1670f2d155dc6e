//! What a check found out, and the first objection in the kernel's order.

use std::sync::Arc;

use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{Diagnostic, Dialect, ProbeDefinition, RefusedBy, Step};

use super::{DefinitionText, Taken};
use crate::meaning::{self, Meaning, Subject};
use crate::validate::{self, Arming, BootDependence, Nearest, Refusal, Report, Surroundings, typed};

/// What a check found out about a well-formed definition.
#[derive(Clone, Debug)]
pub struct CheckOutcome {
    /// The definition, with a name for every argument, and with offsets instead of names of members
    /// where these are known.
    pub definition: ProbeDefinition,
    /// The same as it was written.
    pub(super) written: ProbeDefinition,
    /// What its names stand for.
    pub(super) notes: Vec<typed::Note>,
    /// The dialect that it was written in.
    pub dialect: Dialect,
    /// The text to keep: as it was written, with its dialect where another kernel could read
    /// another one.
    pub text: Arc<DefinitionText>,
    /// The verdict.
    pub report: Report,
    /// A problem of the definition that only shows at this place, such as arguments in the middle
    /// of a function, or a parameter that the function does not have.
    pub misplaced: Option<Diagnostic>,
    /// What is wrong with the text behind the place. Then the definition is that of the place
    /// alone, and the report says why the kernel would not even read on.
    pub unread: Vec<Diagnostic>,
    pub(super) facts: Arc<KernelFacts>,
}

/// What there is against a definition: one of several kinds.
#[derive(Clone, Copy, Debug)]
pub enum Against<'a> {
    /// Its place.
    Place(&'a Refusal),
    /// Something else in its text.
    Text(&'a Diagnostic),
    /// Its name.
    Name(&'a Taken),
}

impl Against<'_> {
    /// Where the kernel comes to it.
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
    /// Why the definition is refused, if it is: the first that the kernel finds, or else what only
    /// this daemon minds. `taken` is what [`Checker::taken`] says of it.
    pub fn against<'a>(&'a self, taken: Option<&'a Taken>) -> Option<Against<'a>> {
        let place = |refusal: &'a Option<Refusal>| refusal.as_ref().map(Against::Place);
        let text = self.misplaced.as_ref().map(Against::Text);
        let found =
            [place(&self.report.refusal), text, taken.map(Against::Name), place(&self.report.objection)];
        found.into_iter().flatten().min_by_key(Against::step)
    }

    /// Whether the kernel takes it and this daemon does not mind it, whatever its name.
    pub fn is_taken(&self) -> bool {
        self.against(None).is_none()
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

    /// How the verdict on the place depends on what boot makes of its code: never for a kernel that
    /// runs. Costs more than the verdict.
    pub fn boot_dependence(&self) -> Option<BootDependence> {
        validate::boot_dependence(&self.definition, &self.report, &self.facts)
    }

    /// What it means on this kernel.
    pub fn meaning(&self) -> Meaning {
        meaning::capture(&self.subject())
    }

    /// The definition as it would have to be on this kernel to record what `before` says it did:
    /// see [`meaning::port`].
    pub fn ported(&self, before: &Meaning) -> Option<ProbeDefinition> {
        meaning::port(before, &self.subject())
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
    pub fn surroundings(&self) -> Surroundings {
        validate::surroundings(&self.definition, &self.report, &self.facts)
    }
}
