//! Argument expansion: `$arg*` and plain `$argN` become names of parameters
//! (kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg).
//!
//! Owns the expansion and its limit. Never resolves the names.

use super::function::{Function, Unknown};
use super::problems;
use kprobed_lang::definition::{Argument, BtfRoot, Code, Diagnostic, Fetch, FetchKind, PartStep, Step};

/// Bytes that the kernel has for the expanded words of one definition (`MAX_BTF_ARGS_LEN`).
const EXPANDED_MAX_BYTES: usize = 128;

/// The expansion of one definition.
pub(super) struct Expansion<'f> {
    function: Result<&'f Function, &'f Unknown>,
    /// Whether the kernel does this by itself, so that its limits hold; other kernels read `$argN`
    /// as a number, which it stays.
    native: bool,
    used_bytes: usize,
    has_seen_all: bool,
}

impl<'f> Expansion<'f> {
    pub(super) fn new(function: Result<&'f Function, &'f Unknown>, native: bool) -> Self {
        Self { function, native, used_bytes: 0, has_seen_all: false }
    }

    /// The expansion of the argument of this index, or why the kernel refuses it.
    pub(super) fn expand(&mut self, index: usize, argument: &Argument) -> Result<Vec<Argument>, Diagnostic> {
        let step = if self.native {
            Step::Expansion(index)
        } else {
            Step::part(index, argument.span.start, PartStep::LookUp)
        };
        match (&argument.fetch.kind, &argument.name) {
            (FetchKind::AllArguments, _) => self.all(argument),
            // 0 is the number of an argument that could not be parsed.
            (FetchKind::Argument(number @ 1..), None) if self.native => {
                self.numbered(argument, *number).map(|argument| vec![argument])
            }
            _ => Ok(vec![argument.clone()]),
        }
        .map_err(|problem| problem.at(step))
    }

    fn all(&mut self, argument: &Argument) -> Result<Vec<Argument>, Diagnostic> {
        if std::mem::replace(&mut self.has_seen_all, true) {
            return Err(Diagnostic::error(Code::DoubleArgs, argument.span, "a second `$arg*`"));
        }
        let function = parameters(argument, self.function)?;
        let mut out = Vec::with_capacity(function.parameters.len());
        for parameter in &function.parameters {
            if parameter.name.is_empty() {
                // 6.12 makes an empty word of it, and refuses that.
                if self.native {
                    let message = format!("`{}` has a parameter without a name (`...`)", function.name);
                    return Err(Diagnostic::error(Code::NoArgBody, argument.span, message)
                        .with_hint("name the parameters that you need"));
                }
                continue;
            }
            out.push(named(argument, &parameter.name));
            if self.native {
                take(&mut self.used_bytes, parameter.name.len(), argument)?;
            }
        }
        Ok(out)
    }

    fn numbered(&mut self, argument: &Argument, number: u32) -> Result<Argument, Diagnostic> {
        let Some(function) = self.function.ok().filter(|function| !function.parameters.is_empty()) else {
            return Ok(argument.clone());
        };
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let Some(parameter) = index.and_then(|index| function.parameters.get(index)) else {
            return Err(problems::no_numbered(argument.span, function, number));
        };
        if parameter.name.is_empty() {
            let code = if argument.ty.is_none() { Code::NoArgBody } else { Code::BadFetchArg };
            return Err(Diagnostic::error(code, argument.span, "this parameter has no name")
                .with_hint(format!("write `NAME=$arg{number}`")));
        }
        let type_bytes = argument.span.end.saturating_sub(argument.fetch.span.end);
        take(&mut self.used_bytes, parameter.name.len() + type_bytes, argument)?;
        Ok(Argument { ty: argument.ty, ..named(argument, &parameter.name) })
    }
}

/// The function, if it has parameters at all.
fn parameters<'f>(
    argument: &Argument,
    function: Result<&'f Function, &Unknown>,
) -> Result<&'f Function, Diagnostic> {
    match function {
        Ok(function) if !function.parameters.is_empty() => Ok(function),
        Ok(function) => {
            let why = format!("`{}` has none", function.name);
            Err(problems::nothing_to_expand(argument.span, &why))
        }
        Err(unknown) => Err(problems::nothing_to_expand(argument.span, &unknown.message)),
    }
}

/// A parameter by its name, in place of `argument`.
fn named(argument: &Argument, name: &str) -> Argument {
    let span = argument.span;
    let kind = FetchKind::Btf { root: BtfRoot::Parameter(name.to_owned()), members: Vec::new() };
    Argument { name: None, fetch: Fetch { kind, span }, ty: None, span }
}

fn take(used: &mut usize, bytes: usize, argument: &Argument) -> Result<(), Diagnostic> {
    if bytes >= EXPANDED_MAX_BYTES - *used {
        let message = format!(
            "the names of the parameters need more than the {EXPANDED_MAX_BYTES} bytes of the kernel"
        );
        return Err(Diagnostic::error(Code::Args2Long, argument.span, message));
    }
    *used += bytes + 1;
    Ok(())
}
