//! Function types: the BTF prototype of the function that a place names.
//!
//! Owns the kernel's choice among functions of one name. Never resolves an argument.

use std::sync::Arc;

use super::passing::{self, Passed};
use crate::validate::functions::{self, Meant};
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, BtfError, TypeId};
use kprobed_lang::definition::Place;

/// A function whose types are known.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) btf: Arc<Btf>,
    pub(super) name: String,
    /// The module that it belongs to; absent for the kernel itself.
    pub(super) module: Option<String>,
    pub(super) id: TypeId,
    pub(super) result: TypeId,
    pub(super) parameters: Vec<Parameter>,
    /// Prototypes of other functions of the same name that differ from this one, as C text.
    pub(super) others: Vec<String>,
}

/// A parameter, and its place at the function's entry.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// Its name; empty for `...`.
    pub(super) name: String,
    pub(super) ty: TypeId,
    pub(super) passed: Passed,
}

/// Why the types of a function are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) message: String,
    pub(super) hint: String,
}

impl Function {
    pub(super) fn prototype(&self) -> Result<String, BtfError> {
        self.btf.prototype_text(&self.btf.prototype(self.id)?, &self.name)
    }

    fn read(
        btf: &Arc<Btf>,
        name: &str,
        module: Option<&str>,
        ids: &[TypeId],
    ) -> Result<Option<Self>, BtfError> {
        let Some((id, rest)) = ids.split_first() else { return Ok(None) };
        let prototype = btf.prototype(*id)?;
        let read: Vec<_> = prototype.parameters().collect::<Result<_, _>>()?;
        let types: Vec<TypeId> = read.iter().map(|parameter| parameter.ty).collect();
        let passed = passing::passed(btf, prototype.result, &types)?;
        let parameters = read
            .iter()
            .zip(passed)
            .map(|(parameter, passed)| Parameter {
                name: parameter.name.to_owned(),
                ty: parameter.ty,
                passed,
            })
            .collect();
        let mut function = Self {
            btf: Arc::clone(btf),
            name: name.to_owned(),
            module: module.map(str::to_owned),
            id: *id,
            result: prototype.result,
            parameters,
            others: Vec::new(),
        };
        let own = if rest.is_empty() { String::new() } else { function.prototype()? };
        for other in rest {
            let text = btf.prototype_text(&btf.prototype(*other)?, name)?;
            if text != own && !function.others.contains(&text) {
                function.others.push(text);
            }
        }
        Ok(Some(function))
    }
}

/// Looks up a function as the kernel does: in its own types first, then in those of the modules
/// (kernel/bpf/btf.c:bpf_find_btf_id), of which only the one that has the symbol can be meant.
pub(super) fn look_up(name: &str, module: Option<&str>, facts: &KernelFacts) -> Result<Function, Unknown> {
    let unknown = |message: String, hint: &str| Unknown { message, hint: hint.to_owned() };
    let broken = |error: BtfError| unknown(format!("the types of `{name}` cannot be read: {error}"), "");
    let vmlinux = facts.types.vmlinux().map_err(|error| {
        unknown(format!("types are not known: {error}"), "write NAME=$argN:TYPE, or a register")
    })?;
    let of_kernel: Vec<TypeId> = vmlinux.functions(name).collect();
    if module.is_none()
        && let Some(function) = Function::read(&vmlinux, name, None, &of_kernel).map_err(broken)?
    {
        return Ok(function);
    }
    let Some(symbol) = facts.symbols.lookup(name, module) else {
        return Err(unknown(
            format!("the kernel has no function `{name}`"),
            "it may be of a module that is not loaded",
        ));
    };
    let Some(module) = symbol.module else { return Err(absent(name, &vmlinux)) };
    let types = facts
        .types
        .module(module)
        .map_err(|error| unknown(format!("the types of module `{module}` are not known: {error}"), ""))?;
    let of_module: Vec<TypeId> = types.functions(name).collect();
    let found = Function::read(&types, name, Some(module), &of_module).map_err(broken)?;
    found.ok_or_else(|| absent(name, &types))
}

/// Looks up a function like a kernel that resolves names by itself: it looks for the name with its
/// module in BTF, which has it without (6.12:
/// kernel/trace/trace_kprobe.c:trace_kprobe_create_internal).
pub(super) fn look_up_natively(
    name: &str,
    module: Option<&str>,
    facts: &KernelFacts,
) -> Result<Function, Unknown> {
    match module.filter(|module| facts.symbols.has_module(module)) {
        Some(module) => Err(Unknown {
            message: format!("this kernel does not look for types of `{module}:{name}`"),
            hint: format!("write `{name}` without its module, or NAME=$argN:TYPE"),
        }),
        None => look_up(name, module, facts),
    }
}

/// A function of the kernel that is not in its BTF.
fn absent(name: &str, btf: &Btf) -> Unknown {
    let message = format!("the types of `{name}` are not in the kernel's BTF");
    let base = name.split('.').next().unwrap_or_default();
    let hint = if base != name && btf.functions(base).next().is_some() {
        format!(
            "the compiler made it from `{base}`, perhaps with other arguments: look at its code, and read registers"
        )
    } else {
        "write NAME=$argN:TYPE, or a register: the function is not written in C, or the compiler has changed its arguments".to_owned()
    };
    Unknown { message, hint }
}

/// Why the types of a function are not known, if the place is written as a distance from another symbol.
pub(super) fn at_distance(unknown: Unknown, place: &Place, facts: &KernelFacts) -> Unknown {
    let Place::Symbol { symbol, offset: 1.., .. } = place else { return unknown };
    let Meant::One { function, offset: 0, .. } = functions::meant(place, facts) else { return unknown };
    let (name, count) = (&function.name, function.same_name);
    if count > 1 {
        return Unknown {
            message: format!(
                "`{place}` is one of {count} functions `{name}`, and BTF does not say which of them the types are of that \
                 it has under this name"
            ),
            hint: "write NAME=$argN:TYPE, or a register".to_owned(),
        };
    }
    Unknown {
        message: format!(
            "names are looked up in the function that is written, and `{symbol}` is none with types"
        ),
        hint: format!("write `{name}`: the probe point is its entry"),
    }
}

/// Whether that function has a parameter of that name; `None` if the kernel shows no types at all.
pub fn has_parameter(facts: &KernelFacts, module: Option<&str>, function: &str, name: &str) -> Option<bool> {
    facts.types.vmlinux().ok()?;
    let found = look_up(function, module, facts);
    Some(found.is_ok_and(|function| function.parameters.iter().any(|parameter| parameter.name == name)))
}

/// Whether a kernel that resolves names by itself finds parameters of that function; `None` if it
/// shows no types at all.
pub fn kernel_finds_parameters(facts: &KernelFacts, module: Option<&str>, function: &str) -> Option<bool> {
    facts.types.vmlinux().ok()?;
    let found = look_up_natively(function, module, facts);
    Some(found.is_ok_and(|function| !function.parameters.is_empty()))
}
