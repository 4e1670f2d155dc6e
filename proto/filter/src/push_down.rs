//! Kernel filter of a subscription's filter.
//!
//! Owns the text for a probe's `filter` file, which selects at least what the filter selects. Comparisons
//! that the kernel cannot make count as true; since negation is at the comparisons, it never selects less.

use super::BoundFilter;
use super::ast::{Expression, Number, Operand, Operator, Term};
use super::bind::{Literal, Node};
use super::fields::Source;
use super::parse::TEXT_LIMIT_BYTES;
use super::pattern::Pattern;
use super::program::{KernelNames, Program};
use super::test::{Test, mask};
use crate::Span;

/// No event has two thread ids, and no probe can hide this field.
const NEVER: &str = "common_pid == 1 && common_pid == 2";

/// What the running kernel knows in filters, and what is wanted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFilterFeatures {
    /// `FIELD.function` (6.4).
    pub functions: bool,
    /// `FIELD & CPUS{LIST}` (6.6).
    pub cpu_lists: bool,
    /// Whether names of tasks are compared in the kernel too. It compares the name that a task has
    /// when a probe is hit, and the daemon the one that is known when the event is read: of a task
    /// that has changed its name in between, events are lost that the daemon would have selected by
    /// the later name.
    pub task_names: bool,
}

/// What of a filter the kernel can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushDown {
    /// Text for the `filter` file of the probe. Absent when the kernel would have to let everything through.
    pub text: Option<String>,
    /// Whether the kernel then selects exactly what the filter selects; otherwise more. Never when
    /// the filter looks at values that may not have been readable, which the kernel compares as
    /// whatever was in the ring buffer, or at names of tasks.
    pub exact: bool,
    /// What the kernel cannot do.
    pub left_out: Vec<LeftOut>,
}

/// A comparison that the kernel cannot make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its place in the filter.
    pub span: Span,
    /// Why.
    pub reason: &'static str,
}

impl BoundFilter {
    /// The text for the probe's `filter` file with which the kernel selects at least the same
    /// events. The kernel stays the judge: it may refuse a text because of what only it knows, such
    /// as the number of its CPUs.
    pub fn kernel_text(&self, features: KernelFilterFeatures) -> PushDown {
        match self {
            Self::Always => PushDown { text: None, exact: true, left_out: Vec::new() },
            Self::Never => PushDown { text: Some(NEVER.to_owned()), exact: true, left_out: Vec::new() },
            Self::Program(program) => of_program(program, features),
        }
    }
}

fn of_program(program: &Program, features: KernelFilterFeatures) -> PushDown {
    let mut pusher =
        Pusher { features, names: program.kernel_names, left_out: Vec::new(), names_tasks: false };
    let text = pusher.node(&program.tree).map(|expression| expression.to_string());
    let Pusher { mut left_out, names_tasks, .. } = pusher;
    let text = text.filter(|text| {
        let fits = text.len() < TEXT_LIMIT_BYTES;
        if !fits {
            left_out.push(LeftOut {
                span: Span::default(),
                reason: "the kernel's text would be longer than a page",
            });
        }
        fits
    });
    let exact = left_out.is_empty() && !program.may_fault && !names_tasks;
    PushDown { text, exact, left_out }
}

struct Pusher {
    features: KernelFilterFeatures,
    names: KernelNames,
    left_out: Vec<LeftOut>,
    names_tasks: bool,
}

