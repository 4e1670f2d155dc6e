//! Tests that a prototype and its probe read the same addresses, followed in two ways.

use proptest::prelude::*;

use super::properties::{steps, types};
use super::{definition, v6_1, v6_12};
use crate::definition::prototype::{FieldType, Step, StepKind};
use crate::definition::{BaseType, Code, Features, Fetch, FetchKind, Width};

/// The word at an address: anything, but always the same.
fn word_at(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0x5bd1_e995
}

/// The address that the prototype reads, by the recommended rules of 2018; `None` for the parameter
/// itself.
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
    let is_value = ty.count.is_none() && ty.atom.name != "string";
    if is_value {
        return (brackets > 0 || address != parameter).then_some(address);
    }
    let through_pointer = ends_in_bracket && (ty.atom.name == "string" || brackets > 1);
    Some(if through_pointer { word_at(address) } else { address })
}

/// The value of an expression of the kernel's language, with this value in the first argument.
fn value(fetch: &Fetch, parameter: u64) -> u64 {
    match &fetch.kind {
        FetchKind::Argument(1) => parameter,
        FetchKind::Deref { .. } => word_at(address(fetch, parameter).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// The address that an expression reads, if it reads memory.
fn address(fetch: &Fetch, parameter: u64) -> Option<u64> {
    match &fetch.kind {
        FetchKind::Deref { offset, inner, user: false } => {
            Some(value(inner, parameter).wrapping_add_signed(i64::from(*offset)))
        }
        _ => None,
    }
}

/// A prototype with one field of the first parameter.
fn one_field(ty: FieldType, steps: &[Step]) -> String {
    let steps: String = steps.iter().map(|step| step.kind.to_string()).collect();
    format!("f({ty} a{steps})")
}

/// How many bytes each element has, and how it is shown: every difference from 2018 has a warning.
fn check_types(ty: FieldType, text: &str, features: &Features) {
    let Ok(found) = definition(text, features) else { return };
    let said = found.warnings.iter().any(|warning| warning.code == Code::Completed);
    let types: Vec<_> = found.args.iter().map(|argument| argument.ty.unwrap()).collect();
    let elements: u64 = types.iter().map(|ty| u64::from(ty.count.unwrap_or(1))).sum();
    let expected = match (ty.atom.name, ty.count) {
        ("string", _) => BaseType::String,
        ("char", Some(_)) => {
            // Not cut after that many bytes.
            assert!(said && types.len() == 1 && types[0].count.is_none(), "{text}");
            assert_eq!(types[0].base, BaseType::String, "{text}");
            return;
        }
        ("char", None) => {
            assert!(types[0].base == BaseType::Char || said, "{text}");
            types[0].base
        }
        ("symbol", _) => BaseType::Symbol,
        ("size_t", _) => BaseType::Unsigned(Width::W64),
        (name, _) => {
            let bits = match name {
                "short" => 16,
                "int" => 32,
                "long" => 64,
                _ => name[1..].parse().unwrap(),
            };
            let width = Width::from_bits(bits).unwrap();
            match name.chars().next() {
                Some('x') if !ty.unsigned => BaseType::Hex(width),
                Some('u' | 'x') => BaseType::Unsigned(width),
                _ if ty.unsigned => BaseType::Unsigned(width),
                _ => BaseType::Signed(width),
            }
        }
    };
    assert_eq!(elements, ty.count.unwrap_or(1), "{text}");
    assert!(types.len() == 1 || said, "{text} is in parts");
    for read in types {
        assert_eq!(read.base, expected, "{text}");
        assert_eq!(read.count.is_some(), ty.count.is_some(), "{text}");
        assert!(ty.atom.name == "string" || u64::from(read.base.bytes()) == ty.atom.bytes(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn the_probe_reads_what_the_prototype_means(ty in types(), steps in steps(), parameter in any::<u64>()) {
        let text = one_field(ty, &steps);
        check_types(ty, &text, &v6_1());
        check_types(ty, &text, &v6_12());
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
