//! Parser of one comparison: `FIELD OPERATOR OPERAND`.
//!
//! Owns its syntax and the limits of its parts (kernel/trace/trace_events_filter.c:parse_pred). `bind`
//! decides whether a field can be compared so.

use super::ast::{Number, OWN, Operand, Operator, Suffix, Term};
use super::cpus::CpuSet;
use super::errno;
use super::error::{FilterCode, FilterError};
use super::open_flags::{self, OPEN_FLAGS};
use super::span::{Span, end_of_word, is_blank, skip_blanks};
use crate::number::{signed, unsigned};

/// A text must be shorter (kernel/trace/trace.h:MAX_FILTER_STR_VAL).
const TEXT_LIMIT_BYTES: usize = 256;
/// The digits of a number with sign and base must be fewer (`num_buf` in parse_pred).
const NUMBER_LIMIT_BYTES: usize = 24;

/// Reads the term at `at`, which is not a blank; gives back where it ends.
pub(super) fn parse(text: &str, at: usize) -> Result<(Term, usize), FilterError> {
    let own = is_own(text, at);
    let name = if own { at + OWN.len() } else { at };
    let field_span = Span::new(at, name + run(text, name, is_word_byte));
    let field = text.get(name..field_span.end).unwrap_or_default();
    if field.is_empty() {
        return Err(no_field(text, at));
    }
    let (suffix, end) = suffix(text, field_span.end)?;
    let (operator, operator_span) = operator(text, skip_blanks(text, end))?;
    let start = skip_blanks(text, operator_span.end);
    let (operand, end) = match suffix {
        Some(Suffix::Function) => function(text, start)?,
        _ => operand(text, start)?,
    };
    check_operator(operator, operator_span, suffix, &operand)?;
    let term = Term {
        span: Span::new(at, end),
        field: field.to_owned(),
        own,
        field_span,
        suffix,
        operator,
        operator_span,
        operand,
        operand_span: Span::new(start, end),
    };
    Ok((term, end))
}

/// Whether the word at `at` is `fields.NAME`. What follows a dot in the kernel's language is not a
/// name: `fields.function` is about a field `fields`.
fn is_own(text: &str, at: usize) -> bool {
    let Some(name) = text.get(at..).unwrap_or_default().strip_prefix(OWN) else { return false };
    let (name, behind) = name.split_at(run(name, 0, is_word_byte));
    let is_suffix = [Suffix::Function, Suffix::UserString]
        .into_iter()
        .any(|suffix| suffix.text().strip_prefix('.') == Some(name));
    !name.is_empty() && (!is_suffix || behind.starts_with('.'))
}

fn no_field(text: &str, at: usize) -> FilterError {
    let end = end_of_word(text, at);
    let message = match text.get(at..end).unwrap_or_default() {
        "" => "expected a term, found the end of the filter".to_owned(),
        ")" => "expected a term before this `)`".to_owned(),
        word => format!("expected the name of a field, found `{word}`"),
    };
    FilterError::new(
        FilterCode::ExpectField,
        Span::new(at, end),
        message,
        "write FIELD OPERATOR VALUE, such as `common_pid == 1`",
    )
}

fn suffix(text: &str, at: usize) -> Result<(Option<Suffix>, usize), FilterError> {
    if !text.get(at..).unwrap_or_default().starts_with('.') {
        return Ok((None, at));
    }
    let end = at + 1 + run(text, at + 1, |byte| is_word_byte(byte) || byte == b'.');
    let word = text.get(at..end).unwrap_or_default();
    match [Suffix::Function, Suffix::UserString].into_iter().find(|suffix| suffix.text() == word) {
        Some(suffix) => Ok((Some(suffix), end)),
        None => Err(FilterError::new(
            FilterCode::UnknownSuffix,
            Span::new(at, end),
            format!("`{word}` is not a property of a field"),
            "the only one is `.function`: `FIELD.function == vfs_read`",
        )),
    }
}