impl Pusher {
    /// The kernel's part of a node; absent if it must pass all events.
    fn node(&mut self, node: &Node) -> Option<Expression> {
        match node {
            Node::Constant(_) | Node::Unknown(_) => None,
            Node::Literal(literal) => match self.literal(literal) {
                Ok(expression) => Some(expression),
                Err(reason) => {
                    self.left_out.push(LeftOut { span: literal.term.span, reason });
                    None
                }
            },
            Node::All(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.node(part)).collect();
                (!parts.is_empty()).then(|| Expression::all(parts))
            }
            Node::Any(parts) => {
                // Looks at all parts, so that all reasons are reported.
                let parts: Vec<_> = parts.iter().map(|part| self.node(part)).collect();
                parts.into_iter().collect::<Option<Vec<_>>>().map(Expression::any)
            }
        }
    }

    /// A comparison in the kernel's words; otherwise why there are none.
    fn literal(&mut self, literal: &Literal) -> Result<Expression, &'static str> {
        let hidden = "the probe's own fields hide all of the kernel's names for it";
        let mut term = literal.term.clone();
        // For the kernel the name alone is the probe's.
        term.own = false;
        match literal.source {
            Source::Tgid => return Err("the kernel's filters compare thread ids only"),
            Source::Comm if !self.features.task_names => {
                return Err("the kernel compares the name that the task had when the probe was hit");
            }
            Source::Comm => {
                self.names_tasks = true;
                self.names.comm.ok_or(hidden)?.clone_into(&mut term.field);
            }
            Source::Cpu => self.names.cpu.ok_or(hidden)?.clone_into(&mut term.field),
            Source::Tid => "common_pid".clone_into(&mut term.field),
            Source::Own { is_made: true, .. } if matches!(literal.test, Test::Text { .. }) => {
                return Err("the kernel records the address, and the daemon finds the name of its symbol");
            }
            Source::Own { is_made: true, .. } => {
                return Err("the kernel records its parts, and the daemon computes it");
            }
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
            Test::Number { load, .. } if load.swapped => {
                return Err(
                    "the kernel compares bytes in network order as if they were in the order of the host",
                );
            }
            Test::Number { load, compare, .. } if load.is_lower_half && compare.is_of_order() => {
                return Err("the kernel compares all 64 bits that the system call was given");
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
                if load.signed {
                    return Err(
                        "this kernel does not compare with functions, or signed numbers with addresses",
                    );
                }
                term.suffix = None;
                return Ok(negated_if(within(&term, *start, Some(*end)), literal.negated));
            }
            Test::Cpus { load, set }
                if literal.source == Source::Cpu || !self.features.cpu_lists || names_all_cpus(&term) =>
            {
                if literal.source != Source::Cpu && (load.signed || load.bytes > 4) {
                    return Err("this kernel does not compare with such lists of CPUs");
                }
                // The kernel would cut numbers that are larger than the field ever is.
                let largest = mask(load.bytes * 8);
                let ranges: Vec<_> = set
                    .ranges()
                    .map(|(first, last)| (u64::from(first), u64::from(last)))
                    .take_while(|(first, _)| *first <= largest)
                    .map(|(first, last)| within(&term, first, (last < largest).then_some(last + 1)))
                    .collect();
                if ranges.is_empty() {
                    return Err("the field is never as large as these CPUs");
                }
                return Ok(negated_if(Expression::any(ranges), literal.negated));
            }
            Test::Within { .. } | Test::Cpus { .. } => {}
        }
        // The operator as written may say it already, for texts and functions.
        let written_as_negation = match &literal.test {
            Test::Text { .. } => term.operator == Operator::NotEqual || is_inverted(&term),
            Test::Within { .. } => term.operator == Operator::NotEqual,
            Test::Number { .. } | Test::Cpus { .. } => false,
        };
        Ok(negated_if(Expression::Term(Box::new(term)), literal.negated != written_as_negation))
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
/// whole.
fn kernel_pattern(term: &mut Term, pattern: &Pattern) -> Result<(), &'static str> {
    let Operand::Text(text) = &mut term.operand else { return Ok(()) };
    match pattern {
        Pattern::Suffix(end) if !end.is_empty() => {
            let last = text.pop().filter(|last| last.is_ascii_alphanumeric() || "_-.:/".contains(*last));
            let last = last.ok_or("the kernel looks for this at the end of an array, not of the text")?;
            text.extend(["[", last.encode_utf8(&mut [0; 4]), "]"]);
            Ok(())
        }
        Pattern::Glob(glob) if glob.windows(2).any(|pair| pair == b"[!") => {
            Err("before 6.12, `[!...]` matches the end of a text in the kernel")
        }
        _ => Ok(()),
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

fn number(value: u64) -> Operand {
    let text = if value < 1 << 16 { value.to_string() } else { format!("{value:#x}") };
    Operand::Number { text, value: Number::Unsigned(value) }
}
