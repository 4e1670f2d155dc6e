//! Problems with names: the messages and hints, with the names that exist.
//!
//! Owns the texts. Never decides that a name is wrong.

use super::function::{Function, Unknown};
use super::path;
use super::system_call;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Kind, TypeId};
use kprobed_host::kernel::nearest_name;
use kprobed_lang::definition::{BtfMember, Code, Diagnostic, Span, listed};

/// Most names that a hint lists.
const LISTED_MAX: usize = 8;

/// BTF that is damaged.
pub(super) fn broken(at: Span, error: &BtfError) -> Diagnostic {
    Diagnostic::error(Code::BadBtfTid, at, format!("the kernel's BTF cannot be followed here: {error}"))
}

/// No types of the function.
pub(super) fn unknown(at: Span, unknown: &Unknown) -> Diagnostic {
    let problem = Diagnostic::error(Code::NoBtfEntry, at, unknown.message.clone());
    if unknown.hint.is_empty() { problem } else { problem.with_hint(unknown.hint.clone()) }
}

/// Several functions of that name.
pub(super) fn ambiguous(at: Span, function: &Function, severe: bool) -> Diagnostic {
    let own = function.prototype().unwrap_or_default();
    let message = format!("there are several functions `{}` with other parameters", function.name);
    let hint = format!("BTF has `{own}` and `{}`", function.others.join("` and `"));
    if severe {
        Diagnostic::error(Code::NoBtfEntry, at, message).with_hint(format!("{hint}: write NAME=$argN:TYPE"))
    } else {
        Diagnostic::warning(Code::AmbiguousTypes, at, message)
            .with_hint(format!("{hint}: the first is taken"))
    }
}

/// What is meant by words that are no parameters, and that people know from other tools.
fn known_elsewhere(name: &str) -> Option<String> {
    let number = name.strip_prefix("arg").filter(|number| number.parse::<u32>().is_ok());
    Some(match (name, number) {
        (_, Some("0")) => "write `$arg1`: the kernel counts arguments from 1".to_owned(),
        (_, Some(number)) => format!("write `$arg{number}`: the kernel counts arguments from 1"),
        ("comm", _) => "write `$comm`".to_owned(),
        ("retval", _) => "write `$retval`, in a return probe (`r`)".to_owned(),
        ("if", _) => "a filter does not belong into a definition: give it with `--filter`".to_owned(),
        ("pid" | "tid" | "tgid" | "cpu", _) => {
            "leave it out: every event has its CPU, and the thread, the process and the name of its task"
                .to_owned()
        }
        _ => return None,
    })
}

/// No parameter of that name.
pub(super) fn no_parameter(at: Span, function: &Function, name: &str, facts: &KernelFacts) -> Diagnostic {
    let names = function.parameters.iter().map(|parameter| parameter.name.as_str());
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let message = format!("`{}` has no parameter `{name}`", function.name);
    let of_call = names.first().and_then(|own| system_call::argument_hint(&function.name, own, name, facts));
    let by_names = || match nearest_name(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? Its parameters are {}", listed(&names, LISTED_MAX)),
        None if names.is_empty() => "it has no parameters".to_owned(),
        None => format!(
            "its parameters are {}; `kprobectl vars {}` shows its variables, by debug information",
            listed(&names, LISTED_MAX),
            function.name
        ),
    };
    let hint = of_call.or_else(|| known_elsewhere(name)).unwrap_or_else(by_names);
    Diagnostic::error(Code::NoBtfarg, at, message).with_hint(hint)
}

/// A number beyond the parameters.
pub(super) fn no_numbered(at: Span, function: &Function, number: u32) -> Diagnostic {
    let count = function.parameters.len();
    let message = format!("`{}` has {count} parameters, and no `$arg{number}`", function.name);
    let hint = format!("write `NAME=$arg{number}` to read the register or slot of that number");
    Diagnostic::error(Code::NoBtfarg, at, message).with_hint(hint)
}

/// `->` on a value that is not a pointer.
pub(super) fn no_pointer(btf: &Btf, ty: TypeId, member: &BtfMember, at: Span) -> Diagnostic {
    let text = btf.type_text(ty).unwrap_or_default();
    let message = format!("`{text}` is not a pointer");
    let problem = Diagnostic::error(Code::NoPtrStrct, at, message);
    if btf.resolved(ty).is_ok_and(|ty| matches!(ty.kind, Kind::Composite(_))) {
        problem.with_hint(format!("write `.{member}`: the structure itself is there"))
    } else {
        problem.with_hint("end the path here")
    }
}

/// A member of a type without members.
pub(super) fn no_structure(btf: &Btf, ty: TypeId, at: Span) -> Diagnostic {
    let text = btf.type_text(ty).unwrap_or_default();
    let declared_only = btf.resolved(ty).is_ok_and(|ty| matches!(ty.kind, Kind::Forward { .. }));
    let (message, hint) = if declared_only {
        (format!("the members of `{text}` are not in the kernel's BTF"), "write +OFFSET($argN):TYPE")
    } else {
        (format!("`{text}` has no members"), "end the path before it")
    };
    Diagnostic::error(Code::BadBtfTid, at, message).with_hint(hint)
}

