//! Footprint of a definition: what rules are compared with, apart from name and labels.
//!
//! Owns how it follows from a check. Never decides whether a rule allows it: [`kprobed_rights`] does.

use kprobed_lang::model::{Labels, ProbeName};
use kprobed_rights::{Object, Reads};
use kprobed_verdict::checker::{CheckOutcome, Target};

/// Where a probe is, and what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The function that it lies in. Without names while it is not resolved.
    pub target: Target,
    /// What it reads; everything while it is not resolved, so that no rule about that lets it pass.
    pub reads: Reads,
}

impl Default for Footprint {
    /// Of a probe that is not resolved.
    fn default() -> Self {
        Self { target: Target::default(), reads: Reads::ALL }
    }
}

impl Footprint {
    /// Of a definition that was checked.
    pub fn of(outcome: &CheckOutcome) -> Self {
        Self { target: outcome.target(), reads: Reads::of(&outcome.definition) }
    }

    /// What rules are compared with, for a probe of this name.
    pub fn object<'a>(&'a self, name: &'a ProbeName, labels: &'a Labels) -> Object<'a> {
        Object {
            name,
            labels,
            functions: &self.target.functions,
            module: self.target.module.as_deref(),
            reads: self.reads,
        }
    }
}
