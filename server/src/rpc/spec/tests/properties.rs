//! Properties: fields and definitions are inverse, and no field changes the meaning of another.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::read::read;
use super::strategies::definitions;
use super::*;
use kprobed_lang::definition::{Span, parse_any};
use kprobed_lang::samples::{v6_1, v7_3};

/// Texts that are special to the parser, or to the code that cuts a text into lines and words.
fn hostile_text() -> impl Strategy<Value = String> {
    let pieces = proptest::sample::select(vec![
        "a",
        "f",
        "x1",
        "_",
        "0",
        "0x1f",
        " ",
        "\n",
        "\t",
        ":",
        "=",
        "/",
        ".",
        "-",
        "->",
        "+",
        "+8",
        "(",
        ")",
        "[",
        "]",
        "[2]",
        ":u8",
        "%",
        "%di",
        "%return",
        "$",
        "$retval",
        "$arg*",
        "@",
        "\\",
        "\"",
        "#",
        "# dialect: 2009",
        "\0",
        "\u{a0}",
        "é",
        "𝒳",
        "a0",
        "rv",
        "ra",
        "p",
        "r",
        "__kpd_g0",
        "int",
        ",",
        "|",
    ]);
    prop_oneof![3 => "[a-z_]{1,5}", 1 => Just(String::new()), 3 => vec(pieces, 1..4).prop_map(|p| p.concat())]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..10, Just(64), Just(65), Just(2049), Just(4096), any::<u32>()]
}

fn fetches() -> impl Strategy<Value = Option<v1::Fetch>> {
    let members = || {
        vec((any::<bool>(), hostile_text()), 0..3).prop_map(|members| {
            members.into_iter().map(|(arrow, name)| v1::FetchMember { arrow, name }).collect::<Vec<_>>()
        })
    };
    let leaf = prop_oneof![
        prop_oneof![Just("di".to_owned()), hostile_text()].prop_map(Source::Register),
        number().prop_map(Source::StackNth),
        number().prop_map(Source::Argument),
        (-1..7i32).prop_map(Source::Variable),
        any::<u64>().prop_map(|address| {
            Source::Memory(v1::FetchMemory { place: Some(v1::fetch_memory::Place::Address(address)) })
        }),
        (hostile_text(), any::<i64>()).prop_map(|(symbol, offset)| {
            let symbol = v1::FetchSymbol { symbol, offset };
            Source::Memory(v1::FetchMemory { place: Some(v1::fetch_memory::Place::Symbol(symbol)) })
        }),
        any::<i64>().prop_map(Source::Immediate),
        any::<u64>().prop_map(Source::ImmediateUnsigned),
        hostile_text().prop_map(Source::ImmediateString),
        (hostile_text(), members())
            .prop_map(|(name, members)| Source::Parameter(v1::FetchParameter { name, members })),
        members().prop_map(|members| Source::Returned(v1::FetchReturned { members })),
    ];
    let whole = option::weighted(0.97, leaf).prop_map(|source| v1::Fetch { source });
    (option::weighted(0.97, whole), vec((any::<bool>(), any::<i32>()), 0..4)).prop_map(|(inner, around)| {
        around.into_iter().fold(inner, |inner, (user, offset)| {
            let inner = inner.map(Box::new);
            fetch(Source::Dereference(Box::new(v1::FetchDereference { user, offset, inner })))
        })
    })
}

