//! A whole `format` file: name, id, common fields, own fields, and how the kernel prints each.
//!
//! Owns the order of these parts and the errors of a malformed file.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::field::{Field, Presentation, Shape};

/// Contents of a `format` file (kernel/trace/trace_events.c:f_show).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Name of the event, without its group.
    pub name: String,
    /// `common_type` of its records. Good while the event exists: ids are used again.
    pub id: u16,
    /// The fields that all events have.
    pub common: Vec<Field>,
    /// The event's own fields, in the order of the file. For a kprobe event that is the order of
    /// the definition, after the addresses.
    pub fields: Vec<Field>,
}

/// Why a text is not a `format` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("format line {line}: {problem}")]
pub struct FormatError {
    /// The line, from 1. For something that is missing, the last one.
    pub line: usize,
    /// What is wrong there.
    pub problem: String,
}

impl Format {
    /// Reads a `format` file.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let mut lines = (1_usize..).zip(text.lines());
        let last = text.lines().count().max(1);
        let missing = |part: &str| FormatError { line: last, problem: format!("there is no `{part}`") };

        let (_, name) = after(&mut lines, "name:").ok_or_else(|| missing("name:"))?;
        let (line, id) = after(&mut lines, "ID:").ok_or_else(|| missing("ID:"))?;
        let id = id
            .parse()
            .ok()
            .ok_or_else(|| FormatError { line, problem: format!("`{id}` is not an event id") })?;
        after(&mut lines, "format:").ok_or_else(|| missing("format:"))?;

        let (mut common, mut fields) = (Vec::new(), Vec::new());
        let mut commons_are_over = false;
        for (line, text) in lines {
            let text = text.trim();
            if text.is_empty() {
                commons_are_over = true;
                continue;
            }
            if let Some(print_fmt) = text.strip_prefix("print fmt:") {
                present(print_fmt, &mut fields);
                return Ok(Self { name: name.to_owned(), id, common, fields });
            }
            let field = Field::parse(text).map_err(|problem| FormatError { line, problem })?;
            if commons_are_over { fields.push(field) } else { common.push(field) }
        }
        Err(missing("print fmt:"))
    }
}

/// The rest of the next line that begins with `part`.
fn after<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, part: &str) -> Option<(usize, &'a str)> {
    lines.find_map(|(line, text)| Some((line, text.strip_prefix(part)?.trim())))
}

/// Gives the fields the presentation that stands in the rest of a `print fmt:` line, in the `NAME=SPEC` words that
/// dynamic events print (kernel/trace/trace_probe.c:__set_print_fmt).
///
/// Only they tell a hexadecimal number, a character or a symbol from a plain number. Tracepoints print any text; words
/// that are not such a pair, or that do not suit the field of that name, are skipped.
fn present(rest: &str, fields: &mut [Field]) {
    let Some(literal) = literal(rest) else { return };
    for word in literal.split(' ') {
        let Some((name, spec)) = word.split_once('=') else { continue };
        let Some(presentation) = presentation(spec) else { continue };
        if let Some(field) = fields.iter_mut().find(|field| field.name == name && suits(presentation, field))
        {
            field.presentation = presentation;
        }
    }
}

/// The text of the C string literal at the beginning, up to the first quote that is not escaped.
fn literal(rest: &str) -> Option<&str> {
    let inner = rest.trim_start().strip_prefix('"')?;
    let mut escaped = false;
    let end = inner.bytes().position(|byte| {
        let quote = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        quote
    })?;
    inner.get(..end)
}

/// What one `SPEC` means: a conversion, or the same one for all values of an array, `{SPEC,SPEC}`.
fn presentation(spec: &str) -> Option<Presentation> {
    let Some(list) = spec.strip_prefix('{') else { return conversion(spec) };
    let mut specs = list.strip_suffix('}')?.split(',');
    let first = specs.next()?;
    specs.all(|spec| spec == first).then(|| conversion(first))?
}

fn conversion(spec: &str) -> Option<Presentation> {
    Some(match spec {
        "0x%x" | "0x%lx" | "0x%Lx" => Presentation::Hex,
        "%u" | "%lu" | "%Lu" => Presentation::Unsigned,
        "%d" | "%ld" | "%Ld" => Presentation::Signed,
        "'%c'" => Presentation::Char,
        "%pS" => Presentation::Symbol,
        r#"\"%s\""# => Presentation::String,
        _ => return None,
    })
}

fn suits(presentation: Presentation, field: &Field) -> bool {
    match presentation {
        Presentation::String => field.is_text(),
        Presentation::Char => field.value_size() == Some(1) && !field.is_text(),
        Presentation::Symbol => field.value_size() == Some(8),
        Presentation::Hex | Presentation::Unsigned | Presentation::Signed => {
            matches!(field.shape, Shape::Scalar { .. } | Shape::Array { .. }) && !field.is_text()
        }
    }
}
