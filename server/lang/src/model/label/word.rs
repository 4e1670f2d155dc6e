//! Words of labels: the rule for keys and values, and what is wrong with one of them or with a selector.
//!
//! Owns that rule, and how much of a text is shown around a problem. Never splits a label.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// A problem of labels or of a selector, and its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct LabelError {
    /// The label as `KEY=VALUE`, the key alone, or the selector. Cut if it is very long. Empty if
    /// the problem has no single position.
    pub text: String,
    /// Bytes of `text`, on boundaries of characters. Empty if something is missing.
    pub span: Range<usize>,
    /// The key of the label, if the problem is about one with a key and a value.
    pub key: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead. Empty if the message says it.
    pub hint: &'static str,
}

/// What is wrong, and what to write instead.
pub(super) type Problem = (String, &'static str);

/// Most bytes of a text that are shown: enough for the longest key and value.
const SHOWN_BYTES: usize = 160;

impl LabelError {
    /// A problem without a position.
    pub(super) fn whole(message: String) -> Self {
        Self::at("", 0..0, (message, ""))
    }

    /// A problem of one part of a label; the range is within that part.
    pub(super) fn in_label(
        key: &str,
        value: &str,
        part: Part,
        (problem, range): (Problem, Range<usize>),
    ) -> Self {
        let before = if part == Part::Value { key.len().saturating_add(1) } else { 0 };
        let span = range.start.saturating_add(before)..range.end.saturating_add(before);
        Self { key: Some(cut(key).to_owned()), ..Self::at(&format!("{key}={value}"), span, problem) }
    }

    /// A problem at a position of a text.
    pub(super) fn at(text: &str, span: Range<usize>, (message, hint): Problem) -> Self {
        let text = cut(text);
        let span = span.start.min(text.len())..span.end.min(text.len());
        Self { text: text.to_owned(), span, key: None, message, hint }
    }
}

/// The beginning of a text. What a client sends may be megabytes, and statuses travel in the
/// headers of responses.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SHOWN_BYTES)).unwrap_or(text)
}

/// Longest key, and longest value, in bytes.
const MAX_BYTES: usize = 63;

/// One of the two halves of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Before the `=`.
    Key,
    /// After the `=`.
    Value,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
        })
    }
}

/// Whether a key or a value can hold this character.
fn is_in_words(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._/-".contains(character)
}

/// The problem of a key or a value, and its bytes.
///
/// # Errors
/// The first problem.
pub(super) fn check(part: Part, word: &str) -> Result<(), (Problem, Range<usize>)> {
    if part == Part::Key && word.is_empty() {
        return Err((("a label needs a key".to_owned(), "write KEY=VALUE"), 0..0));
    }
    if let Some((at, character)) = word.char_indices().find(|(_, character)| !is_in_words(*character)) {
        let end = at.saturating_add(character.len_utf8());
        let message = format!("the {part} of a label cannot hold {character:?}");
        return Err(((message, "letters, digits, `.`, `_`, `/` and `-` only"), at..end));
    }
    if word.len() > MAX_BYTES {
        let bytes = word.len();
        let message =
            format!("the {part} of a label has {bytes} characters; at most {MAX_BYTES} are allowed");
        return Err(((message, ""), 0..bytes));
    }
    Ok(())
}
