//! Limits of the kernel for a resolved line, in which offsets replace names.
//!
//! Owns the check of a tree, with the checks that the parser makes of a text: an expression can
//! become longer than the kernel accepts, a name can be a reserved one. Shows each problem at what
//! the user wrote. Never parses a text.

use super::Span;
use super::argument::{ARGS_MAX, ArgumentParser, too_large, too_many};
use super::ast::{Argument, FetchKind, ProbeDefinition};
use super::code::Code;
use super::dangerous;
use super::diagnostic::{ArgumentStep, Diagnostic, Step};
use super::features::Features;
use super::fetch::FetchParser;
use super::line::{LINE_MAX_BYTES, Word, line_too_long};
use super::names::kernel_argument_name;
use super::parse::{check_event, check_group};
use super::short::UnknownKernel;

/// The kernel's problems with the canonical line of `definition`, each at the part of the user's
/// text from which it comes, in the order of the kernel's steps.
pub fn exceeded_limits(definition: &ProbeDefinition, features: &Features) -> Vec<Diagnostic> {
    let group = definition.group.as_ref().map_or("kprobes", |group| &group.text);
    let event =
        definition.event.as_ref().map_or_else(|| definition.default_event_name(), |name| name.text.clone());
    let line = definition.render(group, &event);
    let head = line.split(' ').next().unwrap_or_default();
    let of_event = definition.event.as_ref().or(definition.group.as_ref());
    let of_event = of_event.map_or(definition.span, |name| name.span);
    if line.len() > LINE_MAX_BYTES {
        return vec![shown(line_too_long(of_event, line.len()), of_event, head)];
    }
    let whole = |text| Word { start: 0, text };
    let group = check_group(whole(group), features).err().map(|problem| problem.at(Step::Group));
    let event = check_event(whole(&event)).err().map(|problem| problem.at(Step::Event));
    let mut found: Vec<_> =
        group.into_iter().chain(event).map(|problem| shown(problem, of_event, head)).collect();
    if definition.args.len() > ARGS_MAX {
        let span = definition.args.get(ARGS_MAX).map_or(definition.span, |argument| argument.span);
        found.push(too_many(definition.args.len(), span, features));
    }
    found.extend(of_arguments(definition, features));
    found
}

fn of_arguments(definition: &ProbeDefinition, features: &Features) -> Vec<Diagnostic> {
    let fetch = FetchParser::new(Some(&definition.place), definition.kind, features, &UnknownKernel);
    let becomes_names = features.btf_args;
    let mut found = Vec::new();
    let mut taken: Vec<String> = Vec::new();
    let mut fixed_bytes = 0;
    for (index, argument) in definition.args.iter().take(ARGS_MAX).enumerate() {
        let fetch = FetchParser { argument: index, ..fetch };
        let checks = ArgumentParser { fetch, kind: definition.kind, becomes_names };
        let text = argument.to_string();
        if let Some((step, problem)) = of_argument(argument, &text, &checks, &taken) {
            found.push(shown(problem.at(Step::Argument(index, step)), argument.span, &text));
            continue;
        }
        taken.extend(kernel_argument_name(argument, index, becomes_names));
        // The kernel's caret for the size of an argument is at its expression.
        let start = if argument.has_equals_sign() { argument.fetch.span.start } else { argument.span.start };
        let span = Span::new(start, argument.span.end);
        let problem = too_large((index, argument), span, &mut fixed_bytes);
        found.extend(problem.map(|problem| shown(problem, span, &text)));
    }
    found
}

/// The first problem of an argument with this text.
fn of_argument(
    argument: &Argument,
    text: &str,
    checks: &ArgumentParser<'_>,
    taken: &[String],
) -> Option<(ArgumentStep, Diagnostic)> {
    if argument.fetch.kind == FetchKind::AllArguments {
        return None;
    }
    let features = checks.fetch.features;
    let body = match checks.name(Word { start: 0, text }, taken) {
        Ok((_name, body)) => body,
        Err(problem) => return Some((ArgumentStep::Name, problem)),
    };
    if let Err(problem) = checks.check_length(body) {
        return Some((ArgumentStep::Length, problem));
    }
    if features.nesting_max.is_some_and(|max| argument.fetch.levels().count() > max) {
        let problem = Diagnostic::error(Code::TooManyNested, argument.span, "too many nested dereferences");
        return Some((ArgumentStep::Fit, problem));
    }
    let misfit = checks.misfit(argument, None).map(|problem| (ArgumentStep::Fit, problem));
    misfit.or_else(|| dangerous::refused(argument, features).map(|problem| (ArgumentStep::Own, problem)))
}

/// Moves the problem of a word of the kernel's line to the user's text.
fn shown(problem: Diagnostic, span: Span, word: &str) -> Diagnostic {
    Diagnostic { span, message: format!("{} (the kernel gets `{word}`)", problem.message), ..problem }
}
