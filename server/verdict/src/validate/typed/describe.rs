//! Type descriptions of functions and their parameters, for people who write a definition.
//!
//! Owns the texts, in messages of the API. Never judges a definition.

use super::default::{self, Chosen};
use super::function::{self, Function};
use super::path;
use super::problems;
use crate::validate::{functions, spelling};
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, BtfError, Kind, TypeId};
use kprobed_lang::definition::{
    BtfMember, BtfRoot, Code, Definition, Diagnostic, Features, Fetch, FetchKind, Span, Type, parse,
};
use kprobed_proto::v1;

/// Why something cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// There is no such function, or its types are not known.
    #[error("{0}")]
    Function(Diagnostic),
    /// The path leads to nothing. The span is a part of the path.
    #[error("{0}")]
    Path(Diagnostic),
}

/// Describes a function.
///
/// # Errors
/// [`DescribeError::Function`].
pub fn describe_function(
    name: &str,
    module: Option<&str>,
    facts: &KernelFacts,
) -> Result<v1::FunctionDescription, DescribeError> {
    let function = find(name, module, facts)?;
    described(&function, facts)
        .map_err(|error| DescribeError::Function(problems::broken(Span::new(0, name.len()), &error)))
}

/// Describes the members of the structure that a path of that function leads to: `file`,
/// `file->f_inode`, `$retval`.
///
/// # Errors
/// See [`DescribeError`].
pub fn describe_members(
    name: &str,
    module: Option<&str>,
    path: &str,
    facts: &KernelFacts,
) -> Result<v1::StructureDescription, DescribeError> {
    let function = find(name, module, facts)?;
    members_of(&function, path, facts).map_err(DescribeError::Path)
}

fn find(name: &str, module: Option<&str>, facts: &KernelFacts) -> Result<Function, DescribeError> {
    function::look_up(name, module, facts).map_err(|unknown| {
        let at = Span::new(0, name.len());
        let exists = facts.symbols.named(name, module).next().is_some();
        let problem = problems::unknown(at, &unknown);
        let absent = module.filter(|module| !facts.symbols.has_module(module));
        DescribeError::Function(if exists {
            problem
        } else if let Some(module) = absent {
            let message = format!("no module `{module}` is loaded");
            let load = || format!("load it first: `modprobe {module}`");
            let hint = spelling::built_in(name, module, facts).unwrap_or_else(load);
            Diagnostic::error(Code::NoBtfEntry, at, message).with_hint(hint)
        } else {
            let hint = spelling::known_otherwise(name, module, facts)
                .or_else(|| type_named(name, facts))
                .unwrap_or_else(|| spelling::similar_place(name, module, facts));
            let message = match module.filter(|module| facts.symbols.has_module(module)) {
                Some(module) => format!("the module `{module}` has no function `{name}`"),
                None => format!("the kernel has no function `{name}`"),
            };
            Diagnostic::error(Code::NoBtfEntry, at, message).with_hint(hint)
        })
    })
}

/// What to ask for instead, if the name is that of a structure of the kernel.
fn type_named(name: &str, facts: &KernelFacts) -> Option<String> {
    let types = facts.types.vmlinux().ok()?;
    let mut found = types.types().flatten();
    let meant = found.find(|ty| ty.name == name && matches!(ty.kind, Kind::Composite(_)))?;
    let text = types.type_text(meant.id).ok()?;
    Some(format!("`{text}` is a type: give a function, and a parameter that leads to one"))
}

fn described(function: &Function, facts: &KernelFacts) -> Result<v1::FunctionDescription, BtfError> {
    let btf = &function.btf;
    let return_fetch_type = if function.result == TypeId::VOID {
        String::new()
    } else {
        chosen_text(default::of(btf, function.result, false)?)
    };
    let mut parameters = Vec::with_capacity(function.parameters.len());
    for parameter in &function.parameters {
        let readable = parameter.words.map(|words| words.first);
        let fetch_type = readable.map(|_| default::of(btf, parameter.ty, false)).transpose()?;
        let variadic = parameter.ty == TypeId::VOID;
        parameters.push(v1::ParameterDescription {
            name: parameter.name.clone(),
            c_type: if variadic { "...".to_owned() } else { btf.type_text(parameter.ty)? },
            argument: readable.map(|first| format!("$arg{first}")).unwrap_or_default(),
            fetch_type: fetch_type.map(chosen_text).unwrap_or_default(),
            has_members: composite_behind(btf, parameter.ty)?.is_some_and(|(_, pointer)| pointer),
        });
    }
    let same_name = functions::count(&function.name, function.module.as_deref(), facts);
    Ok(v1::FunctionDescription {
        name: function.name.clone(),
        module: function.module.clone().unwrap_or_default(),
        prototype: function.prototype()?,
        return_type: btf.type_text(function.result)?,
        return_fetch_type,
        parameters,
        other_prototypes: function.others.clone(),
        same_name: u32::try_from(same_name).unwrap_or(u32::MAX),
    })
}

fn chosen_text(chosen: Chosen) -> String {
    Type { base: chosen.base, count: chosen.count, span: Span::default() }.to_string()
}

/// The structure that a type is or points to, and whether it points to it.
fn composite_behind(btf: &Btf, ty: TypeId) -> Result<Option<(TypeId, bool)>, BtfError> {
    let resolved = btf.resolved(ty)?;
    let (target, pointer) = match resolved.kind {
        Kind::Pointer(target) => (btf.resolved(target)?, true),
        _ => (resolved, false),
    };
    Ok(matches!(target.kind, Kind::Composite(_)).then_some((target.id, pointer)))
}

