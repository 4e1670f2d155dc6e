//! What the running kernel would say to a definition that was written in another dialect, or with names.
//!
//! The limits of the kernel hold for the line that it gets, not for what the user wrote: an expression can
//! become longer, a type can be unknown. So the canonical line is read once more as the kernel would, and its
//! problems are shown at what the user wrote.

use super::Span;
use super::ast::{Definition, ProbeDefinition};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::parse::parse;

/// The problems of the canonical line of `definition`, each at the part of the user's text that it comes from.
pub fn problems(definition: &ProbeDefinition, features: &Features) -> Vec<Diagnostic> {
    let group = definition.group.as_ref().map_or("kprobes", |group| &group.text);
    let event =
        definition.event.as_ref().map_or_else(|| definition.default_event_name(), |name| name.text.clone());
    let line = definition.render(group, &event);
    match parse(&line, features) {
        Ok(Definition::Probe(read)) if same_meaning(&read, definition) => Vec::new(),
        Ok(_) => {
            let message = format!("the kernel would read `{line}` as something else");
            vec![Diagnostic::error(Code::NoEquivalent, definition.span, message)]
        }
        Err(problems) => problems.into_iter().map(|problem| placed(problem, definition, &line)).collect(),
    }
}

fn same_meaning(read: &ProbeDefinition, definition: &ProbeDefinition) -> bool {
    let (read, meant) = (read.without_spans(), definition.without_spans());
    (read.kind, read.maxactive, &read.place, &read.args)
        == (meant.kind, meant.maxactive, &meant.place, &meant.args)
}

/// The problem at what the user wrote for the word of `line` that it is about.
fn placed(problem: Diagnostic, definition: &ProbeDefinition, line: &str) -> Diagnostic {
    let index = line.get(..problem.span.start).unwrap_or(line).matches(' ').count();
    let event = || definition.event.as_ref().or(definition.group.as_ref()).map(|name| name.span);
    let span: Span = match index {
        0 => event(),
        1 => Some(definition.place.span()),
        _ => definition.args.get(index - 2).map(|argument| match problem.code {
            // The kernel's caret for what an argument takes up stands at its expression.
            Code::EventTooBig if argument.has_equals_sign() => {
                Span::new(argument.fetch.span.start, argument.span.end)
            }
            _ => argument.span,
        }),
    }
    .unwrap_or(definition.span);
    let word = line.split(' ').nth(index).unwrap_or_default();
    Diagnostic { span, message: format!("{} (the kernel gets `{word}`)", problem.message), ..problem }
}
