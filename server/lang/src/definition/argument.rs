//! Argument parser: the names of a probe's arguments, the split into expression and type, and the
//! limits for all of them together.
//!
//! Owns one argument at a time, and the order of the kernel's checks. Never parses an expression or
//! a type itself. Follows kernel/trace/trace_probe.c:traceprobe_parse_probe_arg,
//! traceprobe_parse_probe_arg_body and traceprobe_expand_meta_args, and the order of checks in
//! kernel/trace/trace_kprobe.c.

use super::Span;
use super::ast::{Argument, Fetch, FetchKind, Name, ProbeKind};
use super::code::{Code, E2BIG, EINVAL};
use super::dangerous;
use super::diagnostic::{ArgumentStep, Diagnostic, Step, VariableWordStep};
use super::features::Features;
use super::fetch::{EATEN_BY_SHELL, FetchParser, NO_ARGUMENT, NOTHING, bad_argument_number, no_variable};
use super::guard;
use super::line::Word;
use super::names::{self, ARGUMENT_NAME_MAX_BYTES, RESERVED_FIELDS, is_identifier};
use super::program;
use super::types;

/// Most arguments of one probe (`MAX_TRACE_ARGS`).
pub(super) const ARGS_MAX: usize = 128;

/// Largest fixed part of a record (`MAX_PROBE_EVENT_SIZE`). Kernels without this limit drop records that do not fit a
/// sub-buffer without counting them, so it holds for all of them here.
pub(super) const RECORD_MAX_BYTES: usize = 3072;

/// The finding for too many arguments. 6.1 drops them silently, 6.12 refuses without a message in
/// `error_log`: see `Features::refuses_many_args`.
pub(super) fn too_many(count: usize, span: Span, features: &Features) -> Diagnostic {
    let message = format!("{count} arguments are too many");
    let problem = Diagnostic::error(Code::TooManyArgs, span, message).at(Step::ArgumentCount);
    if features.refuses_many_args { problem } else { problem.by_kprobed() }
}

/// Adds an argument to the bytes of the record. Only the first that makes it too large is a finding.
pub(super) fn too_large(
    (index, argument): (usize, &Argument),
    span: Span,
    fixed_bytes: &mut usize,
) -> Option<Diagnostic> {
    let fitted = *fixed_bytes <= RECORD_MAX_BYTES;
    *fixed_bytes += argument.fixed_bytes();
    (fitted && *fixed_bytes > RECORD_MAX_BYTES).then(|| {
        let message = format!("the record is larger than {RECORD_MAX_BYTES} bytes from here on");
        let problem = Diagnostic::error(Code::EventTooBig, span, message);
        problem.at(Step::Argument(index, ArgumentStep::Record))
    })
}

