//! Kernel filter of a subscription's filter.
//!
//! Owns the text for a probe's `filter` file, which selects at least what the filter selects. Comparisons
//! that the kernel cannot make count as true; since negation is at the comparisons, it never selects less.

use super::BoundFilter;
use super::ast::{Expression, Operand, Operator, Term};
use super::bind::{Literal, Node};
use super::fields::Source;
use super::kernel::number;
use super::parse::TEXT_LIMIT_BYTES;
use super::pattern::Pattern;
use super::program::{KernelNames, Program};
use super::test::{Test, mask};

/// No event has two thread ids, and no probe can hide this field.
const NEVER: &str = "common_pid == 1 && common_pid == 2";

/// What the running kernel knows in filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFilterFeatures {
    /// `FIELD.function` (6.3).
    pub functions: bool,
    /// `FIELD & CPUS{LIST}` (6.6).
    pub cpu_lists: bool,
}

/// What of a filter the kernel can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushDown {
    /// Text for the `filter` file of the probe. Absent when the kernel would have to let everything through.
    pub text: Option<String>,
    /// Whether the kernel then selects exactly what the filter selects; otherwise more. Never when
    /// the filter looks at values that may not have been readable, which the kernel compares as
    /// whatever was in the ring buffer, or at names of tasks. It compares the name that a task has
    /// when a probe is hit, and the daemon the one that is known when the event is read: of a task
    /// that has changed its name in between, events are lost that the daemon would have selected by
    /// the later name.
    pub exact: bool,
}

impl BoundFilter {
    /// The text for the probe's `filter` file with which the kernel selects at least the same
    /// events. The kernel stays the judge: it may refuse a text because of what only it knows, such
    /// as the number of its CPUs.
    pub fn kernel_text(&self, features: KernelFilterFeatures) -> PushDown {
        match self {
            Self::Always => PushDown { text: None, exact: true },
            Self::Never => PushDown { text: Some(NEVER.to_owned()), exact: true },
            Self::Program(program) => of_program(program, features),
        }
    }
}

fn of_program(program: &Program, features: KernelFilterFeatures) -> PushDown {
    let mut pusher = Pusher { features, names: program.kernel_names, is_exact: !program.may_fault };
    let text = pusher.node(&program.tree).map(|expression| expression.to_string());
    // The kernel takes less than a page.
    let is_too_long = text.as_ref().is_some_and(|text| text.len() >= TEXT_LIMIT_BYTES);
    PushDown { text: text.filter(|_| !is_too_long), exact: pusher.is_exact && !is_too_long }
}

struct Pusher {
    features: KernelFilterFeatures,
    names: KernelNames,
    is_exact: bool,
}

