//! Footprint of a definition: what rules are compared with, apart from name and labels.
//!
//! Owns how it follows from a check. Never decides whether a rule allows it: [`kprobed_rights`] does.

use crate::store::ProbeSpec;
use kprobed_lang::definition::Argument;
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_rights::{Known, Object, Read, Reads};
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::Filter;
use kprobed_verdict::checker::{CheckOutcome, Target};

/// Where a probe is, and what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The function that it lies in. Without names while it is not resolved.
    pub target: Target,
    /// What it reads; everything while it is not resolved, so that no rule about that lets it pass.
    pub reads: Reads,
    /// The fields that the definition names, and whether a value can be a kernel address.
    pub fields: Vec<(String, bool)>,
}

impl Default for Footprint {
    /// Of a probe that is not resolved.
    fn default() -> Self {
        Self { target: Target::default(), reads: Reads::ALL, fields: Vec::new() }
    }
}

impl Footprint {
    /// Of a definition that was checked.
    pub fn of(outcome: &CheckOutcome) -> Self {
        let field = |argument: &Argument| {
            let is_address = argument.base_type().bytes() == 8 && !argument.base_type().is_text();
            Some((argument.name.as_ref()?.text.clone(), is_address))
        };
        Self {
            target: outcome.target(),
            reads: Reads::of(&outcome.definition),
            fields: outcome.definition.args.iter().filter_map(field).collect(),
        }
    }

    /// What rules are compared with, for a probe of this name.
    pub fn object<'a>(&'a self, name: &'a ProbeName, labels: &'a Labels) -> Object<'a> {
        Object {
            name,
            labels,
            functions: &self.target.functions,
            module: self.target.module.as_deref(),
            reads: self.reads,
            known: if self.target.whole { Known::All } else { Known::Part },
        }
    }

    /// What a probe of this specification tells: its filter besides, and its call stacks. `schema` has the fields of
    /// its events, if they are known.
    pub fn reads_of_spec(&self, spec: &ProbeSpec, schema: Option<&Schema>) -> Reads {
        let reads = self.reads.and(self.reads_of_filter(&spec.filter, schema));
        if spec.stack { reads.with(Read::StackTraces) } else { reads }
    }

    /// What the kernel filter of this probe tells besides: nothing, or kernel addresses. A comparison with an address
    /// is as good as the address, and a filter that only the kernel can read may hold one. A text that the kernel has
    /// made of an address is compared as it is recorded, and not as it is shown.
    pub fn reads_of_filter(&self, filter: &str, schema: Option<&Schema>) -> Reads {
        if filter.is_empty() {
            return Reads::NONE;
        }
        let Ok(filter) = Filter::parse(filter) else { return Reads::NONE.with(Read::Addresses) };
        let can_hold_address = |name: &str| Some(self.fields.iter().find(|(known, _)| known == name)?.1);
        let mut tells = filter.tells_address(can_hold_address).is_some();
        let names_addresses = |name: &str| {
            let mut fields = schema.iter().flat_map(|schema| &schema.fields);
            fields.any(|field| field.name == name && field.names_addresses())
        };
        filter.fields(&mut |name, _span| tells |= names_addresses(name));
        if tells { Reads::NONE.with(Read::Addresses) } else { Reads::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_stacks_are_read_like_those_that_are_counted() {
        let footprint = Footprint { reads: Reads::NONE, ..Footprint::default() };
        let reads = |stack| footprint.reads_of_spec(&ProbeSpec { stack, ..ProbeSpec::default() }, None);
        assert!(reads(false).is_empty());
        assert!(reads(true).has(Read::StackTraces) && !reads(true).has(Read::Addresses));
    }
}
