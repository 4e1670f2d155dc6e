//! A whole `format` file: name, id, common fields, own fields.
//!
//! Owns the order of these parts and the errors of a malformed file.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::field::Field;
use super::print_fmt;

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
                print_fmt::apply(print_fmt, &mut fields);
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
