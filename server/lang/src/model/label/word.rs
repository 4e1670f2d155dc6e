//! Label words: the rule for keys and values.
//!
//! Owns that rule. Never splits a label.

use std::fmt;
use std::ops::Range;

use super::LabelProblem;

/// Longest key, and longest value, in bytes.
const MAX_BYTES: usize = 63;

/// One of the two halves of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
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
pub(super) fn check(part: Part, word: &str) -> Result<(), (LabelProblem, Range<usize>)> {
    if part == Part::Key && word.is_empty() {
        return Err((LabelProblem::EmptyKey, 0..0));
    }
    if let Some((at, character)) = word.char_indices().find(|(_, character)| !is_in_words(*character)) {
        let end = at.saturating_add(character.len_utf8());
        return Err((LabelProblem::BadCharacter { part, character }, at..end));
    }
    if word.len() > MAX_BYTES {
        return Err((LabelProblem::TooLong { part, bytes: word.len() }, 0..word.len()));
    }
    Ok(())
}
