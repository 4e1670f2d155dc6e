//! Property: parser of one probe definition, in any dialect.

use kprobed_lang::definition::explain::explain;
use kprobed_lang::definition::guard::guarded;
use kprobed_lang::definition::{
    Argument, BaseType, Definition, Diagnostic, Dialect, Features, Fetch, FetchKind, Name, ProbeDefinition,
    Reading, Severity, parse, parse_any, parse_as,
};

use super::kernels::features;

/// For any text and kernel, spans are within the text, errors have hints, and a definition is the
/// same after it was written out, named and guarded.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for features in features() {
        for dialect in Dialect::ALL {
            check_reading(text, &parse_as(dialect, text, &features), &features);
        }
        let reading = parse_any(text, &features);
        check_reading(text, &reading, &features);
        let pinned = reading.pinned(text);
        let again = parse_any(&pinned, &features);
        if let (Ok(Definition::Probe(first)), Ok(Definition::Probe(second))) =
            (&reading.result, &again.result)
        {
            assert_eq!(reading.dialect, again.dialect, "{pinned:?}");
            assert_eq!(first.without_spans(), second.without_spans(), "{pinned:?}");
        }
        // The comment counts for the length of the line, and for nothing else.
        assert!(reading.result.is_err() || again.result.is_ok() || pinned.len() > 4094, "{pinned:?}");
    }
}

/// Properties of any reading of `text`.
pub(crate) fn check_reading(text: &str, reading: &Reading, features: &Features) {
    match &reading.result {
        Err(problems) => {
            assert!(problems.iter().any(|problem| problem.severity == Severity::Error));
            assert!(problems.is_sorted_by_key(|problem| problem.step), "{text:?}: {problems:?}");
            check_problems(text, problems);
            if let Some(draft) = &reading.draft {
                check_places(text, draft);
            }
        }
        Ok(Definition::Delete(deletion)) => {
            slice(text, deletion.span.start, deletion.span.end);
        }
        Ok(Definition::Probe(definition)) => check_definition(text, definition, reading.dialect, features),
    }
}

/// Problems are within their text, and errors that only kprobed reports have hints.
pub(crate) fn check_problems(text: &str, problems: &[Diagnostic]) {
    for problem in problems {
        slice(text, problem.span.start, problem.span.end);
        assert!(!problem.message.is_empty());
        assert!(problem.kernel_position(text) <= text.len());
        if problem.severity == Severity::Error {
            let said = problem.hint.as_deref().unwrap_or_default();
            assert!(!said.is_empty(), "{} has no hint: {text:?}", problem.code.name());
        }
    }
}

fn check_definition(text: &str, definition: &ProbeDefinition, dialect: Dialect, features: &Features) {
    check_problems(text, &definition.warnings);
    check_places(text, definition);
    if definition.is_of_host_event() {
        return check_host_event(definition, dialect, features);
    }

    let line = definition.render("g", "e");
    let again = probe(&line, features);
    assert_eq!(again.render("g", "e"), line);
    assert_eq!(meaning(&again), meaning(definition), "{line:?}");
    if line.len() <= text.len() + "g/e".len() {
        // A canonical line is never longer than what it was made of, apart from names.
        assert!(parse(&as_named(definition), features).is_ok());
    }

    let named = definition.clone().with_explicit_names();
    let named_line = named.render("g", "e");
    if let Ok(Definition::Probe(read)) = parse(&named_line, features) {
        assert_eq!(meaning(&read), meaning(&named), "{named_line:?}");
    } else {
        // Names take room.
        assert!(named_line.len() > 4094, "{named_line:?}");
    }

    let guarded = guarded(&named, features);
    assert!(guarded.definition.args.len() >= named.args.len());
    assert!(guarded.unproven.iter().all(|unproven| unproven.index < named.args.len()));
    let is_named_by_the_kernel = |argument: &Argument| argument.base_type() == BaseType::SymbolString;
    assert!(!guarded.definition.args.iter().any(is_named_by_the_kernel));
    if named_line.len() <= 3900 {
        let line = guarded.definition.render("g", "e").replace("__kpd_", "kpd_");
        assert_eq!(probe(&line, features).args.len(), guarded.definition.args.len());
    }

    let told = explain(definition, (dialect, &named_line), features, &|_index| None);
    assert!(told.starts_with(&named_line));
    assert_eq!(told.matches("\n      ").count(), definition.args.len());
}

/// An event of the host is its name, in one spelling.
fn check_host_event(definition: &ProbeDefinition, dialect: Dialect, features: &Features) {
    let part = |name: &Option<Name>| name.as_ref().map(|name| name.text.clone()).unwrap_or_default();
    let line = definition.render(&part(&definition.group), &part(&definition.event));
    match parse_any(&line, features).result {
        Ok(Definition::Probe(again)) => assert_eq!(again.without_spans(), definition.without_spans()),
        other => panic!("{line:?} is not read as an event: {other:?}"),
    }
    assert!(explain(definition, (dialect, &line), features, &|_index| None).starts_with(&line));
}

/// The canonical line under the names that the definition has itself.
fn as_named(definition: &ProbeDefinition) -> String {
    let event = definition.event.as_ref().map_or("", |event| &event.text);
    let names = match &definition.group {
        Some(group) => format!(":{}/{event}", group.text),
        None if event.is_empty() => String::new(),
        None => format!(":{event}"),
    };
    definition.render("g", "e").replacen(":g/e", &names, 1)
}

/// A definition without its name.
fn meaning(definition: &ProbeDefinition) -> ProbeDefinition {
    ProbeDefinition { group: None, event: None, ..definition.without_spans() }
}

fn probe(line: &str, features: &Features) -> ProbeDefinition {
    match parse(line, features) {
        Ok(Definition::Probe(definition)) => definition,
        other => panic!("{line:?} is not read as a probe: {other:?}"),
    }
}

/// Every part of a definition is in its text.
fn check_places(text: &str, definition: &ProbeDefinition) {
    let place = definition.place.span();
    slice(text, definition.span.start, definition.span.end);
    slice(text, place.start, place.end);
    for argument in &definition.args {
        slice(text, argument.span.start, argument.span.end);
        check_fetch(text, &argument.fetch);
    }
}

fn check_fetch(text: &str, fetch: &Fetch) {
    slice(text, fetch.span.start, fetch.span.end);
    if let FetchKind::Deref { inner, .. } = &fetch.kind {
        check_fetch(text, inner);
    }
}

/// Panics unless both ends are in the text, in order, and on character boundaries.
fn slice(text: &str, start: usize, end: usize) {
    assert!(text.get(start..end).is_some(), "{start}..{end} of {text:?}");
}
