//! Program of a bound filter, which runs for every event.
//!
//! Owns the steps: comparisons with jumps to the next one. Jumps only go forward, and nothing allocates.

use super::bind::{Literal, Node};
use super::interfaces::FilterEvent;
use super::test::Test;

/// Where it ends with yes.
const ACCEPT: u16 = u16::MAX;
/// Where it ends with no.
const REJECT: u16 = u16::MAX - 1;

/// Comparisons of which at least one depends on the event.
#[derive(Debug, Clone)]
pub struct Program {
    steps: Box<[Step]>,
    /// What it was made of, for the kernel's text.
    pub(super) tree: Node,
    /// What the kernel calls fields that the probe may hide.
    pub(super) kernel_names: KernelNames,
    /// Whether a comparison is with a value that may not have been readable.
    pub(super) may_fault: bool,
}

/// What the kernel calls fields of all events in a probe's filter; absent when the probe hides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelNames {
    pub(super) cpu: Option<&'static str>,
    pub(super) comm: Option<&'static str>,
}

#[derive(Debug, Clone)]
struct Step {
    test: Test,
    /// Next when it holds.
    then: u16,
    /// Next when it does not.
    otherwise: u16,
    /// Next when the value could not be read.
    unreadable: u16,
}

impl Program {
    /// Compiles a tree. A text is too short for more comparisons than there are places.
    pub(super) fn new(tree: Node, kernel_names: KernelNames, may_fault: bool) -> Self {
        let mut steps = Vec::with_capacity(literals(&tree));
        emit(&tree, ACCEPT, REJECT, &mut steps);
        Self { steps: steps.into(), tree, kernel_names, may_fault }
    }

    /// Whether the event is selected. Never if that depends on a value that could not be read.
    #[inline]
    pub fn matches(&self, event: &impl FilterEvent) -> bool {
        let mut at = 0;
        while let Some(step) = self.steps.get(usize::from(at)) {
            at = match step.test.holds(event) {
                Some(true) => step.then,
                Some(false) => step.otherwise,
                None => step.unreadable,
            };
        }
        at == ACCEPT
    }
}

fn literals(node: &Node) -> usize {
    match node {
        Node::Constant(_) | Node::Unknown(_) => 0,
        Node::Literal(_) => 1,
        Node::All(parts) | Node::Any(parts) => parts.iter().map(literals).sum(),
    }
}

/// Appends the steps of a node, which jump to `yes` if it holds and to `no` if not.
fn emit(node: &Node, yes: u16, no: u16, steps: &mut Vec<Step>) {
    let (parts, conjunction) = match node {
        // Folded before, so that none is left.
        Node::Constant(_) | Node::Unknown(_) => return,
        Node::Literal(literal) => {
            let Literal { test, negated, .. } = &**literal;
            let (then, otherwise) = if *negated { (no, yes) } else { (yes, no) };
            steps.push(Step { test: test.clone(), then, otherwise, unreadable: no });
            return;
        }
        Node::All(parts) => (parts, true),
        Node::Any(parts) => (parts, false),
    };
    for (index, part) in parts.iter().enumerate() {
        let next = u16::try_from(steps.len() + literals(part)).unwrap_or(REJECT);
        let last = index + 1 == parts.len();
        let (yes, no) = match conjunction {
            _ if last => (yes, no),
            true => (next, no),
            false => (yes, next),
        };
        emit(part, yes, no, steps);
    }
}
