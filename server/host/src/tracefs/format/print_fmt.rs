//! The `print fmt` line: how the kernel prints each field.
//!
//! Owns the `NAME=SPEC` words that dynamic events print
//! (kernel/trace/trace_probe.c:__set_print_fmt). Only they tell a hexadecimal number, a character
//! or a symbol from a plain number. Tracepoints print any text; words that are not such a pair, or
//! that do not suit the field of that name, are skipped.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::field::{Field, Presentation, Shape};

/// Gives the fields the presentation that stands in the rest of a `print fmt:` line.
pub(super) fn apply(rest: &str, fields: &mut [Field]) {
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
