//! What the types of a function tell the reader of short forms.
//!
//! Owns whether all of its parameters can be recorded, and whose memory they point to. Never resolves a name.

use super::function::{self, Function};
use super::resolve::resolve;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, Kind, Modifier, TypeId};
use kprobed_lang::definition::short::{KnownFunction, KnownParameter};
use kprobed_lang::definition::{Definition, Features, parse};

/// The tag of a pointer to the memory of a program (`__user`). Compilers before clang 14 and gcc 16 write none.
const USER_TAG: &str = "user";

/// Most modifiers between a pointer and what it points to.
const MODIFIERS_MAX: usize = 8;

/// The types of a function. Absent if the kernel does not show them, or several functions have the name.
pub fn known_function(
    facts: &KernelFacts,
    features: &Features,
    (module, name): (Option<&str>, &str),
    tells_programs: &dyn Fn() -> bool,
) -> Option<KnownFunction> {
    let function = function::look_up(name, module, facts).ok()?;
    let is_one = function.others.is_empty();
    let parameters = function.parameters.iter().map(|parameter| KnownParameter {
        name: parameter.name.clone(),
        is_of_program: match is_tagged(&function, parameter.ty) {
            Some(false) if !tells_programs() => None,
            known => known,
        },
    });
    let parameters: Vec<_> = parameters.collect();
    let place = module.map_or_else(|| name.to_owned(), |module| format!("{module}:{name}"));
    let is_recordable = || match parse(&format!("p {place} $arg*"), features) {
        Ok(Definition::Probe(all)) => resolve(&all, facts, features).is_ok(),
        _ => false,
    };
    let all_recordable = is_one && !parameters.is_empty() && is_recordable();
    let returns = is_one && !matches!(function.btf.resolved(function.result).ok()?.kind, Kind::Void);
    Some(KnownFunction { parameters, all_recordable, returns })
}

/// Whether a pointer leads to the memory of a program. Absent if it is not a pointer.
fn is_tagged(function: &Function, ty: TypeId) -> Option<bool> {
    let Kind::Pointer(mut target) = function.btf.resolved(ty).ok()?.kind else { return None };
    for _ in 0..MODIFIERS_MAX {
        let ty = function.btf.ty(target).ok()?;
        match ty.kind {
            Kind::Modifier(Modifier::Tag, _) if ty.name == USER_TAG => return Some(true),
            Kind::Modifier(_, next) => target = next,
            _ => break,
        }
    }
    Some(false)
}

/// Whether types say of pointers that they lead to the memory of a program: those of some compilers never do.
pub fn tells_programs_memory(btf: &Btf) -> bool {
    let is_tag = |kind: &Kind<'_>| matches!(kind, Kind::Modifier(Modifier::Tag, _));
    btf.types().filter_map(Result::ok).any(|ty| is_tag(&ty.kind) && ty.name == USER_TAG)
}
