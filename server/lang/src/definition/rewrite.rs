//! Rewritten lines: a line of the kernel's language that is made of another dialect, with the
//! position of each part in the user's text.
//!
//! Owns the mapping of positions from the line back to the text: the kernel's grammar parses the
//! line as if the user had written it, and all positions in the result are moved to the text. Never
//! parses a dialect by itself.

use super::Span;
use super::ast::Definition;
use super::code::Code;
use super::diagnostic::{ArgumentStep, Diagnostic, Step};
use super::line::Word;
use super::parse::Parsed;

/// A line, and the origin of its parts.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    line: String,
    parts: Vec<LinePart>,
    words: Vec<RewrittenWord>,
    /// Words do not look like the text from which they are made.
    is_of_whole_words: bool,
}

/// A part of the line from `start` on.
#[derive(Debug)]
struct LinePart {
    start: usize,
    /// Its position in the user's text.
    origin: Span,
    /// Whether the user wrote the same text there, byte for byte.
    is_copy: bool,
    /// The user's word for this part, if it is a single one.
    written: Option<String>,
}

/// A word of the line.
#[derive(Debug)]
struct RewrittenWord {
    range: Span,
    /// The part of the user's text from which it is made.
    origin: Span,
}

impl Rewritten {
    /// An empty line for words that look unlike the text from which they are made: a problem in one
    /// is shown at all of it.
    pub(super) fn of_whole_words() -> Self {
        Self { is_of_whole_words: true, ..Self::default() }
    }

    /// The line.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Begins a word that is made of this part of the user's text.
    pub(super) fn begin_word(&mut self, origin: Span) {
        if let Some(last) = self.words.last() {
            let gap = Span::new(last.origin.end, origin.start.max(last.origin.end));
            self.put(" ", gap);
        }
        self.words.push(RewrittenWord { range: Span::point(self.line.len()), origin });
    }

    /// Adds a part of the user's text unchanged.
    pub(super) fn copy(&mut self, part: Word<'_>) {
        self.add(part.text, part.span(), true, None);
    }

    /// Adds the replacement of a word of the user's text.
    pub(super) fn replace(&mut self, written: Word<'_>, text: &str) {
        self.add(text, written.span(), false, Some(written.text.to_owned()));
    }

    /// Adds the replacement of a part of the user's text.
    pub(super) fn put(&mut self, text: &str, origin: Span) {
        self.add(text, origin, false, None);
    }

    fn add(&mut self, text: &str, origin: Span, is_copy: bool, written: Option<String>) {
        if text.is_empty() {
            return;
        }
        self.parts.push(LinePart { start: self.line.len(), origin, is_copy, written });
        self.line.push_str(text);
        if let Some(word) = self.words.last_mut().filter(|_| text != " ") {
            word.range = Span::new(word.range.start, self.line.len());
        }
    }

    /// Moves all positions in the result of parsing the line to the user's text.
    pub(super) fn moved_to_text(&self, mut parsed: Parsed) -> Parsed {
        if let Some(Definition::Probe(probe)) = &mut parsed.tree {
            probe.map_spans(&|span| self.origin(span));
            for warning in &mut probe.warnings {
                warning.span = self.origin(warning.span);
            }
        }
        for finding in &mut parsed.findings {
            self.move_finding(finding);
        }
        parsed
    }

    fn move_finding(&self, finding: &mut Diagnostic) {
        if let Step::Argument(_, ArgumentStep::Expression(at, _)) = &mut finding.step {
            *at = self.origin(Span::point(*at)).start;
        }
        let is_limit = matches!(
            finding.code,
            Code::ArgTooLong | Code::TooManyOps | Code::TooManyNested | Code::EventTooBig | Code::LineTooLong
        );
        let word = self.words.iter().rfind(|word| word.range.start <= finding.span.start);
        let is_whole = is_limit || self.is_of_whole_words;
        if let Some(word) = word.filter(|word| is_whole && self.is_rewritten(word.range)) {
            // The kernel's limits are for the text that it gets.
            let gets = self.line.get(word.range.range()).unwrap_or_default();
            finding.message = format!("{} (the kernel gets `{gets}`)", finding.message);
            finding.span = word.origin;
            return;
        }
        let gets = self.line.get(finding.span.range()).unwrap_or_default();
        let part = self.parts.iter().find(|part| part.start == finding.span.start);
        if finding.code == Code::BadArgNum
            && let Some(written) = part.and_then(|part| part.written.as_ref())
        {
            // The message names the number that the user wrote.
            finding.message = finding.message.replace(&format!("`{gets}`"), &format!("`{written}`"));
        }
        finding.span = self.origin(finding.span);
    }

    fn is_rewritten(&self, range: Span) -> bool {
        self.parts.iter().any(|part| !part.is_copy && range.range().contains(&part.start))
    }

    /// The position of a part of the line in the user's text.
    fn origin(&self, span: Span) -> Span {
        if let Some(word) = self.words.iter().find(|word| word.range == span) {
            return word.origin;
        }
        let at = |position: usize| self.parts.iter().rfind(|part| part.start <= position);
        let start = at(span.start)
            .map_or(0, |part| part.origin.start + if part.is_copy { span.start - part.start } else { 0 });
        if span.end <= span.start {
            return Span::point(start);
        }
        let end = at(span.end - 1).map_or(start, |part| {
            if part.is_copy { part.origin.start + (span.end - part.start) } else { part.origin.end }
        });
        Span::new(start, end.max(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `p f x=+8(a1)` as a line of today.
    fn line() -> Rewritten {
        let text = "p f  x=+8(a1):u8";
        let part = |start: usize, end: usize| Word { start, text: &text[start..end] };
        let mut line = Rewritten::default();
        for (start, end) in [(0, 1), (2, 3)] {
            line.begin_word(Span::new(start, end));
            line.copy(part(start, end));
        }
        line.begin_word(Span::new(5, 16));
        line.copy(part(5, 10));
        line.replace(part(10, 12), "$arg2");
        line.copy(part(12, 16));
        line
    }

    #[test]
    fn positions_lead_back_to_the_text() {
        let line = line();
        assert_eq!(line.line(), "p f x=+8($arg2):u8");
        let origin = |part: &str| {
            let start = line.line().find(part).unwrap();
            line.origin(Span::new(start, start + part.len()))
        };
        for (part, start, end) in [
            ("f", 2, 3),
            ("x=", 5, 7),
            ("$arg2", 10, 12),
            ("arg", 10, 12),
            ("):u8", 12, 16),
            ("+8($arg2)", 7, 13),
        ] {
            assert_eq!(origin(part), Span::new(start, end), "{part}");
        }
        assert_eq!(line.origin(Span::point(line.line().len())), Span::point(16), "behind the end");
    }

    #[test]
    fn problems_are_shown_at_what_was_written() {
        let line = line();
        let moved = |code, span, message: &str| {
            let mut finding = Diagnostic::error(code, span, message);
            line.move_finding(&mut finding);
            (finding.span, finding.message)
        };
        let (span, message) = moved(Code::BadArgNum, Span::new(9, 14), "`$arg2` is bad");
        assert_eq!((span, message.as_str()), (Span::new(10, 12), "`a1` is bad"));
        let (span, message) = moved(Code::ArgTooLong, Span::new(6, 18), "too long");
        assert_eq!(
            (span, message.as_str()),
            (Span::new(5, 16), "too long (the kernel gets `x=+8($arg2):u8`)")
        );
        let (span, message) = moved(Code::LineTooLong, Span::new(0, 1), "too long");
        assert_eq!((span, message.as_str()), (Span::new(0, 1), "too long"));
    }
}