impl Pusher {
    /// The kernel's part of a node; absent if it must pass all events.
    fn node(&mut self, node: &Node) -> Option<Expression> {
        match node {
            Node::Constant(_) | Node::Unknown(_) => None,
            Node::Literal(literal) => {
                let expression = self.literal(literal);
                self.is_exact &= expression.is_some();
                expression
            }
            Node::All(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.node(part)).collect();
                (!parts.is_empty()).then(|| Expression::all(parts))
            }
            Node::Any(parts) => {
                parts.iter().map(|part| self.node(part)).collect::<Option<Vec<_>>>().map(Expression::any)
            }
        }
    }

    /// A comparison in the kernel's words, if there are any: the probe's own fields can hide all of its names for one.
    fn literal(&mut self, literal: &Literal) -> Option<Expression> {
        let mut term = literal.term.clone();
        // For the kernel the name alone is the probe's.
        term.own = false;
        match literal.source {
            // The kernel's filters compare thread ids only. It records the address of a symbol, and the parts of a
            // computed number.
            Source::Tgid | Source::Own { is_made: true, .. } => return None,
            Source::Comm => {
                self.is_exact = false;
                self.names.comm?.clone_into(&mut term.field);
            }
            Source::Cpu => self.names.cpu?.clone_into(&mut term.field),
            Source::Tid => "common_pid".clone_into(&mut term.field),
            _ => {}
        }
        match &literal.test {
            Test::Text { pattern, .. } => {
                if term.operator == Operator::Glob {
                    kernel_pattern(&mut term, pattern)?;
                }
                // Ignored by the kernel for a text that it has recorded, and unknown before 5.17.
                term.suffix = None;
            }
            // The kernel compares bytes in network order as if they were in the order of the host.
            Test::Number { load, .. } if load.swapped => return None,
            // It compares all 64 bits that the system call was given.
            Test::Number { load, operator, .. } if load.is_lower_half && operator.is_of_order() => {
                return None;
            }
            Test::Number { .. } => {
                // One CPU: a number on every kernel.
                if let Operand::Cpus { set, .. } = &term.operand
                    && let Some(cpu) = set.single()
                {
                    term.operand = number(cpu.into());
                    if term.operator == Operator::Bits {
                        term.operator = Operator::Equal;
                    }
                }
            }
            Test::Within { load, start, end } if !self.features.functions => {
                // This kernel does not compare signed numbers with addresses either.
                if load.signed {
                    return None;
                }
                term.suffix = None;
                return Some(negated_if(within(&term, *start, Some(*end)), literal.negated));
            }
            Test::Cpus { load, set }
                if literal.source == Source::Cpu || !self.features.cpu_lists || names_all_cpus(&term) =>
            {
                if literal.source != Source::Cpu && (load.signed || load.bytes > 4) {
                    return None;
                }
                // The kernel would cut numbers that are larger than the field ever is.
                let largest = mask(load.bytes * 8);
                let ranges: Vec<_> = set
                    .ranges()
                    .map(|(first, last)| (u64::from(first), u64::from(last)))
                    .take_while(|(first, _)| *first <= largest)
                    .map(|(first, last)| within(&term, first, (last < largest).then_some(last + 1)))
                    .collect();
                // The field may never be as large as these CPUs.
                if ranges.is_empty() {
                    return None;
                }
                return Some(negated_if(Expression::any(ranges), literal.negated));
            }
            Test::Within { .. } | Test::Cpus { .. } => {}
        }
        // The operator as written may say it already, for texts and functions.
        let written_as_negation = match &literal.test {
            Test::Text { .. } => term.operator == Operator::NotEqual || is_inverted(&term),
            Test::Within { .. } => term.operator == Operator::NotEqual,
            Test::Number { .. } | Test::Cpus { .. } => false,
        };
        Some(negated_if(Expression::Term(Box::new(term)), literal.negated != written_as_negation))
    }
}

/// Whether a list ends at the last CPU of the host for the kernel, and at the last that any host could have for us.
fn names_all_cpus(term: &Term) -> bool {
    matches!(&term.operand, Operand::Cpus { list, .. } if list.to_ascii_lowercase().contains("all"))
}

fn is_inverted(term: &Term) -> bool {
    term.operator == Operator::Glob && matches!(&term.operand, Operand::Text(text) if text.starts_with('!'))
}

fn negated_if(expression: Expression, negated: bool) -> Expression {
    match expression {
        Expression::Term(mut term)
            if negated && matches!(term.operator, Operator::Equal | Operator::NotEqual) =>
        {
            let equal = term.operator == Operator::Equal;
            term.operator = if equal { Operator::NotEqual } else { Operator::Equal };
            Expression::Term(term)
        }
        other if negated => other.negated(),
        other => other,
    }
}

/// Makes a pattern mean the same in the kernel, which compares the end of a text in a fixed array,
/// such as the name of a task, with the end of the array
/// (kernel/trace/trace_events_filter.c:regex_match_end): a class makes it look at the text as a
/// whole. Absent if it cannot: before 6.12, `[!...]` matches the end of a text.
fn kernel_pattern(term: &mut Term, pattern: &Pattern) -> Option<()> {
    let Operand::Text(text) = &mut term.operand else { return Some(()) };
    match pattern {
        Pattern::Suffix(end) if !end.is_empty() => {
            let last = text.pop().filter(|last| last.is_ascii_alphanumeric() || "_-.:/".contains(*last))?;
            text.extend(["[", last.encode_utf8(&mut [0; 4]), "]"]);
            Some(())
        }
        Pattern::Glob(glob) if glob.windows(2).any(|pair| pair == b"[!") => None,
        _ => Some(()),
    }
}

/// `field >= start && field < end`. Without an end, the field is never as large.
fn within(term: &Term, start: u64, end: Option<u64>) -> Expression {
    let bound = |operator, bound| {
        Expression::Term(Box::new(Term { operator, operand: number(bound), ..term.clone() }))
    };
    let first = bound(Operator::GreaterOrEqual, start);
    match end {
        None => first,
        Some(end) if start.checked_add(1) == Some(end) => bound(Operator::Equal, start),
        Some(end) => Expression::all(vec![first, bound(Operator::Less, end)]),
    }
}
