//! Function types: the BTF prototype of the function that a place names.
//!
//! Owns the kernel's choice among functions of one name. Never resolves an argument.

use std::sync::Arc;

use super::passing::{self, Words};
use crate::validate::functions::{self, Meant};
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, BtfError, TypeId};
use kprobed_lang::definition::Place;

/// A function whose types are known.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) btf: Arc<Btf>,
    pub(super) name: String,
    /// The module that it belongs to; absent for the kernel itself.
    pub(super) module: Option<String>,
    pub(super) id: TypeId,
    pub(crate) result: TypeId,
    pub(super) parameters: Vec<Parameter>,
    /// Prototypes of other functions of the same name that differ from this one, as C text.
    pub(super) others: Vec<String>,
}

/// A parameter, and its place at the function's entry.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its name; empty for `...`.
    pub(crate) name: String,
    pub(crate) ty: TypeId,
    /// Absent if no probe can read it.
    pub(crate) words: Option<Words>,
}

/// Why the types of a function are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) message: String,
    pub(super) hint: String,
}

impl Function {
    /// Its prototype in C.
    pub(crate) fn prototype(&self) -> Result<String, BtfError> {
        self.btf.prototype_text(&self.btf.prototype(self.id)?, &self.name)
    }

    /// The parameter that a `$argN` holds, completely or in part, and the index of that part in
    /// words.
    pub(crate) fn at(&self, word: u32) -> Option<(&Parameter, u32)> {
        self.parameters.iter().find_map(|parameter| {
            let Words { first, count } = parameter.words?;
            let part = word.checked_sub(first)?;
            (part < count).then_some((parameter, part))
        })
    }

    /// The first parameter of that name.
    pub(super) fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The only parameter of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&Parameter> {
        let mut found = self.parameters.iter().filter(|parameter| parameter.name == name && !name.is_empty());
        match (found.next(), found.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
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
            .map(|(parameter, words)| Parameter { name: parameter.name.to_owned(), ty: parameter.ty, words })
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

/// Looks up the only function of a name. Absent if the kernel shows no types of it, or if there are several: it is not
/// known then which of them they are of.
pub(crate) fn look_up_only(name: &str, module: Option<&str>, facts: &KernelFacts) -> Option<Function> {
    let function = look_up(name, module, facts).ok()?;
    let is_only = function.others.is_empty() && functions::count(name, module, facts) <= 1;
    Some(function).filter(|function| is_only && function.prototype().is_ok())
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
    Some(found.is_ok_and(|function| function.parameter(name).is_some()))
}

/// Whether a kernel that resolves names by itself finds parameters of that function; `None` if it
/// shows no types at all.
pub fn kernel_finds_parameters(facts: &KernelFacts, module: Option<&str>, function: &str) -> Option<bool> {
    facts.types.vmlinux().ok()?;
    let found = look_up_natively(function, module, facts);
    Some(found.is_ok_and(|function| !function.parameters.is_empty()))
}
