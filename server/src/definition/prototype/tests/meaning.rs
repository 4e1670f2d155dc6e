//! What a prototype reads and what its probe reads: the same addresses, followed in two ways.

use proptest::prelude::*;

use super::properties::{steps, types};
use super::v6_12;
use crate::definition::prototype::{
    Atom, Field, FieldType, Item, Parameter, Prototype, Source, Step, StepKind, definition,
};
use crate::definition::{Fetch, FetchKind, Name, Span};

/// The word at an address: anything, but always the same.
fn word_at(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0x5bd1_e995
}

/// Where the prototype reads, by the rules of 2018 as they are recommended; `None` for the parameter itself.
fn meant(ty: FieldType, steps: &[Step], parameter: u64) -> Option<u64> {
    let mut address = parameter;
    let mut brackets = 0;
    for (index, step) in steps.iter().enumerate() {
        match step.kind {
            StepKind::Add(bytes) => address = address.wrapping_add(bytes),
            StepKind::Index(elements) => {
                brackets += 1;
                address = address.wrapping_add(elements * ty.atom.bytes());
                if index + 1 < steps.len() {
                    address = word_at(address);
                }
            }
        }
    }
    let ends_in_bracket = matches!(steps.last(), Some(Step { kind: StepKind::Index(_), .. }));
    let is_value = ty.count.is_none() && ty.atom != Atom::String;
    if is_value {
        return (brackets > 0 || address != parameter).then_some(address);
    }
    let through_pointer = ends_in_bracket && (ty.atom == Atom::String || brackets > 1);
    Some(if through_pointer { word_at(address) } else { address })
}

/// What an expression of the kernel's language is, with this value in the first argument.
fn value(fetch: &Fetch, parameter: u64) -> u64 {
    match &fetch.kind {
        FetchKind::Argument(1) => parameter,
        FetchKind::Deref { .. } => word_at(address(fetch, parameter).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Where an expression reads, if it reads memory.
fn address(fetch: &Fetch, parameter: u64) -> Option<u64> {
    match &fetch.kind {
        FetchKind::Deref { offset, inner, user: false } => {
            Some(value(inner, parameter).wrapping_add_signed(i64::from(*offset)))
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn the_probe_reads_what_the_prototype_means(ty in types(), steps in steps(), parameter in any::<u64>()) {
        let here = Span::default();
        let name = |text: &str| Name { text: text.to_owned(), span: here };
        let source = Source::Parameter { name: name("a"), steps: steps.clone() };
        let field = Item::Field(Field { ty, source, span: here });
        let parameters = vec![Parameter { items: vec![field], span: here }];
        let text = Prototype { function: name("f"), parameters, span: here }.to_string();
        match definition(&text, &v6_12()) {
            Ok(found) => {
                let first = meant(ty, &steps, parameter);
                for (index, argument) in found.args.iter().enumerate() {
                    let bytes = index as u64 * 64 * ty.atom.bytes();
                    let expected = first.map(|first| first.wrapping_add(bytes));
                    prop_assert_eq!(address(&argument.fetch, parameter), expected, "{}", text);
                }
            }
            Err(problems) => {
                let code = problems[0].code.name();
                let plus_only = steps.iter().all(|step| matches!(step.kind, StepKind::Add(_)));
                prop_assert!(code == "ARG_TOO_LONG" || (code == "NO_EQUIVALENT" && plus_only), "{} {}", code, text);
            }
        }
    }
}
