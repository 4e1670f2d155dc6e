//! Properties: parsing and rendering are inverse, no text panics, every span is within its text.

use proptest::collection::vec;
use proptest::prelude::*;

use super::guards::check_guards;
use super::strategies::{arguments, definitions};
use super::{probe, v6_1, v6_12, v7_3};
use crate::definition::explain::explain;
use crate::definition::guard::guarded;
use crate::definition::{
    Definition, Diagnostic, Dialect, Features, Fetch, FetchKind, ProbeKind, parse, parse_any, parse_as,
};

/// A text similar to a definition, perhaps with a mistake.
fn mutations() -> impl Strategy<Value = String> {
    let pieces = proptest::sample::select(vec![
        "p", "r", "-", "+", "(", ")", ":", "/", ".", "=", "[", "]", "%", "$", "@", "\\", "\"", "*", "#",
        "\n", " ", "u", "0x", "9", "arg", "retval", "stack", "comm", "string", "b1@0/8", "->", "é", "\u{a0}",
        "\0", "𝒳", "pd", "pD", " a0", " ra", "s1", "sa", "rv",
    ]);
    (definitions(), vec((any::<prop::sample::Index>(), any::<bool>(), pieces), 0..6)).prop_map(
        |(definition, changes)| {
            let mut text = definition.render("g", "e");
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

fn check_diagnostics(text: &str, problems: &[Diagnostic]) {
    for problem in problems {
        // Slicing panics unless both ends are in the text and on character boundaries.
        let _ = &text[problem.span.range()];
        assert!(problem.kernel_position(text) <= text.len());
        assert!(!problem.message.is_empty());
    }
}

fn check_fetch(text: &str, fetch: &Fetch) {
    let _ = &text[fetch.span.range()];
    if let FetchKind::Deref { inner, .. } = &fetch.kind {
        check_fetch(text, inner);
    }
}

/// In every dialect spans are within the text, and the result is a line that the kernel reads the
/// same way.
fn check_dialects(text: &str, features: &Features) {
    let readings = Dialect::ALL.map(|dialect| parse_as(dialect, text, features));
    for reading in readings.into_iter().chain([parse_any(text, features)]) {
        match reading.result {
            Err(problems) => {
                assert!(!problems.is_empty());
                check_diagnostics(text, &problems);
            }
            Ok(Definition::Delete(_)) => {}
            Ok(Definition::Probe(read)) => {
                check_diagnostics(text, &read.warnings);
                for argument in &read.args {
                    let _ = &text[argument.span.range()];
                    let _ = argument.name.as_ref().map(|name| &text[name.span.range()]);
                    check_fetch(text, &argument.fetch);
                }
                let line = read.render("g", "e");
                let told = explain(&read, (reading.dialect, &line), features, &|_index| None);
                assert!(told.starts_with(&line));
                assert_eq!(told.matches("\n      ").count(), read.args.len());
                // An event of the host is a short form, and no line of the kernel.
                let again = match parse_any(&line, features).result {
                    Ok(Definition::Probe(again)) if read.kind == ProbeKind::Event => again,
                    _ => probe(&line, features),
                };
                assert_eq!(again.args.len(), read.args.len());
                assert_eq!((again.kind, again.render("g", "e")), (read.kind, line));
            }
        }
    }
}

/// Parses with the features of several kernels; what is accepted must survive rendering, naming and
/// guarding.
fn check_text(text: &str) {
    for features in [v6_1(), v6_12(), v7_3()] {
        check_dialects(text, &features);
        match parse(text, &features) {
            Err(problems) => {
                assert!(!problems.is_empty());
                check_diagnostics(text, &problems);
            }
            Ok(Definition::Delete(deletion)) => {
                let _ = &text[deletion.span.range()];
            }
            Ok(Definition::Probe(first)) => {
                check_diagnostics(text, &first.warnings);
                let _ = (&text[first.span.range()], &text[first.place.span().range()]);
                for argument in &first.args {
                    let _ = &text[argument.span.range()];
                    let _ = argument.ty.map(|ty| &text[ty.span.range()]);
                    let _ = argument.name.as_ref().map(|name| &text[name.span.range()]);
                    check_fetch(text, &argument.fetch);
                }
                assert!(!first.default_event_name().is_empty());
                let again = probe(&first.render("g", "e"), &features);
                assert_eq!(again.args.len(), first.args.len());
                assert_eq!(again.render("g", "e"), first.render("g", "e"));
                let named = first.clone().with_explicit_names();
                let parsed = probe(&named.render("g", "e"), &features);
                assert_eq!(parsed.render("g", "e"), named.render("g", "e"));
                let guarded = guarded(&named, &features);
                check_guards(&named, &guarded, &features);
                // The kernel would accept what the daemon adds from any user, under another name.
                let line = guarded.definition.render("g", "e").replace("__kpd_", "kpd_");
                assert_eq!(probe(&line, &features).args.len(), guarded.definition.args.len());
            }
        }
    }
}

/// Random letters seldom are one.
#[test]
fn an_event_of_the_host_is_read_again() {
    ["AA:A#", "sched:sched_switch", "sched/sched_switch # x"].into_iter().for_each(check_text);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    /// An index is read as it is written. Anything else between brackets is a part of the name, which no member has.
    #[test]
    fn an_index_is_read_as_it_is_written(
        indices in vec(any::<u32>(), 0..3),
        other in "[0-9x\\[\\].>+-]{0,4}",
    ) {
        let features = Features::from_readme("").with_types(true);
        let written = indices.iter().fold(String::new(), |text, index| text + &format!("[{index}]"));
        let text = format!("p:g/e f x=a->b{written}");
        let Ok(Definition::Probe(definition)) = parse(&text, &features) else { panic!("{text}") };
        let FetchKind::Btf { members, .. } = &definition.args[0].fetch.kind else { panic!("{text}") };
        prop_assert_eq!(&members[0].indices, &indices);
        prop_assert_eq!(definition.render("g", "e"), text);
        let text = format!("p:g/e f x=a->b[{other}]");
        if let Ok(Definition::Probe(definition)) = parse(&text, &features) {
            prop_assert_eq!(definition.render("g", "e"), text);
        }
    }

    #[test]
    fn rendering_is_the_inverse_of_parsing(definition in definitions()) {
        let text = definition.render("g", "e");
        // Not every tree is a definition that a kernel accepts; of those that are, nothing is lost.
        if let Ok(Definition::Probe(parsed)) = parse(&text, &v6_12()) {
            prop_assert_eq!(parsed.without_spans(), definition);
        }
    }

    #[test]
    fn single_arguments_survive(argument in arguments()) {
        let text = format!("p:g/e f {argument}");
        if let Ok(Definition::Probe(parsed)) = parse(&text, &v7_3()) {
            prop_assert_eq!(&parsed.without_spans().args[0], &argument);
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        check_text(&text);
    }

    #[test]
    fn no_characters_panic(text in vec(any::<char>(), 0..60)) {
        let text: String = text.into_iter().collect();
        check_text(&text);
        check_text(&format!("p f {text}"));
        check_text(&format!("p f x=+0({text}):{text}[{text}]"));
    }

    #[test]
    fn no_mutation_panics(text in mutations()) {
        check_text(&text);
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for depth in [100, 1000, 100_000] {
        check_text(&format!("p f {}%di{}", "+0(".repeat(depth), ")".repeat(depth)));
        check_text(&format!("p f a{}", "->a".repeat(depth)));
    }
}

/// Most generated trees must be definitions, or the round trip proves little.
#[test]
fn the_generator_makes_definitions() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let accepted = (0..400)
        .filter(|_| {
            let argument = arguments().new_tree(&mut runner).unwrap().current();
            parse(&format!("p:g/e f {argument}"), &v7_3()).is_ok()
        })
        .count();
    assert!(accepted > 150, "{accepted} of 400");
}
