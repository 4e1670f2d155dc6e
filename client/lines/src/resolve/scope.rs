//! The functions whose code is at an address, and what is visible in them.

use crate::model::{Declaration, Function, Scope, ScopeKind, Unit, Variable, contain};

/// A function that is executed at an address: one with code of its own, or a copy within another one.
pub(super) struct Frame<'u> {
    pub(super) name: &'u str,
    pub(super) declared: Declaration,
    /// All of its scopes.
    pub(super) scope: &'u Scope,
    /// Those that the address is in, the outermost first.
    pub(super) open: Vec<&'u Scope>,
}

/// The functions at an address, from the one with code of its own inwards.
pub(super) fn frames(unit: &Unit, address: u64) -> Vec<Frame<'_>> {
    let Some(function) = unit.functions.iter().find(|function| contain(&function.scope.ranges, address))
    else {
        return Vec::new();
    };
    let mut frames = vec![of(&function.name, function.declared, &function.scope)];
    let mut scope = &function.scope;
    while let Some(inner) = scope.scopes.iter().find(|inner| contain(&inner.ranges, address)) {
        if let ScopeKind::Inlined { name, declared, .. } = &inner.kind {
            frames.push(of(name, *declared, inner));
        } else if let Some(frame) = frames.last_mut() {
            frame.open.push(inner);
        }
        scope = inner;
    }
    frames
}

fn of<'u>(name: &'u str, declared: Declaration, scope: &'u Scope) -> Frame<'u> {
    Frame { name, declared, scope, open: vec![scope] }
}

/// The function with code of its own at an address.
pub(super) fn outer(unit: &Unit, address: u64) -> Option<&Function> {
    unit.functions.iter().find(|function| contain(&function.scope.ranges, address))
}

impl<'u> Frame<'u> {
    /// The variable that a name means here: that of the innermost scope that has it.
    pub(super) fn variable(&self, name: &str) -> Option<&'u Variable> {
        let mut scopes = self.open.iter().rev();
        scopes.find_map(|scope| scope.variables.iter().find(|variable| variable.name == name))
    }

    /// All variables that are visible here, the innermost first; none that another one hides.
    pub(super) fn visible(&self) -> Vec<&'u Variable> {
        let mut found: Vec<&Variable> = Vec::new();
        for variable in self.open.iter().rev().flat_map(|scope| &scope.variables) {
            if !found.iter().any(|inner| inner.name == variable.name) {
                found.push(variable);
            }
        }
        found
    }

    /// The blocks of the function that the address is not in, and that have a variable of this name.
    pub(super) fn other_blocks(&self, name: &str) -> Vec<(&'u Scope, &'u Variable)> {
        let mut found = Vec::new();
        collect(self.scope, name, &mut found);
        found.retain(|(scope, _)| !self.open.iter().any(|open| std::ptr::eq(*open, *scope)));
        found
    }
}

/// The blocks of one function with a variable of this name; copies of others are not its blocks.
fn collect<'u>(scope: &'u Scope, name: &str, found: &mut Vec<(&'u Scope, &'u Variable)>) {
    let variables = scope.variables.iter().filter(|variable| variable.name == name);
    found.extend(variables.map(|variable| (scope, variable)));
    for inner in scope.scopes.iter().filter(|inner| matches!(inner.kind, ScopeKind::Block)) {
        collect(inner, name, found);
    }
}

/// Calls with each copy of a function within these scopes.
pub(super) fn each_inlined<'u>(scope: &'u Scope, visit: &mut dyn FnMut(&'u Scope)) {
    for inner in &scope.scopes {
        if matches!(inner.kind, ScopeKind::Inlined { .. }) {
            visit(inner);
        }
        each_inlined(inner, visit);
    }
}

/// Calls with each variable of a scope and of those in it.
pub(super) fn each_variable<'u>(scope: &'u Scope, visit: &mut dyn FnMut(&'u Variable)) {
    scope.variables.iter().for_each(&mut *visit);
    scope.scopes.iter().for_each(|inner| each_variable(inner, visit));
}
