//! Names of events that are in use, as far as a verdict depends on them.
//!
//! Owns the interface only, and never stores a name. The daemon implements it for a running kernel.
//! For an image of a kernel, all names are free.

use std::collections::HashSet;
use std::fmt::Debug;

use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{DeleteDefinition, Diagnostic, Features, ProbeDefinition, Span};
use kprobed_lang::model::ProbeName;

/// A name that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The name.
    pub name: ProbeName,
    /// Whether a probe of this daemon has it.
    pub ours: bool,
    /// What the kernel would say, or why this daemon does not write the line.
    pub problem: Diagnostic,
}

/// The names of events that are in use.
pub trait NamesInUse: Debug + Send + Sync {
    /// `wanted`, or the first name that begins with it and is neither in use nor in `claimed`.
    fn free_event(&self, group: &str, wanted: &str, claimed: &HashSet<ProbeName>) -> String;

    /// The problem with a definition of this name. `None` if the name is free.
    fn taken(
        &self,
        definition: &ProbeDefinition,
        name: (&str, &str),
        facts: &KernelFacts,
        features: &Features,
    ) -> Option<Taken>;

    /// Why an event cannot be recorded: the host does not have it, or it has no switch of its own. It proposes no other
    /// event: names of probes would be among them.
    fn unrecordable(&self, event: (&str, &str), span: Span) -> Option<Diagnostic>;

    /// The probes of this daemon that a `-` line names. If the line gives no group or no event, the
    /// kernel takes all of them.
    ///
    /// # Errors
    /// What the kernel would say, or why this daemon does not ask it.
    fn deleted_by(&self, delete: &DeleteDefinition) -> Result<Vec<ProbeName>, Diagnostic>;
}
