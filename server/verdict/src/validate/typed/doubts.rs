//! Doubts about arguments: what the kernel records, and what is hardly meant.
//!
//! Owns the comparison of registers and of `$argN` with the parameters of the function. Never refuses
//! anything: the kernel does not look at the types of what it records by number.

use super::function::{Function, Parameter, look_up_only};
use super::passing::Words;
use super::system_call;
use crate::validate::report::Report;
use kprobed_host::kernel::btf::Kind;
use kprobed_host::kernel::{KernelFacts, Symbol};
use kprobed_lang::definition::{
    Argument, BaseType, Code, Diagnostic, FetchKind, Place, ProbeDefinition, ProbeKind, guard,
};

/// What is doubtful in the arguments of a definition, as it was written.
pub fn doubts(definition: &ProbeDefinition, report: &Report, facts: &KernelFacts) -> Vec<Diagnostic> {
    let is_of_argument = |argument: &Argument| root(argument).is_some();
    let has_register = |argument: &Argument| guard::register_at_return(definition, argument).is_some();
    if !definition.args.iter().any(|argument| is_of_argument(argument) || has_register(argument)) {
        return Vec::new();
    }
    // Elsewhere a number is whatever the register holds there.
    let has_arguments = report.is_entry || definition.kind == ProbeKind::Return;
    let function = has_arguments.then(|| function_at(definition, report, facts)).flatten();
    let of_argument = |argument: &Argument| {
        let of_register = at_return(definition, argument, function.as_ref());
        let of_number = || numbered(argument, function.as_ref()?);
        of_register.or_else(of_number)
    };
    definition.args.iter().filter_map(of_argument).collect()
}

/// The function of a probe, if there is one of that name.
fn function_at(definition: &ProbeDefinition, report: &Report, facts: &KernelFacts) -> Option<Function> {
    let start = report.code_range.as_ref().map(|range| range.start);
    let (name, module) = match (&definition.place, start) {
        (Place::Symbol { module, symbol, .. }, start)
            if start.is_none()
                || facts.symbols.named(symbol, module.as_deref()).any(|one| Some(one.address) == start) =>
        {
            (symbol.as_str(), module.as_deref())
        }
        (_, Some(start)) => {
            let symbol = facts.symbols.locate(start)?.symbol;
            (symbol.name, symbol.module)
        }
        (_, None) => return None,
    };
    // Of functions of one name, BTF does not say which it describes.
    let is_only = facts.symbols.named(name, module).filter(Symbol::is_code).count() <= 1;
    is_only.then(|| look_up_only(name, module, facts)).flatten()
}

/// N of the `$argN` that an argument reads, or reads behind, and whether it follows it as a pointer.
fn root(argument: &Argument) -> Option<(u32, bool)> {
    let followed = matches!(argument.fetch.kind, FetchKind::Deref { .. });
    match argument.fetch.root().kind {
        FetchKind::Argument(number) => Some((number, followed)),
        _ => None,
    }
}

/// A register that held an argument at the entry of the function.
fn at_return(
    definition: &ProbeDefinition,
    argument: &Argument,
    function: Option<&Function>,
) -> Option<Diagnostic> {
    let (register, number) = guard::register_at_return(definition, argument)?;
    let parameter = function.and_then(|function| Some(function.at(number)?.0.name.clone()));
    let held = match parameter.filter(|name| !name.is_empty()) {
        Some(name) => format!("`{name}`"),
        None => format!("argument {number}"),
    };
    let register = register.name();
    let message = format!(
        "`%{register}` held {held} at the entry of the function, and may hold anything when it returns: its values are unproven, and shown with `(?)`"
    );
    let hint = match register {
        "dx" => {
            "only a result of 16 bytes has its second half there: record arguments with a probe at the entry"
        }
        _ => "record the arguments of the function with a probe at its entry",
    };
    Some(Diagnostic::warning(Code::RegisterAtReturn, argument.fetch.span, message).with_hint(hint))
}

/// `$argN` that is read as something else than the parameter that it is.
fn numbered(argument: &Argument, function: &Function) -> Option<Diagnostic> {
    let (number, followed) = root(argument)?;
    let Some((parameter, part)) = function.at(number) else { return behind(argument, number, function) };
    let Parameter { name, ty, words } = parameter;
    let btf = &function.btf;
    let declared = btf.declaration(*ty, name).ok()?;
    let doubt = |message: String| Diagnostic::warning(Code::ArgumentType, argument.fetch.span, message);
    if let Some(Words { first, count }) = words.filter(|words| words.count > 1) {
        let message = format!("`$arg{number}` is word {} of {count} of the parameter `{declared}`", part + 1);
        let usual = usize::try_from(number).ok().and_then(|number| function.parameters.get(number - 1));
        let hint = match usual.and_then(|usual| Some((&usual.name, usual.words?.first))) {
            Some((usual, at)) if at != number && !usual.is_empty() => {
                format!("parameter {number} of `{}`, `{usual}`, is `$arg{at}`", function.name)
            }
            _ => format!("it is in `$arg{first}` to `$arg{}`", first + count - 1),
        };
        return Some(doubt(message).with_hint(hint));
    }
    let kind = btf.resolved(*ty).ok()?.kind;
    let is_pointer = matches!(kind, Kind::Pointer(_));
    let is_narrow = match argument.ty.map(|ty| ty.base) {
        Some(BaseType::Unsigned(width) | BaseType::Signed(width) | BaseType::Hex(width)) => width.bits() < 64,
        Some(BaseType::Char) => true,
        _ => false,
    };
    if is_pointer && is_narrow && !followed {
        let message = format!("`{argument}` is a part of the pointer `{declared}`");
        let hint = system_call::arguments_hint(&function.name, name)
            .unwrap_or_else(|| format!("write `{}` for the pointer, or follow it", whole(argument)));
        return Some(doubt(message).with_hint(hint));
    }
    let bytes = btf.size(*ty).ok().flatten();
    let is_number = matches!(kind, Kind::Int(_) | Kind::Enum { .. });
    if followed && is_number && bytes.is_some_and(|bytes| bytes < 8) {
        let message = format!("`$arg{number}` is not a pointer: it is `{declared}`");
        return Some(doubt(message).with_hint(format!("write `{name}=$arg{number}`")));
    }
    None
}

/// `$argN` behind the last parameter. What `...` stands for may be there.
fn behind(argument: &Argument, number: u32, function: &Function) -> Option<Diagnostic> {
    let places = function.parameters.iter().map(|parameter| parameter.words);
    let words: Vec<Words> = places.collect::<Option<_>>()?;
    let last = words.iter().map(|words| words.first + words.count - 1).max().unwrap_or(0);
    if number <= last {
        return None;
    }
    let name = &function.name;
    let message = format!("`{name}` has no `$arg{number}`: what is recorded is not an argument of it");
    let parameter = function.parameters.first().map_or("", |parameter| parameter.name.as_str());
    let hint = match (system_call::arguments_hint(name, parameter), function.prototype()) {
        (Some(hint), _) => hint,
        (None, prototype) => format!("the function is `{}`", prototype.ok()?),
    };
    Some(Diagnostic::warning(Code::ArgumentType, argument.fetch.span, message).with_hint(hint))
}

/// The argument with a type that takes the whole pointer.
fn whole(argument: &Argument) -> String {
    let name = argument.name.as_ref().map(|name| format!("{}=", name.text)).unwrap_or_default();
    format!("{name}{}:x64", argument.fetch)
}
