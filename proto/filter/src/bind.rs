//! Binding of a filter to the fields of one probe.
//!
//! Owns the checks of fields and types, and folds what is the same for all events of a probe. The result
//! is a tree without `!`: comparisons are negated instead, so that neither a comparison with an unreadable
//! value nor its opposite holds.

use super::ast::{Expression, Number, OWN, Operand, Operator, Suffix, Term};
use super::error::{FilterCode, FilterError};
use super::fields::{Fields, Kind, Source};
use super::interfaces::Functions;
use super::notation::{Notation, swapped};
use super::pattern::Pattern;
use super::test::{Load, Test, mask};
use crate::names::nearest_name;

/// What a filter is bound to besides the schema.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// Name of the probe, `GROUP/EVENT`.
    pub probe: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// Where functions are, for `FIELD.function`. Absent when the kernel's symbols are not known.
    pub functions: Option<&'a dyn Functions>,
}

/// Comparisons, put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// The same for every event.
    Constant(bool),
    /// Not known for this probe.
    Unknown(FilterError),
    Literal(Box<Literal>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Literal {
    pub(super) test: Test,
    /// Whether it must not hold.
    pub(super) negated: bool,
    pub(super) source: Source,
    /// As written.
    pub(super) term: Term,
}

/// Binds terms.
pub(super) struct Binder<'a> {
    pub(super) fields: Fields<'a>,
    /// Absent when it is a filter for the kernel.
    pub(super) names: Option<(&'a str, &'a str)>,
    pub(super) functions: Option<&'a dyn Functions>,
}

