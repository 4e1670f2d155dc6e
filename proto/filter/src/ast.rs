//! Syntax tree of a filter, and its canonical text.
//!
//! Owns how a filter is written. It knows nothing of the fields of events. Parsing the text again gives
//! the same tree, apart from spans.

use std::fmt;

use super::cpus::CpuSet;
use crate::Span;

/// Stands before the name of a field of the probe, which what all events have under that name hides otherwise.
pub(super) const OWN: &str = "fields.";

/// Terms, put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    /// A comparison.
    Term(Box<Term>),
    /// `!`, of something that does not begin with `!` itself.
    Not(Box<Self>),
    /// `&&` of two and more, none of them such a list itself.
    And(Vec<Self>),
    /// `||` of two and more, none of them such a list itself.
    Or(Vec<Self>),
}

/// `FIELD OPERATOR OPERAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    /// All of it.
    pub(super) span: Span,
    pub(super) field: String,
    /// Whether it says that it means a field of the probe: `fields.NAME`.
    pub(super) own: bool,
    /// The name with its prefix.
    pub(super) field_span: Span,
    pub(super) suffix: Option<Suffix>,
    pub(super) operator: Operator,
    pub(super) operator_span: Span,
    pub(super) operand: Operand,
    pub(super) operand_span: Span,
}

/// Suffix of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suffix {
    /// `.function`: the address is somewhere in a function (6.3).
    Function,
    /// `.ustring`: the text that a pointer points to (5.17).
    UserString,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    /// `~`
    Glob,
    /// `!=`
    NotEqual,
    /// `==`
    Equal,
    /// `<=`
    LessOrEqual,
    /// `<`
    Less,
    /// `>=`
    GreaterOrEqual,
    /// `>`
    Greater,
    /// `&`: they have a bit in common.
    Bits,
}

/// What a field is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operand {
    /// A number.
    Number {
        /// As written.
        text: String,
        /// What that is.
        value: Number,
    },
    /// A text without its quotes.
    Text(String),
    /// `CPUS{LIST}`.
    Cpus {
        /// The list as written.
        list: String,
        /// What is in it.
        set: CpuSet,
    },
    /// The name of a function.
    Function(String),
}

/// A number that fits in 64 bits, with or without a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// Written without a sign.
    Unsigned(u64),
    /// Written with a minus.
    Negative(i64),
}

impl Expression {
    /// The opposite. Does not pile up `!`.
    pub(super) fn negated(self) -> Self {
        match self {
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }

    /// All of these: at least one.
    pub(super) fn all(parts: Vec<Self>) -> Self {
        Self::list(parts, true)
    }

    /// One of these: at least one.
    pub(super) fn any(parts: Vec<Self>) -> Self {
        Self::list(parts, false)
    }

    fn list(parts: Vec<Self>, conjunction: bool) -> Self {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match (part, conjunction) {
                (Self::And(inner), true) | (Self::Or(inner), false) => flat.extend(inner),
                (single, _) => flat.push(single),
            }
        }
        match flat.len() {
            1 => flat.remove(0),
            _ if conjunction => Self::And(flat),
            _ => Self::Or(flat),
        }
    }

    /// Whether the text ends with the name of a function, which for the kernel extends to the next
    /// blank.
    fn ends_with_name(&self) -> bool {
        match self {
            Self::Term(term) => matches!(term.operand, Operand::Function(_)),
            Self::Not(inner) => matches!(**inner, Self::Term(_)) && inner.ends_with_name(),
            Self::And(parts) | Self::Or(parts) => {
                parts.last().is_some_and(|last| !matches!(last, Self::Or(_)) && last.ends_with_name())
            }
        }
    }

    fn write_in_parentheses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self}{})", if self.ends_with_name() { " " } else { "" })
    }
}

impl Operator {
    /// With how they are written, in the order in which they are looked for: those that begin others come later.
    pub(super) const ALL: [(&str, Self); 8] = [
        ("~", Self::Glob),
        ("!=", Self::NotEqual),
        ("==", Self::Equal),
        ("<=", Self::LessOrEqual),
        ("<", Self::Less),
        (">=", Self::GreaterOrEqual),
        (">", Self::Greater),
        ("&", Self::Bits),
    ];

    /// How it is written.
    pub(super) fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, operator)| *operator == self).map_or("", |(text, _)| *text)
    }
}

impl Suffix {
    /// How it is written.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Function => ".function",
            Self::UserString => ".ustring",
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, connective) = match self {
            Self::Term(term) => return term.fmt(f),
            Self::Not(inner) => {
                f.write_str("!")?;
                return match **inner {
                    Self::And(_) | Self::Or(_) => inner.write_in_parentheses(f),
                    Self::Term(_) | Self::Not(_) => inner.fmt(f),
                };
            }
            Self::And(parts) => (parts, " && "),
            Self::Or(parts) => (parts, " || "),
        };
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                f.write_str(connective)?;
            }
            // `&&` binds closer: only `||` inside of it needs them.
            if matches!((self, part), (Self::And(_), Self::Or(_))) {
                part.write_in_parentheses(f)?;
            } else {
                part.fmt(f)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = self.suffix.map_or("", Suffix::text);
        let scope = if self.own { OWN } else { "" };
        write!(f, "{scope}{}{suffix} {} {}", self.field, self.operator.text(), self.operand)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { text, .. } | Self::Function(text) => f.write_str(text),
            // It came in one kind of quotes, and so it does not hold that kind.
            Self::Text(text) if text.contains('"') => write!(f, "'{text}'"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Cpus { list, .. } => write!(f, "CPUS{{{list}}}"),
        }
    }
}

impl Expression {
    /// Shows every comparison.
    pub(super) fn terms<'a>(&'a self, show: &mut impl FnMut(&'a Term)) {
        match self {
            Self::Term(term) => show(term),
            Self::Not(inner) => inner.terms(show),
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.terms(show)),
        }
    }
}
