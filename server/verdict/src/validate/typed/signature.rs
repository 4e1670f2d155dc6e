//! Function signature: what each register and word of the stack holds at a function's entry.
//!
//! Owns the link from `$argN` to parameters. Never resolves a name in a definition.

use std::sync::Arc;

use super::function;
use super::passing::Passed;
use crate::validate::functions;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{Btf, TypeId};

/// The parameters and the result of a function.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Holds its types.
    pub btf: Arc<Btf>,
    /// Its prototype in C.
    pub prototype: String,
    /// The type of its result.
    pub result: TypeId,
    /// Its parameters, in order.
    pub parameters: Vec<PassedParameter>,
}

/// A parameter, and its place at the function's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedParameter {
    /// Its name; empty for `...`.
    pub name: String,
    /// Its type.
    pub ty: TypeId,
    /// N of the first `$argN` that holds it, from 1, and their number. Absent if no probe can read
    /// it.
    pub words: Option<(u32, u32)>,
}

/// The signature of a function. Absent if the kernel shows no types of it, or if there are several
/// functions of that name: it is not known then which of them they are of.
pub fn signature(name: &str, module: Option<&str>, facts: &KernelFacts) -> Option<Signature> {
    let function = function::look_up(name, module, facts).ok()?;
    if !function.others.is_empty() || functions::count(name, module, facts) > 1 {
        return None;
    }
    let prototype = function.prototype().ok()?;
    let parameters = function
        .parameters
        .into_iter()
        .map(|parameter| PassedParameter {
            name: parameter.name,
            ty: parameter.ty,
            words: match parameter.passed {
                Passed::Words { first, count } => Some((first, count)),
                Passed::Nowhere => None,
            },
        })
        .collect();
    Some(Signature { btf: function.btf, prototype, result: function.result, parameters })
}

impl Signature {
    /// The parameter that a `$argN` holds, completely or in part, and the index of that part in
    /// words.
    pub fn at(&self, word: u32) -> Option<(&PassedParameter, u32)> {
        self.parameters.iter().find_map(|parameter| {
            let (first, count) = parameter.words?;
            let part = word.checked_sub(first)?;
            (part < count).then_some((parameter, part))
        })
    }

    /// The only parameter of that name.
    pub fn named(&self, name: &str) -> Option<&PassedParameter> {
        let mut found = self.parameters.iter().filter(|parameter| parameter.name == name && !name.is_empty());
        match (found.next(), found.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }
}