impl Binder<'_> {
    /// Binds an expression, or its opposite. A part that decides alone replaces those that are not known.
    pub(super) fn node(&self, expression: &Expression, negated: bool) -> Result<Node, FilterError> {
        let (parts, conjunction) = match expression {
            Expression::Term(term) => return self.term(term, negated),
            Expression::Not(inner) => return self.node(inner, !negated),
            Expression::And(parts) => (parts, !negated),
            Expression::Or(parts) => (parts, negated),
        };
        let (mut open, mut unknown, mut decided) = (Vec::with_capacity(parts.len()), None, false);
        for part in parts {
            match self.node(part, negated)? {
                Node::Constant(constant) => decided |= constant != conjunction,
                Node::Unknown(error) => unknown = unknown.or(Some(error)),
                other => open.push(other),
            }
        }
        Ok(match (decided, unknown) {
            (true, _) => Node::Constant(!conjunction),
            (false, Some(error)) => Node::Unknown(error),
            (false, None) if open.is_empty() => Node::Constant(conjunction),
            (false, None) if open.len() == 1 => open.remove(0),
            (false, None) if conjunction => Node::All(open),
            (false, None) => Node::Any(open),
        })
    }

    fn term(&self, term: &Term, negated: bool) -> Result<Node, FilterError> {
        if term.own && self.names.is_none() {
            return Err(FilterError::new(
                FilterCode::UnknownSuffix,
                term.field_span,
                "the kernel does not know `fields.`",
                format!(
                    "write `{}`: in a kernel filter it is the probe's field if the probe has one",
                    term.field
                ),
            ));
        }
        let Some((source, kind)) = self.fields.find(&term.field, term.own) else {
            return Ok(Node::Unknown(self.unknown_field(term)));
        };
        let (test, holds) = match &term.operand {
            _ if term.suffix == Some(Suffix::Function) => self.function(term, source, kind)?,
            Operand::Text(text) => {
                if let Some(test) = self.shown_number(term, source, kind, text) {
                    (test, true)
                } else {
                    let (pattern, holds) = self.text(term, source, kind, text)?;
                    if let (Some((probe, host)), Source::Probe | Source::Host) = (self.names, source) {
                        let name = if source == Source::Probe { probe } else { host };
                        return Ok(Node::Constant((pattern.matches(name.as_bytes()) == holds) != negated));
                    }
                    (Test::Text { source, pattern }, holds)
                }
            }
            Operand::Number { value, .. } => (self.number(term, source, kind, *value)?, true),
            Operand::Cpus { .. } => (self.cpus(term, source, kind)?, true),
            // Only after `.function`.
            Operand::Function(name) => return Err(no_function(term, name, None)),
        };
        Ok(Node::Literal(Box::new(Literal { test, negated: negated == holds, source, term: term.clone() })))
    }

    /// Refuses what the kernel takes: only where the filter is not for the kernel.
    fn mind(&self, error: FilterError) -> Result<(), FilterError> {
        if self.names.is_some() { Err(error) } else { Ok(()) }
    }

    fn text(
        &self,
        term: &Term,
        source: Source,
        kind: Kind,
        text: &str,
    ) -> Result<(Pattern, bool), FilterError> {
        if kind != Kind::Text {
            if matches!(source, Source::Own { is_made: true, .. })
                && *self.notation(source) != Notation::Computed
            {
                let field = &term.field;
                return Err(FilterError::new(
                    FilterCode::ExpectDigit,
                    term.operand_span,
                    format!(
                        "the kernel records `{field}` as an address, and the daemon finds its name later"
                    ),
                    format!(
                        "use {field}.function == FUNCTION (kernels from 6.3), or filter with `kprobectl observe --filter`"
                    ),
                ));
            }
            if term.suffix == Some(Suffix::UserString) {
                return Err(FilterError::new(
                    FilterCode::UserPointer,
                    term.field_span,
                    format!(
                        "`{}` is a pointer: its target may have changed when the event is read",
                        term.field
                    ),
                    "have the probe record the text, with an argument such as NAME=+0(ARGUMENT):ustring",
                ));
            }
            let hint = match (self.own_field(term), self.notation(source).example()) {
                (Some(hint), _) => hint,
                (None, Some(shown)) => format!("use == or != with what is shown for a number, such as \"{shown}\", or a number"),
                (None, None) => "leave the quotes out; to compare the text at an address, have the probe record it with :string".to_owned(),
            };
            let message = format!("`{}` is a number, and it is compared with a text", term.field);
            return Err(FilterError::new(FilterCode::ExpectDigit, term.operand_span, message, hint));
        }
        if term.operator != Operator::Glob {
            if text.contains('*') {
                let like = |pattern: &str| match term.operator {
                    Operator::NotEqual => format!("`!({} ~ \"{pattern}\")`", term.field),
                    _ => format!("`{} ~ \"{pattern}\"`", term.field),
                };
                self.mind(FilterError::new(
                    FilterCode::LiteralPattern,
                    term.operand_span,
                    format!("`{}` compares `*` as a character", term.operator.text()),
                    format!(
                        "write {} for a pattern, {} for the character",
                        like(text),
                        like(&text.replace('*', "[*]"))
                    ),
                ))?;
            }
            return Ok((Pattern::Equal(text.as_bytes().into()), term.operator == Operator::Equal));
        }
        let (pattern, inverted) = Pattern::of_glob(text);
        let first = text.trim_start_matches('!').bytes().next();
        if first.is_some_and(|byte| byte.is_ascii_digit()) && !matches!(pattern, Pattern::Equal(_)) {
            // MATCH_INDEX of filter_parse_regex.
            self.mind(FilterError::new(
                FilterCode::LiteralPattern,
                term.operand_span,
                "the kernel compares a pattern that begins with a digit literally, and it would never match",
                "put the digit into brackets: \"[1]*\"",
            ))?;
        }
        Ok((pattern, !inverted))
    }

    /// How people write the numbers of a field.
    fn notation(&self, source: Source) -> &Notation {
        let Source::Own { index, elements: 1, .. } = source else { return &Notation::Number };
        self.fields.schema.fields.get(index).map_or(&Notation::Number, |field| &field.notation)
    }

    /// How a number of this size is loaded.
    fn load_of(&self, source: Source, bytes: u32, signed: bool) -> Load {
        let field = match source {
            Source::Own { index, .. } => self.fields.schema.fields.get(index),
            _ => None,
        };
        let is_lower_half = field.is_some_and(|field| field.is_lower_half);
        Load { source, bytes, signed, swapped: false, is_lower_half }
    }

    /// The comparison with the number that is shown as this text.
    fn shown_number(&self, term: &Term, source: Source, kind: Kind, text: &str) -> Option<Test> {
        let (Kind::Number { bytes, signed }, operator @ (Operator::Equal | Operator::NotEqual)) =
            (kind, term.operator)
        else {
            return None;
        };
        let load = self.load_of(source, bytes, signed);
        let operand = load.cut(self.notation(source).number(text, bytes as usize)?);
        Some(Test::Number { load, operator, operand })
    }

    /// How to write the field of the probe, if the term is about another one of that name.
    fn own_field(&self, term: &Term) -> Option<String> {
        let hidden = !term.own && self.fields.is_hidden(&term.field);
        hidden.then(|| format!("write `{OWN}{}` for the field of the probe", term.field))
    }

    /// How a field is loaded that is compared with numbers.
    fn load(&self, term: &Term, source: Source, kind: Kind) -> Result<Load, FilterError> {
        match kind {
            Kind::Number { bytes, signed } => Ok(self.load_of(source, bytes, signed)),
            Kind::Cpu => Ok(self.load_of(source, 4, true)),
            Kind::Text => {
                let hint = self.own_field(term).unwrap_or_else(|| match term.operand {
                    Operand::Number { .. } => "put the value into quotes".to_owned(),
                    _ => "compare it with a text in quotes".to_owned(),
                });
                let message = format!("`{}` is a text, and it is compared with a number", term.field);
                Err(FilterError::new(FilterCode::ExpectString, term.operand_span, message, hint))
            }
            Kind::Array { bytes } => {
                self.mind(FilterError::new(
                    FilterCode::IllegalFieldOp,
                    term.field_span,
                    format!("`{}` is an array of {bytes} bytes: the kernel compares arrays of 1, 2, 4 or 8 bytes, and no event would pass", term.field),
                    "have the probe record the element as an argument of its own",
                ))?;
                Ok(self.load_of(source, 8, false))
            }
        }
    }

    fn number(&self, term: &Term, source: Source, kind: Kind, value: Number) -> Result<Test, FilterError> {
        let load = self.load(term, source, kind)?;
        let operator = term.operator;
        if operator == Operator::Glob {
            let hint = "patterns are for texts: `FIELD ~ \"a*\"`";
            return Err(illegal_operator(term, "a number", hint));
        }
        if term.suffix == Some(Suffix::UserString) {
            self.mind(FilterError::new(
                FilterCode::ExpectDigit,
                term.operand_span,
                "`.ustring` needs a text, and this field is a number",
                "leave `.ustring` out",
            ))?;
        }
        if kind == Kind::Cpu && operator == Operator::Bits {
            // kernel/trace/trace_events_filter.c:filter_pred_cpu knows no such comparison.
            self.mind(illegal_operator(term, "the CPU", "write CPU & CPUS{1,3}"))?;
        }
        let notation = self.notation(source);
        let value = notation.without_sign(value, load, operator);
        let (operand, fits) = fitting(load, operator, value);
        if !fits {
            let bits = load.bytes * 8;
            let sign = if load.signed { "with" } else { "without" };
            let message = format!(
                "`{}` is a number of {bits} bits {sign} sign, and this value does not fit",
                term.field
            );
            let hint = match value {
                Number::Negative(_) if !load.signed => "it is never negative",
                Number::Unsigned(value) if load.signed && i64::try_from(value).is_err() => {
                    "write it as a negative number"
                }
                _ => "the kernel would truncate it: compare with a number that fits",
            };
            return Err(FilterError::new(FilterCode::IllegalIntval, term.operand_span, message, hint));
        }
        Ok(match (notation.is_in_network_order(), operator.is_of_order()) {
            (false, _) => Test::Number { load, operator, operand },
            (true, true) => Test::Number { load: Load { swapped: true, ..load }, operator, operand },
            (true, false) => {
                let operand = load.cut(swapped(operand, load.bytes as usize));
                Test::Number { load, operator, operand }
            }
        })
    }

    fn cpus(&self, term: &Term, source: Source, kind: Kind) -> Result<Test, FilterError> {
        let Operand::Cpus { set, .. } = &term.operand else {
            return Err(illegal_operator(term, "a list of CPUs", "write CPUS{0-3}"));
        };
        if kind == Kind::Text {
            let message = format!("`{}` is a text, and it is compared with a list of CPUs", term.field);
            let hint = "compare it with a text in quotes";
            return Err(FilterError::new(FilterCode::IllegalFieldOp, term.operand_span, message, hint));
        }
        // The comparison is unsigned, whatever the field
        // (kernel/trace/trace_events_filter.c:select_comparison_fn).
        let load = self.load(term, source, kind)?;
        let largest = mask(load.bytes * 8);
        let Some(cpu) = set.single() else {
            if term.operator != Operator::Bits {
                let always = if term.operator == Operator::Equal { "never" } else { "always" };
                self.mind(FilterError::new(
                    FilterCode::Constant,
                    term.span,
                    format!("`{}` is one CPU at a time: this is {always} so", term.field),
                    format!("write {0} & CPUS{{...}}, or !({0} & CPUS{{...}})", term.field),
                ))?;
            }
            return Ok(Test::Cpus { load, set: set.clone() });
        };
        if u64::from(cpu) > largest {
            self.mind(FilterError::new(
                FilterCode::IllegalIntval,
                term.operand_span,
                format!("`{}` is never as large as {cpu}", term.field),
                "compare with a CPU that fits",
            ))?;
        }
        let operator = if term.operator == Operator::NotEqual { Operator::NotEqual } else { Operator::Equal };
        Ok(Test::Number { load, operator, operand: load.cut(cpu.into()) })
    }

    fn function(&self, term: &Term, source: Source, kind: Kind) -> Result<(Test, bool), FilterError> {
        let Kind::Number { bytes: 8, signed } = kind else {
            return Err(FilterError::new(
                FilterCode::IllegalFieldOp,
                term.field_span,
                format!("`{}` is not an address: it does not have 64 bits", term.field),
                "compare addresses: arguments of 64 bits, __probe_ip, __probe_func or __probe_ret_ip",
            ));
        };
        let range = match (&term.operand, self.functions) {
            (Operand::Function(name), Some(functions)) => {
                functions.named(name).ok_or_else(|| no_function(term, name, functions.nearest(name)))?
            }
            (Operand::Number { text, value: Number::Unsigned(address) }, Some(functions)) => {
                functions.at(*address).ok_or_else(|| no_function(term, text, None))?
            }
            (operand, _) => return Err(no_function(term, &operand.to_string(), None)),
        };
        let load = self.load_of(source, 8, signed);
        Ok((Test::Within { load, start: range.start, end: range.end }, term.operator == Operator::Equal))
    }

    fn unknown_field(&self, term: &Term) -> FilterError {
        let written = if term.own { format!("{OWN}{}", term.field) } else { term.field.clone() };
        let name = written.as_str();
        let error = |message: String, hint: String| {
            FilterError::new(FilterCode::FieldNotFound, term.field_span, message, hint)
        };
        let whose = self.names.map_or("the probe's events", |(probe, _)| probe);
        let message = format!("there is no field `{name}` in {whose}");
        if name.eq_ignore_ascii_case("stacktrace") {
            return error(message, "the stack is not part of an event and cannot be compared".to_owned());
        }
        if let (None, Some((source, _))) =
            (self.names, (Fields { with_ours: true, ..self.fields }).find(name, term.own))
        {
            // A word that only subscriptions know.
            let hint = match self.fields.kernel_name(source) {
                Some(kernel @ "common_pid") => {
                    format!("the kernel calls it `{kernel}`: the thread, not the process")
                }
                Some(kernel) => format!("the kernel calls it `{kernel}`"),
                None => format!("only filters of subscriptions know `{name}`"),
            };
            return error(message, hint);
        }
        let mut hint = String::new();
        let names = self.fields.names(term.own);
        if let Some(nearest) = nearest_name(name, names.iter().map(String::as_str)) {
            hint = format!("did you mean `{nearest}`? ");
        }
        hint.push_str("there are ");
        hint.push_str(&names.join(", "));
        error(message, hint)
    }
}

