//! Errors of labels and selectors: what is wrong, at which position, and what to write instead.
//!
//! Owns messages and hints. Never parses a label.

use std::ops::Range;

use thiserror::Error;

use super::{MAX_LABELS, Part};

/// A problem of labels or of a selector, and its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct LabelError {
    /// The label as `KEY=VALUE`, the key alone, or the selector. Cut if it is very long. Empty if
    /// the problem has no single position.
    pub text: String,
    /// Bytes of `text`, on boundaries of characters. Empty if something is missing.
    pub span: Range<usize>,
    /// The key of the label, if the problem is about one with a key and a value.
    pub key: Option<String>,
    /// What is wrong.
    pub problem: LabelProblem,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LabelProblem {
    /// A label without a key.
    #[error("a label needs a key")]
    EmptyKey,
    /// More than 63 bytes.
    #[error("the {part} of a label has {bytes} characters; at most 63 are allowed")]
    TooLong {
        /// Key or value.
        part: Part,
        /// How many it has.
        bytes: usize,
    },
    /// A character that is not allowed in keys and values.
    #[error("the {part} of a label cannot hold {character:?}")]
    BadCharacter {
        /// Key or value.
        part: Part,
        /// The character.
        character: char,
    },
    /// More labels than a probe can have.
    #[error("the probe would have {labels} labels; at most {MAX_LABELS} are allowed")]
    TooMany {
        /// How many there would be.
        labels: usize,
    },
    /// The same key is to be set and to be removed.
    #[error("the same label cannot be set and removed")]
    SetAndRemoved,
    /// A selector that is too long.
    #[error("the selector has {bytes} bytes; at most {most} are allowed")]
    LongSelector {
        /// How many it may have.
        most: usize,
        /// How many it has.
        bytes: usize,
    },
    /// Nothing at a position at which a selector needs a key.
    #[error("expected a key")]
    NoKey,
    /// An unexpected text after a key.
    #[error("a key is followed by `=`, `!=`, `in`, `notin`, a comma or the end")]
    NoOperator,
    /// No set after `in` or `notin`.
    #[error("`in` and `notin` are followed by values in parentheses")]
    NoSet,
    /// A set that does not end.
    #[error("expected a comma or `)`")]
    OpenSet,
    /// Further text after a complete requirement.
    #[error("expected a comma")]
    NoComma,
}

impl LabelProblem {
    /// What to write instead. Empty if the problem says it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::BadCharacter { .. } => "letters, digits, `.`, `_`, `/` and `-` only",
            Self::EmptyKey => "write KEY=VALUE",
            Self::NoKey | Self::NoOperator | Self::NoComma => {
                "write `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)` or `key notin (a,b)`, with commas between"
            }
            Self::NoSet | Self::OpenSet => "write `key in (a,b)` or `key notin (a,b)`",
            Self::TooLong { .. } | Self::TooMany { .. } | Self::SetAndRemoved | Self::LongSelector { .. } => {
                ""
            }
        }
    }
}

/// Most bytes of a text that are shown: enough for the longest key and value.
const SHOWN_BYTES: usize = 160;

impl LabelError {
    /// A problem without a position.
    pub(super) fn whole(problem: LabelProblem) -> Self {
        Self { text: String::new(), span: 0..0, key: None, problem }
    }

    /// A problem of one part of a label; the range is within that part.
    pub(super) fn in_label(
        key: &str,
        value: &str,
        part: Part,
        (problem, range): (LabelProblem, Range<usize>),
    ) -> Self {
        let before = if part == Part::Value { key.len().saturating_add(1) } else { 0 };
        let span = range.start.saturating_add(before)..range.end.saturating_add(before);
        Self { key: Some(cut(key).to_owned()), ..Self::at(&format!("{key}={value}"), span, problem) }
    }

    /// A problem of a key alone.
    pub(super) fn in_key(key: &str, (problem, range): (LabelProblem, Range<usize>)) -> Self {
        Self::at(key, range, problem)
    }

    /// A problem at a position of a text.
    pub(super) fn at(text: &str, span: Range<usize>, problem: LabelProblem) -> Self {
        let text = cut(text);
        let span = span.start.min(text.len())..span.end.min(text.len());
        Self { text: text.to_owned(), span, key: None, problem }
    }
}

/// The beginning of a text. What a client sends may be megabytes, and statuses travel in the
/// headers of responses.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SHOWN_BYTES)).unwrap_or(text)
}
