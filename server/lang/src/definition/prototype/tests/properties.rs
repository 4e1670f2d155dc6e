//! Properties: parsing and rendering are inverse, no text panics, every span is within its text.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::written::written;
use super::{definition, v6_1, v6_12};
use crate::definition::prototype::{Atom, Field, FieldType, Prototype, Source, Step, StepKind, parse};
use crate::definition::{BaseType, Fetch, FetchKind, MemoryAddress, Name, Span};

const HERE: Span = Span { start: 0, end: 0 };

fn names() -> impl Strategy<Value = Name> {
    // One letter more than the words of the language could have.
    "[a-z_][a-z0-9_]{0,6}Z".prop_map(|text| Name { text, span: HERE })
}

pub(super) fn types() -> impl Strategy<Value = FieldType> {
    (any::<bool>(), proptest::sample::select(Atom::ALL.to_vec()), option::weighted(0.3, 1u64..100)).prop_map(
        |(unsigned, atom, count)| FieldType {
            unsigned,
            atom,
            count: count.filter(|_| atom.base != BaseType::String),
            span: HERE,
        },
    )
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![(0u64..5000).prop_map(StepKind::Add), (0u64..50).prop_map(StepKind::Index)];
    vec(kind.prop_map(|kind| Step { kind, span: HERE }), 0..5)
}

fn sources() -> impl Strategy<Value = Source> {
    let address = prop_oneof![
        any::<u64>().prop_map(MemoryAddress::Address),
        names().prop_map(|name| MemoryAddress::Symbol { symbol: name.text, offset: 0 }),
    ];
    prop_oneof![
        4 => (names(), steps()).prop_map(|(name, steps)| Source::Parameter { name, steps }),
        1 => (option::of(names()), address)
            .prop_map(|(name, address)| Source::Fixed { name, address, span: HERE }),
    ]
}

/// The fields of up to five parameters, of which some have none.
fn prototypes() -> impl Strategy<Value = Prototype> {
    (names(), vec(vec((types(), sources()), 0..3), 0..6)).prop_map(|(function, parameters)| {
        let fields = (1..).zip(parameters).flat_map(|(parameter, fields)| {
            fields.into_iter().map(move |(ty, source)| Field { ty, source, parameter, span: HERE })
        });
        Prototype { function, fields: fields.collect(), span: HERE }
    })
}

/// A text similar to a prototype, perhaps with a mistake.
fn mutations() -> impl Strategy<Value = String> {
    let pieces = proptest::sample::select(vec![
        "(", ")", ",", "|", "+", "[", "]", "=", "$", "0x", "NULL", "unsigned", "string", "char", " ", "#",
        "\n", "9", "é", "\0", "𝒳", "-", "*", ".",
    ]);
    (prototypes(), vec((any::<prop::sample::Index>(), any::<bool>(), pieces), 0..6)).prop_map(
        |(prototype, changes)| {
            let mut text = written(&prototype);
            for (index, remove, piece) in changes {
                let mut at = index.index(text.len() + 1);
                while !text.is_char_boundary(at) {
                    at -= 1;
                }
                if remove && at < text.len() {
                    text.remove(at);
                }
                text.insert_str(at, piece);
            }
            text
        },
    )
}

fn check_fetch(text: &str, fetch: &Fetch) {
    let _ = &text[fetch.span.range()];
    if let FetchKind::Deref { inner, .. } = &fetch.kind {
        check_fetch(text, inner);
    }
}

fn check_text(text: &str) {
    if let Ok(prototype) = parse(text) {
        let again = written(&prototype);
        assert_eq!(written(&parse(&again).unwrap()), again);
    }
    for features in [v6_1(), v6_12()] {
        match definition(text, &features) {
            Err(problems) => {
                assert!(!problems.is_empty());
                for problem in &problems {
                    let _ = &text[problem.span.range()];
                    assert!(!problem.message.is_empty());
                }
            }
            Ok(found) => {
                let _ = (&text[found.span.range()], &text[found.place.span().range()]);
                for warning in &found.warnings {
                    let _ = &text[warning.span.range()];
                }
                for argument in &found.args {
                    let _ = (&text[argument.span.range()], &text[argument.ty.unwrap().span.range()]);
                    let _ = &text[argument.name.as_ref().unwrap().span.range()];
                    check_fetch(text, &argument.fetch);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn rendering_is_the_inverse_of_parsing(prototype in prototypes()) {
        let text = written(&prototype);
        prop_assert_eq!(written(&parse(&text).unwrap()), text);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        check_text(&text);
        check_text(&format!("f({text})"));
        check_text(&format!("f(x8[{text}] a[{text}]+{text})"));
    }

    #[test]
    fn no_characters_panic(text in vec(any::<char>(), 0..60)) {
        let text: String = text.into_iter().collect();
        check_text(&text);
        check_text(&format!("f(int a{text})"));
    }

    #[test]
    fn no_mutation_panics(text in mutations()) {
        check_text(&text);
    }
}

#[test]
fn long_texts_end() {
    for length in [100, 1000, 100_000] {
        check_text(&format!("f(x64 a{})", "[0]".repeat(length)));
        check_text(&format!("f(x64 a{})", "+1".repeat(length)));
        check_text(&"f(".repeat(length));
        check_text(&format!("f({})", vec!["x8[64] a"; length].join("|")));
        check_text(&format!("f({})", vec!["NULL"; length].join(",")));
    }
}
