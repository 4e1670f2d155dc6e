//! Spans of the source text, and the scan over blanks and words.

use std::ops::Range;

/// A half-open range of byte offsets into the text that was parsed; both ends are on character boundaries.
///
/// Nodes that the daemon makes itself (guards, explicit names) carry the empty span at the place they belong
/// to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The span from `start` up to, but without, `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// The empty span at `at`, for what is missing there.
    pub const fn point(at: usize) -> Self {
        Self { start: at, end: at }
    }

    /// The same as a range, for slicing the text.
    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// The kernel's ASCII blanks.
pub(super) fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// The first place from `at` on that is not a blank.
pub(super) fn skip_blanks(text: &str, at: usize) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| is_blank(**byte)).count()
}

/// Where the word at `at` ends, for pointing at it: letters and digits, or other characters, but at least one.
pub(super) fn end_of_word(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let Some(first) = rest.chars().next() else { return at };
    let other = |c: char| in_word(c) != in_word(first) || c.is_whitespace() || "()'\"".contains(c);
    at + first.len_utf8() + rest.chars().skip(1).take_while(|c| !other(*c)).map(char::len_utf8).sum::<usize>()
}
