//! What is wrong with a line before the place from which it cannot be read.
//!
//! The kernel reads one argument after the other, and looks names up as it goes: a name that does not exist is what it reports, whatever
//! comes later. Owns that question, which needs both the parser and the kernel's types. Never judges a line that can be read.

use crate::validate::{self, typed};
use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::{
    Code, Definition, Diagnostic, Features, NumbersAre, Place, ProbeDefinition, ProbeKind, Unread, parse,
    parts_before,
};

/// The problem that the kernel finds before it comes to the first of `unread`, if there is one. `place` is the definition of the place alone.
pub(super) fn first_problem(
    text: &str,
    place: &ProbeDefinition,
    unread: &[Diagnostic],
    facts: &KernelFacts,
    features: &Features,
) -> Option<Diagnostic> {
    let first = unread.first()?;
    let is_entry = validate::is_entry(place, facts);
    let parts =
        parts_before(text, first.span.start, what(first.code, features), numbers(place, facts, features));
    parts.into_iter().find_map(|part| {
        let Ok(Definition::Probe(read)) = parse(&part.text, features) else { return None };
        let requirement = read.entry_requirement(features);
        let misplaced = requirement.filter(|_| !is_entry && read.kind == ProbeKind::Entry);
        let is_read = |problem: &Diagnostic| problem.span.start < part.read_end;
        let unknown = || typed::resolve(&read, facts, features).err()?.into_iter().find(is_read);
        misplaced.or_else(|| if part.looks_names_up { unknown() } else { None })
    })
}

/// The kernel looks for the type before it reads the expression, and whether both fit when it has.
fn what(code: Code, features: &Features) -> Unread {
    match code {
        Code::BadString | Code::BadSymstring | Code::BadBitfield => Unread::Fit,
        Code::BadArgNum if !features.retprobe_args => Unread::Name,
        Code::NoBtfarg | Code::NoBtfField | Code::NosupDatArg | Code::BadHyphen => Unread::Name,
        Code::UsedArgName => Unread::OwnName,
        _ => Unread::Word,
    }
}

fn numbers(place: &ProbeDefinition, facts: &KernelFacts, features: &Features) -> NumbersAre {
    if !features.fprobe {
        return NumbersAre::InOrder;
    }
    let found = match &place.place {
        Place::Symbol { module, symbol, .. } => {
            typed::kernel_finds_parameters(facts, module.as_deref(), symbol).unwrap_or(true)
        }
        Place::Address { .. } => false,
    };
    if features.btf_args && found { NumbersAre::NamedFirst } else { NumbersAre::AskedFirst }
}