fn operator(text: &str, at: usize) -> Result<(Operator, Span), FilterError> {
    let rest = text.get(at..).unwrap_or_default();
    // `&&` is not an operator with a strange operand.
    if let Some((written, operator)) = Operator::ALL.into_iter().find(|(text, _)| rest.starts_with(text))
        && !rest.starts_with("&&")
    {
        return Ok((operator, Span::new(at, at + written.len())));
    }
    let end = end_of_word(text, at);
    let (message, hint) = match text.get(at..end).unwrap_or_default() {
        "" => ("the field is not compared with anything".to_owned(), "write FIELD OPERATOR VALUE"),
        "=" => ("`=` is not an operator".to_owned(), "write `==`"),
        "=~" => ("`=~` is not an operator".to_owned(), "write `~`"),
        word if word.starts_with("->") => (
            "`->` is not an operator".to_owned(),
            "a filter has names of fields: `count` for `args->count`; a definition records a member as a field, as in `vfs_read file->f_flags`",
        ),
        word => (format!("`{word}` is not an operator"), "the operators are == != < <= > >= & and ~"),
    };
    Err(FilterError::new(FilterCode::InvalidOp, Span::new(at, end), message, hint))
}

fn operand(text: &str, at: usize) -> Result<(Operand, usize), FilterError> {
    let rest = text.get(at..).unwrap_or_default();
    match rest.bytes().next() {
        Some(quote @ (b'"' | b'\'')) => quoted(text, at, quote),
        Some(b'-' | b'0'..=b'9') => number(text, at),
        _ if rest.starts_with("CPUS") => cpus(text, at),
        _ if rest.starts_with(OPEN_FLAGS) => flags(text, at),
        _ => {
            let end = end_of_word(text, at);
            let message = match text.get(at..end).unwrap_or_default() {
                "" => "expected a value to compare the field with".to_owned(),
                word => format!("`{word}` is neither a number nor a text in quotes"),
            };
            let hint = "numbers are like 1, -1 or 0x1f, and texts are in quotes: \"bash\"";
            Err(FilterError::new(FilterCode::InvalidValue, Span::new(at, end), message, hint))
        }
    }
}

fn quoted(text: &str, at: usize, quote: u8) -> Result<(Operand, usize), FilterError> {
    let inner = text.get(at + 1..).unwrap_or_default();
    let Some(length) = inner.find(char::from(quote)) else {
        return Err(FilterError::new(
            FilterCode::MissingQuote,
            Span::new(at, text.len()),
            "the text is not closed",
            format!(
                "close it with {}; put a text that contains this quote into the other kind of quotes",
                char::from(quote)
            ),
        ));
    };
    let end = at + length + 2;
    if length >= TEXT_LIMIT_BYTES {
        return Err(FilterError::new(
            FilterCode::OperandTooLong,
            Span::new(at, end),
            format!("the text has {length} bytes; the kernel takes fewer than {TEXT_LIMIT_BYTES}"),
            "compare with a part of it: `FIELD ~ \"BEGIN*\"`",
        ));
    }
    Ok((Operand::Text(inner.get(..length).unwrap_or_default().to_owned()), end))
}

/// Flags of `open` by their names.
fn flags(text: &str, at: usize) -> Result<(Operand, usize), FilterError> {
    let mut end = at + run(text, at, is_word_byte);
    let next = |end: usize| text.get(end..)?.strip_prefix('|').filter(|rest| rest.starts_with(OPEN_FLAGS));
    while let Some(rest) = next(end) {
        end += 1 + run(rest, 0, is_word_byte);
    }
    let names = text.get(at..end).unwrap_or_default();
    let Some(bits) = open_flags::number(names) else {
        return Err(FilterError::new(
            FilterCode::InvalidValue,
            Span::new(at, end),
            format!("`{names}` has a name that is not one of a flag of `open`"),
            "flags are like O_CREAT or O_WRONLY|O_TRUNC",
        ));
    };
    Ok((Operand::Number { text: names.to_owned(), value: Number::Unsigned(bits) }, end))
}

