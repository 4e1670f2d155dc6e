//! Label words: the rule for keys and values.
//!
//! Owns that rule. Never splits a label.

use std::fmt;
use std::ops::Range;

use super::error::Problem;

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
pub(super) fn is_in_words(character: char) -> bool {
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