/// All arguments, one for each word, as far as it could be parsed, with at most one finding for each.
pub(super) fn parse_all(
    words: &[Word<'_>],
    kind: ProbeKind,
    fetch: FetchParser<'_>,
) -> (Vec<Argument>, Vec<Diagnostic>) {
    let FetchParser { features, .. } = fetch;
    let (mut args, mut findings) = (Vec::new(), Vec::new());
    // Most definitions have no such word, and the function is not looked up then.
    let becomes_names =
        words.iter().any(|word| word.text.starts_with("$arg")) && fetch.numbers_become_names();
    let refused = function_arguments(words, &fetch, becomes_names, &mut findings);
    if let (Some(first), Some(last)) = (words.get(ARGS_MAX), words.last()) {
        findings.push(too_many(words.len(), Span::new(first.start, last.end()), features));
    }
    let mut taken: Vec<String> = Vec::new();
    let mut fixed_bytes = 0;
    for (index, word) in words.iter().take(ARGS_MAX).enumerate() {
        let parser = ArgumentParser { fetch: FetchParser { argument: index, ..fetch }, kind, becomes_names };
        if refused.contains(&index) {
            args.push(parser.not_read(*word));
            continue;
        }
        let (argument, finding) = parser.parse(*word, &taken);
        if let Some(finding) = finding {
            findings.push(finding);
        } else {
            taken.extend(names::kernel_argument_name(&argument, index, becomes_names));
            let span = argument.fetch.span;
            findings.extend(too_large((index, &argument), span, &mut fixed_bytes));
        }
        args.push(argument);
    }
    (args, findings)
}

/// The checks of kernels from 6.5 on before any argument is parsed: words that start with `$arg`.
/// Returns which were refused.
fn function_arguments(
    words: &[Word<'_>],
    fetch: &FetchParser<'_>,
    becomes_names: bool,
    findings: &mut Vec<Diagnostic>,
) -> Vec<usize> {
    let FetchParser { features, .. } = fetch;
    let mut refused = Vec::new();
    if !features.fprobe {
        return refused;
    }
    let mut seen_all = false;
    let here = fetch.arguments_here();
    for (index, word) in words.iter().enumerate() {
        let Some(rest) = word.text.strip_prefix("$arg") else { continue };
        let (number, tail) = names::leading_index(rest);
        // The kernel checks such words before it replaces any of them
        // (kernel/trace/trace_probe.c:argv_has_var_arg).
        let form = Step::VariableWord(index, VariableWordStep::Form);
        let problem = if !here {
            let entry = Step::VariableWord(index, VariableWordStep::Entry);
            Some(fetch.no_arguments(Code::NofentryArgs, *word).at(entry))
        } else if let Some(after) = rest.strip_prefix('*') {
            let again = std::mem::replace(&mut seen_all, true);
            if again {
                Some(word.error(Code::DoubleArgs, "a second `$arg*`").at(form))
            } else if !features.btf_args {
                Some(word.error(Code::NosupBtfarg, "this kernel does not know the parameters of functions"))
            } else if !after.is_empty() {
                let message = format!("the kernel ignores `{after}` after `$arg*`");
                Some(word.tail("$arg*".len()).error(Code::IgnoredText, message))
            } else {
                None
            }
        } else {
            match number {
                // Without parameters to expand to, the kernel parses the word with the others, in
                // their order.
                Some(_) if !becomes_names => None,
                Some(_) if !tail.is_empty() && !tail.starts_with(':') => {
                    Some(no_variable(Code::VarTail, *word))
                }
                // With BTF, a number beyond the parameters is not a parameter; the kernel's own
                // check of 0 is missing.
                Some(0) => Some(bad_argument_number(*word)),
                Some(number) if number > 2048 => {
                    Some(word.error(Code::NoBtfarg, format!("no function has an argument `$arg{number}`")))
                }
                Some(_) => None,
                None => Some(no_variable(Code::BadVar, *word).at(form)),
            }
        };
        if let Some(problem) = problem {
            let is_placed = problem.step != Step::Line;
            let step = if is_placed { problem.step } else { Step::Expansion(index) };
            findings.push(problem.at(step));
            refused.push(index);
        }
    }
    refused
}

pub(super) struct ArgumentParser<'f> {
    pub(super) fetch: FetchParser<'f>,
    pub(super) kind: ProbeKind,
    pub(super) becomes_names: bool,
}

impl ArgumentParser<'_> {
    fn features(&self) -> &Features {
        self.fetch.features
    }

    /// The placeholder for a word that was not parsed.
    fn not_read(&self, word: Word<'_>) -> Argument {
        // Kernels that check such words first require a function entry for each of them, and
        // replace numbers.
        let kind = match word.text.strip_prefix("$arg").filter(|_| self.features().fprobe) {
            Some(rest) => match names::leading_index(rest) {
                (Some(number @ 1..=2048), tail) if tail.is_empty() || tail.starts_with(':') => {
                    u32::try_from(number).map_or(NO_ARGUMENT, FetchKind::Argument)
                }
                _ => NO_ARGUMENT,
            },
            None => NOTHING,
        };
        Argument { name: None, fetch: Fetch { kind, span: word.span() }, ty: None, span: word.span() }
    }

    /// The argument as far as it can be parsed, and why no further.
    fn parse(&self, word: Word<'_>, taken: &[String]) -> (Argument, Option<Diagnostic>) {
        let step = |step| move |problem: Diagnostic| problem.at(Step::Argument(self.fetch.argument, step));
        if word.text == "$arg*" && self.features().names_parameters() && self.fetch.arguments_here() {
            let fetch = Fetch { kind: FetchKind::AllArguments, span: word.span() };
            return (Argument { name: None, fetch, ty: None, span: word.span() }, None);
        }
        let not_read = |finding| (self.not_read(word), Some(finding));
        let (name, body) = match self.name(word, taken).map_err(step(ArgumentStep::Name)) {
            Ok(named) => named,
            Err(finding) => return not_read(finding),
        };
        // A body that is too long is not parsed at all.
        if let Err(finding) = self.check_length(body).map_err(step(ArgumentStep::Length)) {
            return not_read(finding);
        }
        let (expression, ty) =
            body.split_once(':').map_or((body, None), |(expression, ty)| (expression, Some(ty)));
        let text_only = matches!(expression.text, "$comm" | "$COMM") || expression.text.starts_with("\\\"");
        let ty = ty.map(|ty| types::parse(ty, text_only, self.features())).transpose();
        let ty = match ty.map_err(step(ArgumentStep::Type)) {
            Ok(ty) => ty,
            Err(finding) => return not_read(finding),
        };
        let (fetch, finding) = self.fetch.parse(expression, 0);
        let (ty, late) = ty.unzip();
        let argument = Argument { name, fetch, ty, span: word.span() };
        let finding = finding
            .or_else(|| self.misfit(&argument, late.flatten()).map(step(ArgumentStep::Fit)))
            .or_else(|| dangerous::refused(&argument, self.features()).map(step(ArgumentStep::Own)));
        (argument, finding)
    }

    /// Why type and expression do not fit. `late` is the problem of the bits of the type.
    pub(super) fn misfit(&self, argument: &Argument, late: Option<Diagnostic>) -> Option<Diagnostic> {
        match program::check(argument, self.kind, self.features()) {
            // The kernel checks the bits before it checks whether the value can be an array.
            Err(problem) if late.is_none() || problem.code != Code::BadString => Some(problem),
            _ => late,
        }
    }

    /// The name before the `=`, and the text after it. Without a written name: checks that the one
    /// that the kernel makes is free.
    pub(super) fn name<'w>(
        &self,
        word: Word<'w>,
        taken: &[String],
    ) -> Result<(Option<Name>, Word<'w>), Diagnostic> {
        match word.split_once('=') {
            Some((name, body)) => Ok((Some(check_name(name, taken)?), body)),
            None => self.check_generated_name(word, taken).map(|()| (None, word)),
        }
    }

    pub(super) fn check_length(&self, body: Word<'_>) -> Result<(), Diagnostic> {
        let max = self.features().expression_max_bytes;
        // The kernel measures `%pd` and `%pD` after it has expanded them to dereferences.
        let length = match body.text.rsplit_once(':') {
            Some((value, "%pd")) if self.features().percent_pd => value.len() + DENTRY_NAME_BYTES,
            Some((value, "%pD")) if self.features().percent_pd => value.len() + FILE_NAME_BYTES,
            _ => body.text.len(),
        };
        if length > max {
            let message = format!("the expression has {length} bytes, this kernel takes {max}");
            // Since the commit that added function probes.
            let errno = if self.features().fprobe { E2BIG } else { EINVAL };
            return Err(body.error(Code::ArgTooLong, message).with_errno(errno));
        }
        if length == 0 {
            let problem = body.error(Code::NoArgBody, "there is nothing after the `=`");
            return Err(problem.with_hint(EATEN_BY_SHELL));
        }
        Ok(())
    }

    /// Without a name the kernel makes one, which can be in use: `arg2=%di %si`.
    fn check_generated_name(&self, word: Word<'_>, taken: &[String]) -> Result<(), Diagnostic> {
        let expression = word.text.split(':').next().unwrap_or_default();
        // `%pd` and `%pD` are expanded before the name is made: it is not a bare name then.
        let is_written_out =
            self.features().percent_pd && (word.text.ends_with(":%pd") || word.text.ends_with(":%pD"));
        if !is_written_out && self.features().names_parameters() && is_identifier(expression) {
            return check_free(expression, word.span(), taken);
        }
        if !is_written_out && self.becomes_names && expression.starts_with("$arg") {
            return Ok(());
        }
        check_free(&names::positional(self.fetch.argument), word.span(), taken)
    }
}

