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

/// Most characters of a line that are shown with a place in it.
const SHOWN_CHARACTERS: usize = 100;
/// What stands for the rest of a longer line.
const CUT: &str = "...";

/// A line as it is shown with a mark under a part of it: one character for each, so that the mark stays
/// where it belongs, and of a long line only the surroundings of the part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or a part of it.
    pub shown: String,
    /// Characters before the mark.
    pub before: usize,
    /// Characters over the mark.
    pub width: usize,
}

impl Excerpt {
    /// The surroundings of a span of a line. A span that does not fit the line is cut to it.
    pub fn of(line: &str, span: Span) -> Self {
        let up_to = |at: usize| line.char_indices().take_while(|(start, _)| *start < at).count();
        let (start, end) = (up_to(span.start), up_to(span.end));
        // One column for each: a tab or another control character would move the mark.
        let all: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if all.len() <= SHOWN_CHARACTERS {
            return Self {
                shown: all.into_iter().collect(),
                before: start,
                width: end.saturating_sub(start),
            };
        }
        let width = end.saturating_sub(start).min(SHOWN_CHARACTERS / 2);
        let first = (start + width / 2).saturating_sub(SHOWN_CHARACTERS / 2);
        let first = first.min(all.len() - SHOWN_CHARACTERS);
        let last = first + SHOWN_CHARACTERS;
        let (head, tail) = (if first > 0 { CUT } else { "" }, if last < all.len() { CUT } else { "" });
        let part: String = all.get(first..last).unwrap_or_default().iter().collect();
        Self { shown: format!("{head}{part}{tail}"), before: head.len() + start - first, width }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_the_mark() {
        let line = (0..300).map(|n| format!("a{n}=+{n}(%ax):u64 ")).collect::<Vec<_>>().concat();
        for at in (0..line.len()).step_by(7) {
            let Excerpt { shown, before, width } = Excerpt::of(&line, Span::new(at, at + 5));
            assert!(shown.len() <= SHOWN_CHARACTERS + 2 * CUT.len());
            assert_eq!(shown.get(before..before + width), line.get(at..(at + 5).min(line.len())), "{shown}");
        }
        let whole = Excerpt::of(&line, Span::new(0, line.len()));
        assert_eq!((whole.before, whole.width), (0, SHOWN_CHARACTERS / 2));
        assert_eq!(
            Excerpt::of("a\tö=b", Span::new(2, 99)),
            Excerpt { shown: "a ö=b".to_owned(), before: 2, width: 3 }
        );
    }
}
