//! Parser of filters: `&&`, `||`, `!` and parentheses.
//!
//! Owns the structure and its precedence, which is that of C
//! (kernel/trace/trace_events_filter.c:predicate_parse). `term` parses single comparisons. Only the length
//! of the text limits nesting, so that open parentheses are on an explicit stack.

use super::ast::Expression;
use super::error::{FilterCode, FilterError};
use super::span::{Span, end_of_word, skip_blanks};
use super::term;

/// A filter must be shorter than a page (kernel/trace/trace_events.c:event_filter_write).
pub(super) const TEXT_LIMIT_BYTES: usize = 4096;

/// What is open: the whole text, or parentheses in it.
struct Frame {
    /// Position of the parenthesis.
    open: usize,
    /// Whether there is a `!` before it.
    negated: bool,
    /// The complete alternatives between `||`.
    alternatives: Vec<Expression>,
    /// The terms between `&&` of the last alternative.
    conjuncts: Vec<Expression>,
}

impl Frame {
    const fn new(open: usize, negated: bool) -> Self {
        Self { open, negated, alternatives: Vec::new(), conjuncts: Vec::new() }
    }

    fn end_alternative(&mut self) {
        self.alternatives.push(Expression::all(std::mem::take(&mut self.conjuncts)));
    }

    fn close(mut self) -> Expression {
        self.end_alternative();
        let inner = Expression::any(self.alternatives);
        if self.negated { inner.negated() } else { inner }
    }
}

/// Reads a whole filter.
pub(super) fn parse(text: &str) -> Result<Expression, FilterError> {
    check_text(text)?;
    let mut outer = Vec::new();
    let mut frame = Frame::new(0, false);
    let mut at = 0;
    loop {
        // A term with its prefix: `!` and `(`.
        let mut negated = false;
        let operand = loop {
            at = skip_blanks(text, at);
            let rest = text.get(at..).unwrap_or_default();
            if rest.starts_with('(') {
                outer.push(std::mem::replace(&mut frame, Frame::new(at, negated)));
                negated = false;
                at += 1;
            } else if rest.starts_with('!') && !rest.starts_with("!=") && !rest.starts_with("!~") {
                negated = !negated;
                at += 1;
            } else {
                let (term, end) = term::parse(text, at)?;
                at = end;
                let term = Expression::Term(Box::new(term));
                break if negated { term.negated() } else { term };
            }
        };
        frame.conjuncts.push(operand);
        // After it: any `)`, and then the connective.
        loop {
            at = skip_blanks(text, at);
            let rest = text.get(at..).unwrap_or_default();
            if rest.is_empty() {
                if !outer.is_empty() {
                    return Err(FilterError::new(
                        FilterCode::TooManyOpen,
                        Span::new(frame.open, frame.open + 1),
                        "this `(` is not closed",
                        "add a `)`, or leave the `(` out",
                    ));
                }
                return Ok(frame.close());
            }
            if rest.starts_with(')') {
                let Some(parent) = outer.pop() else {
                    return Err(FilterError::new(
                        FilterCode::TooManyClose,
                        Span::new(at, at + 1),
                        "this `)` closes nothing",
                        "add a `(` before it, or leave the `)` out",
                    ));
                };
                let inner = std::mem::replace(&mut frame, parent).close();
                frame.conjuncts.push(inner);
                at += 1;
            } else if rest.starts_with("&&") {
                at += 2;
                break;
            } else if rest.starts_with("||") {
                frame.end_alternative();
                at += 2;
                break;
            } else {
                return Err(not_connected(text, at));
            }
        }
    }
}

fn check_text(text: &str) -> Result<(), FilterError> {
    let trimmed = text.trim_ascii();
    if trimmed.is_empty() || trimmed == "0" {
        return Err(FilterError::new(
            FilterCode::NoFilter,
            Span::new(0, text.len()),
            "the filter is empty",
            "write FIELD OPERATOR VALUE, such as `common_pid == 1`; leave the filter out for all events",
        ));
    }
    if let Some(at) = text.find('\0') {
        return Err(FilterError::new(
            FilterCode::BadCharacter,
            Span::new(at, at + 1),
            "the filter contains a NUL, where the kernel would truncate it",
            "leave the NUL out",
        ));
    }
    if text.len() >= TEXT_LIMIT_BYTES {
        return Err(FilterError::new(
            FilterCode::TooLong,
            Span::new(0, text.len()),
            format!("the filter has {} bytes; the kernel takes fewer than {TEXT_LIMIT_BYTES}", text.len()),
            "make it shorter: one range, pattern or CPUS{...} replaces many terms",
        ));
    }
    Ok(())
}

fn not_connected(text: &str, at: usize) -> FilterError {
    let end = end_of_word(text, at);
    let word = text.get(at..end).unwrap_or_default();
    let hint = match word {
        "&" | "and" | "AND" => "write `&&`",
        "|" | "or" | "OR" => "write `||`",
        _ => "put `&&` or `||` between two terms; quote texts",
    };
    let message = format!("expected `&&`, `||` or the end of the filter, found `{word}`");
    FilterError::new(FilterCode::ExpectConnective, Span::new(at, end), message, hint)
}
