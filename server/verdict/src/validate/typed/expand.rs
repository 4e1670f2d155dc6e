//! `$arg*` and plain `$argN` become names of parameters
//! (kernel/trace/trace_probe.c:traceprobe_expand_meta_args, sprint_nth_btf_arg).

use super::function::{Function, Unknown};
use super::problems;
use kprobed_lang::definition::{Argument, BtfRoot, Code, Diagnostic, Fetch, FetchKind};

/// Bytes that the kernel has for the expanded words of one definition (`MAX_BTF_ARGS_LEN`).
const EXPANDED_MAX_BYTES: usize = 128;

/// The arguments with their names, or what the kernel refuses before it looks at any argument. `native`: the kernel does this by itself, so
/// its limits hold; other kernels know `$argN` as a number, and so it stays one.
pub(super) fn expand(
    args: &[Argument],
    function: Result<&Function, &Unknown>,
    native: bool,
) -> Result<Vec<Argument>, Diagnostic> {
    let mut out = Vec::with_capacity(args.len());
    let mut used_bytes = 0;
    let mut seen = false;
    for argument in args {
        match (&argument.fetch.kind, &argument.name) {
            (FetchKind::AllArguments, _) => {
                if std::mem::replace(&mut seen, true) {
                    return Err(Diagnostic::error(Code::DoubleArgs, argument.span, "a second `$arg*`"));
                }
                let function = parameters(argument, function)?;
                for parameter in &function.parameters {
                    if parameter.name.is_empty() {
                        // 6.12 makes an empty word of it, and refuses that.
                        if native {
                            let message =
                                format!("`{}` has a parameter without a name (`...`)", function.name);
                            return Err(Diagnostic::error(Code::NoArgBody, argument.span, message)
                                .with_hint("name the parameters that you need"));
                        }
                        continue;
                    }
                    out.push(named(argument, &parameter.name));
                    if native {
                        take(&mut used_bytes, parameter.name.len(), argument)?;
                    }
                }
            }
            (FetchKind::Argument(number), None) if native => {
                let Some(function) = function.ok().filter(|function| !function.parameters.is_empty()) else {
                    out.push(argument.clone());
                    continue;
                };
                let index = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
                let Some(parameter) = index.and_then(|index| function.parameters.get(index)) else {
                    return Err(problems::no_numbered(argument.span, function, *number));
                };
                if parameter.name.is_empty() {
                    let (code, message) = match argument.ty {
                        None => (Code::NoArgBody, "this parameter has no name"),
                        Some(_) => (Code::BadFetchArg, "this parameter has no name"),
                    };
                    return Err(Diagnostic::error(code, argument.span, message)
                        .with_hint(format!("write `NAME=$arg{number}`")));
                }
                let type_bytes = argument.span.end.saturating_sub(argument.fetch.span.end);
                take(&mut used_bytes, parameter.name.len() + type_bytes, argument)?;
                out.push(Argument { ty: argument.ty, ..named(argument, &parameter.name) });
            }
            _ => out.push(argument.clone()),
        }
    }
    Ok(out)
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

/// A parameter by its name, in the place of `argument`.
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
