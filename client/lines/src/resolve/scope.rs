//! The functions whose code is at an address, and what is visible in them.

use crate::model::{Declaration, Function, Inlined, Scope, ScopeKind, Unit, Variable, contain};

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
    let Some(function) = outer(unit, address) else { return Vec::new() };
    let mut frames = vec![of(&function.name, function.declared, &function.scope)];
    let mut scope = &function.scope;
    while let Some(inner) = scope.scopes.iter().find(|inner| contain(&inner.ranges, address)) {
        if let ScopeKind::Inlined(copy) = &inner.kind {
            frames.push(of(&copy.name, copy.declared, inner));
        } else if let Some(frame) = frames.last_mut() {
            frame.open.push(inner);
        }
        scope = inner;
    }
    frames
}

/// The function at an address that a line of its source means.
pub(super) fn frame<'u>(
    unit: &'u Unit,
    address: u64,
    (name, declared): (&str, Declaration),
    line: u32,
) -> Option<Frame<'u>> {
    let frames = frames(unit, address).into_iter();
    let mut found: Vec<_> = frames.filter(|frame| frame.name == name && frame.declared == declared).collect();
    // A function that is inlined into itself is there more than once.
    let mut inner = found.pop()?;
    let is_called_here = matches!(&inner.scope.kind, ScopeKind::Inlined(copy)
        if copy.entry == Some(address) && copy.called == Declaration { line, ..declared });
    if is_called_here && let Some(caller) = found.pop() {
        inner = caller;
    }
    let mut is_part = is_split_off(inner.scope);
    while is_part && let Some(whole) = found.pop() {
        inner.open.splice(..0, whole.open);
        is_part = is_split_off(whole.scope);
    }
    Some(inner)
}

/// Whether a copy is a part of the function that the compiler has split off and put back: it is called where the
/// function is declared.
fn is_split_off(scope: &Scope) -> bool {
    matches!(&scope.kind, ScopeKind::Inlined(copy) if copy.declared == copy.called)
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

/// The copies of functions in a unit; what was split off of a function is none.
pub(super) fn copies(unit: &Unit) -> Vec<&Inlined> {
    let mut found = Vec::new();
    unit.functions.iter().for_each(|function| collect_copies(&function.scope, &mut found));
    found
}

fn collect_copies<'u>(scope: &'u Scope, found: &mut Vec<&'u Inlined>) {
    for inner in &scope.scopes {
        if let ScopeKind::Inlined(copy) = &inner.kind
            && !is_split_off(inner)
        {
            found.push(copy);
        }
        collect_copies(inner, found);
    }
}

/// Calls with each variable of a scope and of those in it.
pub(super) fn each_variable<'u>(scope: &'u Scope, visit: &mut dyn FnMut(&'u Variable)) {
    scope.variables.iter().for_each(&mut *visit);
    scope.scopes.iter().for_each(|inner| each_variable(inner, visit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Range;

    const DECLARED: Declaration = Declaration { file: 0, line: 1 };

    fn scope(kind: ScopeKind, start: u64, end: u64, scopes: Vec<Scope>) -> Scope {
        Scope { kind, ranges: vec![Range { start, end }], variables: Vec::new(), scopes }
    }

    fn copy(name: &str, start: u64, end: u64, scopes: Vec<Scope>) -> Scope {
        let called = Declaration { file: 0, line: 5 };
        let kind = Inlined { name: name.to_owned(), declared: DECLARED, called, entry: Some(start) };
        scope(ScopeKind::Inlined(kind), start, end, scopes)
    }

    /// The unit of a function `walk` at 0x10 to 0x40.
    fn unit(scopes: Vec<Scope>) -> Unit {
        let scope = scope(ScopeKind::Body, 0x10, 0x40, scopes);
        let function = Function { name: "walk".to_owned(), declared: DECLARED, entry: Some(0x10), scope };
        Unit { functions: vec![function], ..Unit::default() }
    }

    #[test]
    fn in_a_function_that_is_inlined_into_itself_a_line_is_of_the_innermost_copy() {
        let unit = unit(vec![copy("walk", 0x20, 0x38, vec![copy("walk", 0x28, 0x30, Vec::new())])]);
        let starts = |address, line| {
            let frame = frame(&unit, address, ("walk", DECLARED), line).unwrap();
            frame.scope.ranges[0].start
        };
        assert_eq!(starts(0x14, 3), 0x10);
        assert_eq!(starts(0x24, 3), 0x20);
        assert_eq!(starts(0x2c, 3), 0x28);
        // Where a copy begins is also the line of the call, which is of the one that calls.
        assert_eq!((starts(0x20, 1), starts(0x20, 5)), (0x20, 0x10));
        assert_eq!((starts(0x28, 1), starts(0x28, 5)), (0x28, 0x20));
    }

    /// A variable that is nowhere.
    fn variable(name: &str) -> Variable {
        let places = crate::model::Places::Nowhere;
        Variable { id: 0, name: name.to_owned(), is_parameter: true, declared: DECLARED, ty: None, places }
    }

    #[test]
    fn a_part_that_was_split_off_and_put_back_is_the_function_itself() {
        let names = |called: Declaration| {
            let mut part = copy("walk", 0x20, 0x38, Vec::new());
            let kind = Inlined { name: "walk".to_owned(), declared: DECLARED, called, entry: Some(0x20) };
            part.kind = ScopeKind::Inlined(kind);
            part.variables = vec![variable("passed")];
            let mut unit = unit(vec![part]);
            unit.functions[0].scope.variables = vec![variable("passed"), variable("kept")];
            let frame = frame(&unit, 0x24, ("walk", DECLARED), 3).unwrap();
            let visible: Vec<_> = frame.visible().iter().map(|variable| variable.name.clone()).collect();
            (visible.join(" "), copies(&unit).len())
        };
        // Its call is where the function is declared. What it is not given is that of the function.
        assert_eq!(names(DECLARED), ("passed kept".to_owned(), 0));
        assert_eq!(names(Declaration { file: 0, line: 5 }), ("passed".to_owned(), 1));
    }
}
