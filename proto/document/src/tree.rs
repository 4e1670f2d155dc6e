//! YAML tree: a parsed text in which every value has its place.
//!
//! Owns the subset of YAML that documents are written in: mappings, sequences and scalars. It never
//! accepts anchors, aliases and tags: a document means what it shows, and a text of a kilobyte
//! cannot expand to a gigabyte.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use crate::place::{Place, Problem};

/// Deepest nesting. A document has two levels.
const MAX_DEPTH: usize = 8;

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// Content of a value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A text, and whether it is without quotes: then it can also be a number or a truth value.
    Scalar { text: String, plain: bool },
    /// A list, which no key of a document takes.
    Sequence,
    /// Keys with values, in the order of the text.
    Mapping(Vec<(Node, Node)>),
}

impl Node {
    /// Whether it is empty: `null`, `~`, or no text at all.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Its kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            _ if self.is_null() => "nothing",
            Value::Scalar { .. } => "a text",
            Value::Sequence => "a list",
            Value::Mapping(_) => "a mapping",
        }
    }
}

/// A collection that is not complete yet.
enum Open {
    Sequence(Place),
    Mapping { place: Place, entries: Vec<(Node, Node)>, key: Option<Node>, seen: HashMap<String, usize> },
}

/// Reads the documents of a text. Empty documents are left out.
pub(crate) fn read(text: &str) -> Result<Vec<Node>, Problem> {
    let lines: Vec<&str> = text.lines().collect();
    let mut documents = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(text, &error))?;
        let place = place(&lines, &span);
        let node = match event {
            Event::SequenceStart(anchor, tag) => {
                plain_only(text, place, anchor, tag.is_some())?;
                open.push(Open::Sequence(place));
                None
            }
            Event::MappingStart(anchor, tag) => {
                plain_only(text, place, anchor, tag.is_some())?;
                open.push(Open::Mapping { place, entries: Vec::new(), key: None, seen: HashMap::new() });
                None
            }
            Event::Scalar(scalar, style, anchor, tag) => {
                plain_only(text, place, anchor, tag.is_some())?;
                let plain = style == ScalarStyle::Plain;
                Some(Node { place, value: Value::Scalar { text: scalar.into_owned(), plain } })
            }
            Event::Alias(_) => plain_only(text, place, 1, false).map(|()| None)?,
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(Open::close),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => None,
        };
        if open.len() > MAX_DEPTH {
            let message = format!("this is nested more than {MAX_DEPTH} times");
            return Err(Problem::new(text, place, message, "no document needs as much"));
        }
        let Some(node) = node else { continue };
        match open.last_mut() {
            Some(inner) => inner.add(node).map_err(|(place, message)| {
                Problem::new(text, place, message, "write each key once, as a word")
            })?,
            None if node.is_null() => {}
            None => documents.push(node),
        }
    }
    Ok(documents)
}

impl Open {
    fn add(&mut self, node: Node) -> Result<(), (Place, String)> {
        match self {
            Self::Sequence(_) => {}
            Self::Mapping { entries, key, seen, .. } => {
                if let Some(key) = key.take() {
                    entries.push((key, node));
                    return Ok(());
                }
                let Value::Scalar { text, .. } = &node.value else {
                    return Err((node.place, format!("{} cannot be a key", node.kind())));
                };
                if let Some(first) = seen.insert(text.clone(), node.place.line) {
                    return Err((node.place, format!("`{text}` stands in line {first} already")));
                }
                *key = Some(node);
            }
        }
        Ok(())
    }

    fn close(self) -> Node {
        match self {
            Self::Sequence(place) => Node { place, value: Value::Sequence },
            Self::Mapping { place, entries, .. } => Node { place, value: Value::Mapping(entries) },
        }
    }
}

fn plain_only(text: &str, place: Place, anchor: usize, tag: bool) -> Result<(), Problem> {
    let (message, hint) = match (anchor, tag) {
        (0, false) => return Ok(()),
        (0, true) => ("tags (`!`) are not taken", "leave it out, or put the text into quotes"),
        _ => (
            "anchors and aliases (`&`, `*`) are not taken",
            "write the value out, or put the text into quotes",
        ),
    };
    Err(Problem::new(text, place, message, hint))
}

fn syntax(text: &str, error: &ScanError) -> Problem {
    let marker = error.marker();
    // There is no line to show after the last one.
    let line = marker.line().clamp(1, text.lines().count().max(1));
    let column = if line == marker.line() {
        marker.col() + 1
    } else {
        text.lines().last().map_or(0, |last| last.chars().count()) + 1
    };
    let place = Place { line, column, length: 1 };
    let hint = if text.contains('\t') {
        "YAML is indented with blanks, never with tabs; put texts with `: `, ` #`, `%`, `@` or quotes in them into single quotes"
    } else {
        "put texts with `: `, ` #`, `%`, `@` or quotes in them into single quotes"
    };
    Problem::new(text, place, format!("this is not YAML: {}", error.info()), hint)
}

/// The part of a span that is in its first line.
fn place(lines: &[&str], span: &Span) -> Place {
    let (line, column) = (span.start.line().max(1), span.start.col() + 1);
    let length = if span.end.line() == span.start.line() {
        span.end.col().saturating_sub(span.start.col())
    } else {
        let whole = lines.get(line - 1).map_or(0, |line| line.trim_end().chars().count());
        whole.saturating_sub(span.start.col())
    };
    Place { line, column, length: length.max(1) }
}