fn number(text: &str, at: usize) -> Result<(Operand, usize), FilterError> {
    let sign = usize::from(text.as_bytes().get(at) == Some(&b'-'));
    let end = at + sign + run(text, at + sign, |byte| byte.is_ascii_alphanumeric());
    let span = Span::new(at, end);
    let digits = text.get(span.range()).unwrap_or_default();
    if digits.len() >= NUMBER_LIMIT_BYTES {
        return Err(FilterError::new(
            FilterCode::OperandTooLong,
            span,
            format!(
                "the number has {} characters; the kernel takes fewer than {NUMBER_LIMIT_BYTES}",
                digits.len()
            ),
            "write it without leading zeros",
        ));
    }
    let error = digits.strip_prefix('-').and_then(errno::number);
    let value = match error {
        Some(error) => Some(Number::Negative(-i64::from(error))),
        None if sign == 1 => signed(digits).map(Number::Negative),
        None => unsigned(digits).map(Number::Unsigned),
    };
    match value {
        Some(value) => Ok((Operand::Number { text: digits.to_owned(), value }, end)),
        None => Err(FilterError::new(
            FilterCode::IllegalIntval,
            span,
            format!("`{digits}` is not a number of 64 bits"),
            "numbers are decimal, 0x hexadecimal, octal with a leading 0, or errors such as -ENOENT",
        )),
    }
}

fn cpus(text: &str, at: usize) -> Result<(Operand, usize), FilterError> {
    let open = at + "CPUS".len();
    let hint = "write CPUS{0-3,8}";
    if !text.get(open..).unwrap_or_default().starts_with('{') {
        let span = Span::new(at, end_of_word(text, at));
        return Err(FilterError::new(
            FilterCode::MissingBraceOpen,
            span,
            "there is no `{` after `CPUS`",
            hint,
        ));
    }
    let inner = text.get(open + 1..).unwrap_or_default();
    let Some(length) = inner.find('}') else {
        let span = Span::new(at, text.len());
        return Err(FilterError::new(
            FilterCode::MissingBraceClose,
            span,
            "the list of CPUs is not closed",
            hint,
        ));
    };
    let list = inner.get(..length).unwrap_or_default();
    let end = open + length + 2;
    match CpuSet::parse(list) {
        Ok(set) => Ok((Operand::Cpus { list: list.to_owned(), set }, end)),
        Err(problem) => Err(FilterError::new(
            FilterCode::InvalidCpulist,
            Span::new(open + 1, end - 1),
            format!("the list of CPUs {problem}"),
            hint,
        )),
    }
}

/// The name of a function, which for the kernel extends to the next blank, or an address.
fn function(text: &str, at: usize) -> Result<(Operand, usize), FilterError> {
    if text.as_bytes().get(at).is_some_and(u8::is_ascii_digit) {
        return number(text, at);
    }
    let end = at + run(text, at, |byte| !is_blank(byte) && !b"()&|!'\"".contains(&byte));
    let name = text.get(at..end).unwrap_or_default();
    if name.is_empty() {
        return Err(FilterError::new(
            FilterCode::InvalidValue,
            Span::new(at, end_of_word(text, at)),
            "expected the name of a function",
            "write the name without quotes, or an address: `FIELD.function == vfs_read`",
        ));
    }
    Ok((Operand::Function(name.to_owned()), end))
}

/// Whether there is such a comparison for such a value, whatever the field.
fn check_operator(
    operator: Operator,
    span: Span,
    suffix: Option<Suffix>,
    operand: &Operand,
) -> Result<(), FilterError> {
    use Operator::{Bits, Equal, Glob, NotEqual};
    let (fits, with, hint) = match operand {
        _ if suffix == Some(Suffix::Function) => {
            (matches!(operator, Equal | NotEqual), "a function", "compare functions with == or !=")
        }
        Operand::Text(_) => {
            (matches!(operator, Equal | NotEqual | Glob), "a text", "compare texts with ==, != or ~")
        }
        Operand::Cpus { .. } => {
            (matches!(operator, Equal | NotEqual | Bits), "a list of CPUs", "compare with ==, != or &")
        }
        Operand::Number { text, value: Number::Unsigned(0) } if text.starts_with(OPEN_FLAGS) => {
            (operator != Glob && operator != Bits, "flags without a bit", "write `!(FIELD & 3)` for O_RDONLY")
        }
        Operand::Number { .. } | Operand::Function(_) => {
            (operator != Glob, "a number", "patterns are for texts: `FIELD ~ \"a*\"`")
        }
    };
    if fits {
        return Ok(());
    }
    let message = format!("`{}` does not compare with {with}", operator.text());
    Err(FilterError::new(FilterCode::IllegalFieldOp, span, message, hint))
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Length of the run of such bytes at `at`.
fn run(text: &str, at: usize, belongs: impl Fn(u8) -> bool) -> usize {
    text.as_bytes().get(at..).unwrap_or_default().iter().take_while(|byte| belongs(**byte)).count()
}