fn members_of(
    function: &Function,
    text: &str,
    facts: &KernelFacts,
) -> Result<v1::StructureDescription, Diagnostic> {
    let whole = Span::new(0, text.len());
    let broken = |error| problems::broken(whole, &error);
    let btf = &function.btf;
    let (root, members) = parsed(text)?;
    let path_bytes =
        members.iter().map(|member| member.to_string().len() + member.separator().len()).sum::<usize>();
    let start = text.len() - path_bytes;
    let ty = match &root {
        BtfRoot::Retval if function.result == TypeId::VOID => {
            return Err(problems::no_result(whole, function));
        }
        BtfRoot::Retval => function.result,
        BtfRoot::Parameter(name) => function
            .parameter(name)
            .map(|parameter| parameter.ty)
            .ok_or_else(|| problems::no_parameter(Span::new(0, start), function, name, facts))?,
    };
    // Only types matter: any fetcharg will do.
    let fetch = Fetch { kind: FetchKind::Argument(1), span: whole };
    let value = path::follow(btf, fetch, ty, &members, start, 0)?;
    if let Kind::Array { element, .. } = btf.resolved(value.ty).map_err(broken)?.kind {
        return of_array(btf, value.ty, element, &format!("{text}[0]")).map_err(broken);
    }
    let found = composite_behind(btf, value.ty).map_err(broken)?;
    let Some((id, pointer)) = found.filter(|(_, pointer)| *pointer || !members.is_empty()) else {
        return Err(problems::no_structure(btf, value.ty, whole));
    };
    let separator = if pointer { "->" } else { "." };
    listed(btf, id, &format!("{text}{separator}")).map_err(broken)
}

/// A path, parsed like in a definition.
fn parsed(text: &str) -> Result<(BtfRoot, Vec<BtfMember>), Diagnostic> {
    let head = if text.starts_with("$retval") { "r f " } else { "p f " };
    let features = Features::from_readme("").with_types(true);
    let shifted = |problem: Diagnostic| {
        let at = |place: usize| place.saturating_sub(head.len()).min(text.len());
        Diagnostic { span: Span::new(at(problem.span.start), at(problem.span.end)), ..problem }
    };
    let no_path = || {
        let message = "not a path: write PARAMETER, PARAMETER->MEMBER or $retval->MEMBER";
        Diagnostic::error(Code::NoBtfarg, Span::new(0, text.len()), message)
    };
    // Characters that the parser would skip.
    if text.contains(|c: char| c == '#' || c.is_whitespace()) {
        return Err(no_path());
    }
    let definition = match parse(&format!("{head}{text}"), &features) {
        Ok(Definition::Probe(definition)) => definition,
        Ok(Definition::Delete(_)) => return Err(no_path()),
        Err(problems) => return Err(problems.into_iter().next().map_or_else(no_path, shifted)),
    };
    match <[_; 1]>::try_from(definition.args).map(|[argument]| argument) {
        Ok(argument) if argument.name.is_none() && argument.ty.is_none() => match argument.fetch.kind {
            FetchKind::Btf { root, members } => Ok((root, members)),
            FetchKind::Retval => Ok((BtfRoot::Retval, Vec::new())),
            _ => Err(no_path()),
        },
        _ => Err(no_path()),
    }
}

/// The members of the elements of an array, or an element that has none.
fn of_array(
    btf: &Btf,
    id: TypeId,
    element: TypeId,
    first: &str,
) -> Result<v1::StructureDescription, BtfError> {
    let mut described = match composite_behind(btf, element)? {
        Some((composite, pointer)) => {
            listed(btf, composite, &format!("{first}{}", if pointer { "->" } else { "." }))?
        }
        None => v1::StructureDescription {
            members: vec![v1::MemberDescription {
                name: "[0]".to_owned(),
                path: first.to_owned(),
                c_type: btf.type_text(element)?,
                size_bytes: btf.size(element)?.unwrap_or(0),
                fetch_type: chosen_text(default::of(btf, element, true)?),
                ..Default::default()
            }],
            ..Default::default()
        },
    };
    described.c_type = btf.type_text(id)?;
    described.size_bytes = btf.size(id)?.unwrap_or(0);
    Ok(described)
}

fn listed(btf: &Btf, id: TypeId, prefix: &str) -> Result<v1::StructureDescription, BtfError> {
    let ty = btf.resolved(id)?;
    let Kind::Composite(composite) = ty.kind else {
        return Err(BtfError::WrongKind { id, wanted: "a structure or a union" });
    };
    let mut found = Vec::new();
    btf.each_member(composite, &mut |at| {
        found.push(at);
        true
    })?;
    // Members of a union stay in the order of their declaration.
    found.sort_by_key(|at| at.bit_offset);
    let mut members = Vec::with_capacity(found.len());
    for at in found {
        let member = at.member;
        let fetch_type = match member.bits {
            Some(bits) => default::bit_field(btf, member.ty, at.bit_offset, bits)
                .map(|(base, _)| base.to_string())
                .unwrap_or_default(),
            None => chosen_text(default::of(btf, member.ty, true)?),
        };
        let size_bytes = if member.bits.is_some() { 0 } else { btf.size(member.ty)?.unwrap_or(0) };
        members.push(v1::MemberDescription {
            name: member.name.to_owned(),
            path: format!("{prefix}{}", member.name),
            c_type: btf.type_text(member.ty)?,
            offset_bytes: at.bit_offset / 8,
            bit_offset: u32::try_from(at.bit_offset % 8).unwrap_or_default(),
            bits: member.bits.map(u32::from),
            size_bytes,
            fetch_type,
            has_members: composite_behind(btf, member.ty)?.is_some(),
        });
    }
    let size_bytes = composite.bytes.into();
    Ok(v1::StructureDescription { c_type: btf.type_text(id)?, size_bytes, members })
}