fn fetch_types() -> impl Strategy<Value = Option<v1::FetchType>> {
    let base = prop_oneof![
        4 => (-1..22i32).prop_map(v1::fetch_type::Type::Name),
        1 => (number(), number(), prop_oneof![Just(8), Just(32), number()]).prop_map(|(width, offset, container_bits)| {
            v1::fetch_type::Type::BitField(v1::FetchBitField { width, offset, container_bits })
        }),
    ];
    let ty = (option::weighted(0.95, base), option::weighted(0.2, number()));
    option::of(ty.prop_map(|(r#type, array_length)| v1::FetchType { r#type, array_length }))
}

fn specs() -> impl Strategy<Value = v1::ProbeSpec> {
    let place = prop_oneof![
        1 => any::<u64>().prop_map(v1::probe_place::Place::Address),
        4 => (prop_oneof![3 => Just(String::new()), 1 => hostile_text()], hostile_text(), number())
            .prop_map(|(module, symbol, offset)| {
                v1::probe_place::Place::Symbol(v1::SymbolPlace { module, symbol, offset })
            }),
    ];
    let argument = (prop_oneof![Just(String::new()), hostile_text()], fetches(), fetch_types())
        .prop_map(|(name, fetch, r#type)| v1::ArgumentSpec { name, fetch, r#type });
    (
        prop_oneof![9 => 1..3i32, 1 => any::<i32>()],
        option::weighted(0.2, number()),
        prop_oneof![2 => Just(String::new()), 1 => hostile_text()],
        prop_oneof![1 => Just(String::new()), 2 => hostile_text()],
        option::weighted(0.97, place),
        vec(argument, 0..3),
    )
        .prop_map(|(kind, maxactive, group, event, place, arguments)| {
            let place = place.map(|place| v1::ProbePlace { place: Some(place) });
            v1::ProbeSpec { kind, maxactive, group, event, place, arguments }
        })
}

/// What is taken reads back as the same fields; what is not is refused at a field. Says whether it
/// was taken.
fn check(spec: &v1::ProbeSpec) -> bool {
    let mut taken = false;
    for features in [v6_1(), v6_12(), v7_3()] {
        let given = match Given::of(String::new(), Some(spec), &checker_of(features.clone())) {
            Ok(given) => given,
            Err(GivenError::Form(message)) => panic!("{message}"),
            Err(GivenError::Fields(Unwritable { field, problem, text })) => {
                assert!(field.starts_with("spec"), "{field}");
                assert!(!problem.message.is_empty() && text.get(problem.span.range()).is_some());
                continue;
            }
        };
        match parse_any(given.text(), &features).result {
            Err(problems) => {
                for problem in problems {
                    assert!(given.field_at(given.text(), problem.span).starts_with("spec"));
                }
            }
            Ok(Definition::Delete(_)) => panic!("{}", given.text()),
            Ok(Definition::Probe(definition)) => {
                let meant = read(spec).unwrap();
                assert_eq!(definition.without_spans(), meant, "{}", given.text());
                assert_eq!(write(&definition), write(&meant));
                for argument in &definition.args {
                    assert!(given.field_at(given.text(), argument.span).starts_with("spec.arguments["));
                }
                assert!(given.field_at(given.text(), definition.place.span()).starts_with("spec.place"));
                taken = true;
            }
        }
        assert!(given.field_at("p", Span::new(7, 9)).starts_with("spec"));
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn fields_and_definitions_are_inverse(definition in definitions()) {
        let fields = write(&definition);
        let again = read(&fields).unwrap();
        prop_assert_eq!(&again, &definition);
        prop_assert_eq!(write(&again), fields);
    }

    #[test]
    fn what_the_parser_makes_can_be_sent_back(definition in definitions()) {
        check(&write(&definition));
    }

    #[test]
    fn no_field_says_anything_but_itself(spec in specs()) {
        check(&spec);
    }

    #[test]
    fn no_text_is_smuggled(text in "[ -~\\n\\t]{0,12}", place: usize) {
        let mut fields = spec("p:g/e m:f x=+8(%di):u8 y=p->q");
        let source = |spec: &mut v1::ProbeSpec, source| spec.arguments[1].fetch = fetch(source);
        match place % 8 {
            0 => fields.group = text,
            1 => fields.event = text,
            2 => fields.arguments[0].name = text,
            3 => source(&mut fields, Source::ImmediateString(text)),
            4 => source(&mut fields, Source::Register(text)),
            5 => source(&mut fields, Source::Parameter(v1::FetchParameter { name: text, members: Vec::new() })),
            6 => source(&mut fields, Source::Returned(v1::FetchReturned {
                members: vec![v1::FetchMember { arrow: true, name: text }],
            })),
            _ => {
                let symbol = v1::SymbolPlace { symbol: text, ..Default::default() };
                fields.place = Some(v1::ProbePlace { place: Some(v1::probe_place::Place::Symbol(symbol)) });
            }
        }
        check(&fields);
    }
}

/// Some generated fields must be definitions, or the properties above prove little.
#[test]
fn the_generator_makes_definitions() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let taken = (0..1000).filter(|_| check(&specs().new_tree(&mut runner).unwrap().current())).count();
    assert!(taken > 30, "{taken} of 1000");
}
