//! Places in a text, and problems there, with carets below the line.
//!
//! Owns the form in which a mistake is shown. Never judges a text.

use std::fmt::{self, Write as _};

use serde_saphyr::Location;

/// A piece of one line of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the line, from 1.
    pub line: usize,
    /// First character, from 1.
    pub column: usize,
    /// Characters; at least 1.
    pub length: usize,
}

/// A problem of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its place.
    pub place: Place,
    /// The line that it is in, without control characters.
    pub line: String,
    /// What is wrong and why.
    pub message: String,
    /// What to write instead; empty if the message is enough.
    pub hint: String,
}

/// Longest piece of a line that is shown, in characters: so that a file that is not a document
/// cannot flood a terminal.
const SHOWN: usize = 160;

impl Place {
    /// The part of a location that is in its first line. What is behind the last line is at its end.
    pub(crate) fn of(lines: &[&str], location: Location) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let line = number(location.line()).clamp(1, lines.len().max(1));
        let width = lines.get(line - 1).map_or(0, |line| line.trim_end().chars().count());
        let column = if location.line() > line as u64 { width + 1 } else { number(location.column()).max(1) };
        let length = number(location.span().len()).min((width + 1).saturating_sub(column)).max(1);
        Self { line, column, length }
    }
}

impl Problem {
    /// A problem at a place of a text with these lines.
    pub(crate) fn new(
        lines: &[&str],
        place: Place,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let line = lines.get(place.line.saturating_sub(1)).copied().unwrap_or_default();
        // One character replaces one: an escape sequence would shift the characters that follow.
        let line = line.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { place, line, message: message.into(), hint: hint.into() }
    }

    /// The line with carets below the place; nothing for an empty line.
    pub fn shown(&self) -> String {
        let mut shown = String::new();
        let before = self.place.column.saturating_sub(1);
        let width = self.line.chars().count();
        if !self.line.trim().is_empty() && before <= width {
            let carets = "^".repeat(self.place.length.clamp(1, (width - before).max(1)));
            write!(shown, "  | {}\n  | {}{carets}", self.line, " ".repeat(before)).ok();
        }
        shown
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// On one line, without the text: `4:1: ...`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, " ({})", self.hint) }
    }
}

/// The one of these words that the author most likely meant.
pub(crate) fn meant<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this similarity, words are unrelated.
    const ALIKE: f64 = 0.8;
    let likeness = |other: &str| strsim::jaro_winkler(&word.to_lowercase(), &other.to_lowercase());
    let best = words.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= ALIKE).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_stand_below_the_place() {
        let place = Place { line: 2, column: 3, length: 4 };
        let problem = Problem::new(&["a: 1", "ö:\tbcde"], place, "`bcde` is no number", "write `1`");
        assert_eq!(problem.shown(), "  | ö: bcde\n  |   ^^^^");
        assert_eq!(problem.to_string(), "2:3: `bcde` is no number (write `1`)");
        for place in [Place::default(), Place { line: 9, column: 9, length: 9 }] {
            Problem::new(&["a"], place, "", "").shown();
        }
    }

    #[test]
    fn words_that_are_alike_are_found() {
        assert_eq!(meant("fliter", ["filter", "labels"]), Some("filter"));
        assert_eq!(meant("onKernelchange", ["onKernelChange", "enabled"]), Some("onKernelChange"));
        assert_eq!(meant("zzz", ["filter", "labels"]), None);
    }
}