/// An index of what is no array.
pub(super) fn no_array(btf: &Btf, ty: TypeId, member: &BtfMember, at: Span) -> Diagnostic {
    let text = btf.type_text(ty).unwrap_or_default();
    let problem = Diagnostic::error(Code::NoBtfField, at, format!("`{text}` is not an array"));
    if btf.resolved(ty).is_ok_and(|ty| matches!(ty.kind, Kind::Pointer(_))) {
        return problem.with_hint(format!("follow the pointer: NAME=+OFFSET(...{}):TYPE", member.name));
    }
    problem.with_hint(format!("write `{}` without an index", member.name))
}

/// An index behind the end of an array.
pub(super) fn no_element(member: &BtfMember, index: u32, count: u32, at: Span) -> Diagnostic {
    let message = format!("`{}` has {count} elements, and no [{index}]", member.name);
    let hint = match count {
        1 => "its element is [0]".to_owned(),
        _ => format!("its elements are [0] to [{}]", count - 1),
    };
    Diagnostic::error(Code::NoBtfField, at, message).with_hint(hint)
}

/// No member of that name.
pub(super) fn no_member(
    btf: &Btf,
    owner: TypeId,
    composite: Composite<'_>,
    name: &str,
    at: Span,
) -> Diagnostic {
    let text = btf.type_text(owner).unwrap_or_default();
    let names = path::member_names(btf, composite);
    let message = format!("`{text}` has no member `{name}`");
    let inner = path::inside_of_member(btf, composite, name).map(|inner| format!("{inner}.{name}"));
    let near = || nearest_name(name, names.iter().copied()).map(str::to_owned);
    let hint = match inner.or_else(near) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.is_empty() => "it has no members".to_owned(),
        None => format!("its members are {}", listed(&names, LISTED_MAX)),
    };
    Diagnostic::error(Code::NoBtfField, at, message).with_hint(hint)
}

/// `$retval` of a function that returns nothing.
pub(super) fn no_result(at: Span, function: &Function) -> Diagnostic {
    Diagnostic::error(Code::NoRetval, at, format!("`{}` returns nothing", function.name))
}

/// `:string` on a value that is not text.
pub(super) fn no_text(btf: &Btf, ty: TypeId, written: &str, at: Span) -> Diagnostic {
    let text = btf.type_text(ty).unwrap_or_default();
    let kind = btf.resolved(ty).map(|ty| ty.kind);
    let problem = Diagnostic::error(Code::BadType4Str, at, format!("`{text}` is not a string"));
    match kind {
        Ok(Kind::Pointer(_)) => {
            problem.with_hint(format!("if it points to a string, write `+0({written}):string`"))
        }
        Ok(Kind::Int(int)) if int.bytes == 8 => {
            problem.with_hint(format!("if it is the address of a string, write `+0({written}):string`"))
        }
        _ => problem.with_hint("leave the type out to record the value"),
    }
}

/// `:string` on a value whose type is not known.
pub(super) fn no_memory(at: Span) -> Diagnostic {
    Diagnostic::error(Code::BadString, at, "a string is read from memory, and this expression is a value")
}

/// `:string` on a number, which the kernel follows by mistake.
pub(super) fn followed_number(at: Span, written: &str) -> Diagnostic {
    let message = format!("`{written}` is not a pointer; the kernel dereferences it as if it was one");
    Diagnostic::warning(Code::PartOfValue, at, message)
}

/// A parameter that no probe can read.
pub(super) fn not_readable(at: Span, function: &Function, name: &str) -> Diagnostic {
    let message =
        format!("the parameter `{name}` of `{}` is in no register and not on the stack", function.name);
    Diagnostic::error(Code::NoBtfarg, at, message)
}

/// A value of which only the beginning is recorded.
pub(super) fn partial(at: Span, text: &str, read: &str) -> Diagnostic {
    let message = format!("`{text}` is larger than the {read} that are recorded");
    Diagnostic::warning(Code::PartOfValue, at, message)
        .with_hint("name the member that is wanted, or give an array type with its length")
}

/// A bit-field that is read with the type of the writer.
pub(super) fn whole_bytes(at: Span, name: &str) -> Diagnostic {
    let message = format!("`{name}` is a bit-field: with a type, the whole bytes around it are read");
    Diagnostic::warning(Code::PartOfValue, at, message)
        .with_hint("leave the type out to get the bit-field alone")
}

/// `$arg*` with nothing to expand.
pub(super) fn nothing_to_expand(at: Span, why: &str) -> Diagnostic {
    Diagnostic::error(Code::NosupAllArgs, at, format!("`$arg*` expands to no parameter: {why}"))
}