/// The operand as the field would hold it, and whether that is what was meant: a number that the
/// field can hold, or its bits where no order is requested.
fn fitting(load: Load, operator: Operator, value: Number) -> (u64, bool) {
    let number = match value {
        Number::Unsigned(number) => number,
        Number::Negative(number) => number.cast_unsigned(),
    };
    let operand = load.cut(number);
    let ordered = operator.is_of_order();
    let fits = match value {
        Number::Negative(_) => load.signed && operand == number,
        // The kernel reads a number for a signed field as one with a sign.
        Number::Unsigned(_) if load.signed => {
            let bits_fit = !ordered && load.bytes < 8 && number <= mask(load.bytes * 8);
            bits_fit || operand == number && i64::try_from(number).is_ok()
        }
        Number::Unsigned(_) => operand == number,
    };
    (operand, fits)
}

fn illegal_operator(term: &Term, what: &str, hint: &str) -> FilterError {
    let message = format!("`{}` does not compare with {what}", term.operator.text());
    FilterError::new(FilterCode::IllegalFieldOp, term.operator_span, message, hint)
}

fn no_function(term: &Term, name: &str, nearest: Option<&str>) -> FilterError {
    let hint = match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "write the name of a function as in /proc/kallsyms, or an address inside of one".to_owned(),
    };
    FilterError::new(
        FilterCode::NoFunction,
        term.operand_span,
        format!("no function `{name}` is known"),
        hint,
    )
}
