//! Properties: parsing and rendering are inverse, no text panics, every span is within its text.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{v6_1, v6_12};
use crate::definition::prototype::{
    Atom, Field, FieldType, FixedAddress, Item, Parameter, Prototype, Source, Step, StepKind, definition,
    parse,
};
use crate::definition::{Fetch, FetchKind, Name, Span};

const HERE: Span = Span { start: 0, end: 0 };

fn names() -> impl Strategy<Value = Name> {
    // One letter more than the words of the language could have.
    "[a-z_][a-z0-9_]{0,6}Z".prop_map(|text| Name { text, span: HERE })
}

pub(super) fn types() -> impl Strategy<Value = FieldType> {
    let atoms: Vec<_> = Atom::ALL.iter().map(|(_, atom)| *atom).collect();
    (any::<bool>(), proptest::sample::select(atoms), option::weighted(0.3, 1u64..100)).prop_map(
        |(unsigned, atom, count)| FieldType {
            unsigned,
            atom,
            count: count.filter(|_| atom != Atom::String),
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
        any::<u64>().prop_map(FixedAddress::Address),
        names().prop_map(|name| FixedAddress::Symbol(name.text)),
    ];
    prop_oneof![
        4 => (names(), steps()).prop_map(|(name, steps)| Source::Parameter { name, steps }),
        1 => (option::of(names()), address)
            .prop_map(|(name, address)| Source::Fixed { name, address, span: HERE }),
    ]
}

fn parameters() -> impl Strategy<Value = Parameter> {
    let field = (types(), sources()).prop_map(|(ty, source)| Item::Field(Field { ty, source, span: HERE }));
    let null = Just(Item::Null(HERE));
    prop_oneof![
        1 => null.clone().prop_map(|null| vec![null]),
        4 => (vec(field, 1..3), option::weighted(0.1, null)).prop_map(|(mut items, null)| {
            items.extend(null);
            items
        }),
    ]
    .prop_map(|items| Parameter { items, span: HERE })
}

fn prototypes() -> impl Strategy<Value = Prototype> {
    (names(), vec(parameters(), 0..6)).prop_map(|(function, parameters)| Prototype {
        function,
        parameters,
        span: HERE,
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
            let mut text = prototype.to_string();
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
        let again = prototype.to_string();
        assert_eq!(parse(&again).unwrap().to_string(), again);
    }
    for features in [v6_1(), v6_12()] {
        match definition(text, &features) {
            Err(problems) => {
                assert!(!problems.is_empty());
                for problem in &problems {
                    let _ = &text[problem.span.range()];
                    assert!(!problem.render_caret(text).is_empty());
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
        let text = prototype.to_string();
        if let Ok(parsed) = parse(&text) {
            prop_assert_eq!(parsed.to_string(), text);
        } else {
            prop_assert!(prototype.parameters.len() > 6);
        }
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