/// What `+0x0(+0x28(` and `)):string` add to an expression (offsets of the members differ, but have
/// two digits).
const DENTRY_NAME_BYTES: usize = 20;
/// As above, for one more level.
const FILE_NAME_BYTES: usize = 27;

fn check_name(name: Word<'_>, taken: &[String]) -> Result<Name, Diagnostic> {
    if name.text.len() > ARGUMENT_NAME_MAX_BYTES {
        return Err(name.error(Code::ArgNameTooLong, format!("the name has {} bytes", name.text.len())));
    }
    if name.text.is_empty() {
        let equals = Span::new(name.start, name.start + 1);
        return Err(Diagnostic::error(Code::NoArgName, equals, "there is no name before the `=`"));
    }
    if !is_identifier(name.text) {
        return Err(name.error(Code::BadArgName, format!("`{}` is not a name", name.text)));
    }
    check_free(name.text, name.span(), taken)?;
    Ok(Name { text: name.text.to_owned(), span: name.span() })
}

fn check_free(name: &str, span: Span, taken: &[String]) -> Result<(), Diagnostic> {
    let message = if RESERVED_FIELDS.contains(&name) {
        format!("every event has a field `{name}` already")
    } else if name.starts_with(guard::PREFIX) {
        let message =
            format!("names that start with `{}` are those of hidden arguments of kprobed", guard::PREFIX);
        return Err(Diagnostic::error(Code::ReservedArgName, span, message));
    } else if taken.iter().any(|other| other == name) {
        format!("there is another argument `{name}`")
    } else {
        return Ok(());
    };
    Err(Diagnostic::error(Code::UsedArgName, span, message))
}
