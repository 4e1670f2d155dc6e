//! Lexer: from a text to the words of its single definition.
//!
//! Owns lines, comments and words. Follows kernel/trace/trace.c:trace_parse_run_command (lines,
//! comments, length) and lib/argv_split.c (words). Never decides what a word means.

use super::Span;
use super::code::Code;
use super::diagnostic::Diagnostic;

/// Longest line that the kernel accepts, without its newline (`WRITE_BUFSIZE - 2`).
pub(super) const LINE_MAX_BYTES: usize = 4094;

/// One word, and its position in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) start: usize,
    pub(super) text: &'a str,
}

impl<'a> Word<'a> {
    pub(super) fn end(self) -> usize {
        self.start + self.text.len()
    }

    pub(super) fn span(self) -> Span {
        Span::new(self.start, self.end())
    }

    /// A problem of all of it.
    pub(super) fn error(self, code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.span(), message)
    }

    /// The part from byte `from` on, which must be a character boundary of the word.
    pub(super) fn tail(self, from: usize) -> Self {
        Word { start: self.start + from, text: &self.text[from..] }
    }

    /// The part before byte `to`, which must be a character boundary of the word.
    pub(super) fn head(self, to: usize) -> Self {
        Word { start: self.start, text: &self.text[..to] }
    }

    /// Without the blanks around it.
    pub(super) fn trimmed(self) -> Self {
        let text = self.text.trim_start();
        Self { start: self.start + self.text.len() - text.len(), text: text.trim_end() }
    }

    /// The parts between separators.
    pub(super) fn split(self, separator: char) -> impl Iterator<Item = Word<'a>> {
        let mut start = self.start;
        self.text.split(separator).map(move |text| {
            let part = Word { start, text };
            start = part.end() + separator.len_utf8();
            part
        })
    }

    /// The parts before and after the first `separator`.
    pub(super) fn split_once(self, separator: char) -> Option<(Word<'a>, Word<'a>)> {
        let at = self.text.find(separator)?;
        Some((self.head(at), self.tail(at + separator.len_utf8())))
    }
}

/// Whether the kernel's `isspace` accepts this ASCII character.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The words of all lines of a text, without comments.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    lines(text).flat_map(words_of)
}

fn words_of(line: Word<'_>) -> impl Iterator<Item = Word<'_>> {
    line.text.split(is_blank).filter(|word| !word.is_empty()).map(move |word| Word {
        // Both are parts of the same text, so that the distance of their addresses is the offset.
        start: line.start + (word.as_ptr() as usize - line.text.as_ptr() as usize),
        text: word,
    })
}

/// Each line up to its comment. A `#` cuts the line anywhere, even inside an immediate string.
fn lines(text: &str) -> impl Iterator<Item = Word<'_>> {
    let lines = Word { start: 0, text }.split('\n');
    lines.map(|line| line.head(line.text.find('#').unwrap_or(line.text.len())))
}

/// The words of the only definition in `text`, or why there is not exactly one that could be
/// written to the kernel.
pub(super) fn single(text: &str) -> Result<Vec<Word<'_>>, Diagnostic> {
    let mut found: Option<Vec<Word<'_>>> = None;
    for line in lines(text) {
        let words: Vec<_> = words_of(line).collect();
        let (Some(first), Some(last)) = (words.first(), words.last()) else { continue };
        if found.is_some() {
            return Err(Diagnostic::error(
                Code::SeveralLines,
                Span::new(first.start, last.end()),
                "a second definition: a request defines one probe",
            ));
        }
        check_line(text, line, first.start)?;
        found = Some(words);
    }
    found.ok_or_else(|| {
        Diagnostic::error(Code::NoDefinition, Span::point(text.len()), "there is no definition")
    })
}

/// The problem of a line with so many bytes.
pub(super) fn line_too_long(span: Span, bytes: usize) -> Diagnostic {
    let message = format!("the line has {bytes} bytes, the kernel takes {LINE_MAX_BYTES}");
    Diagnostic::error(Code::LineTooLong, span, message)
}

/// Checks of a line before its words are parsed.
fn check_line(text: &str, line: Word<'_>, first: usize) -> Result<(), Diagnostic> {
    // The comment counts: the kernel measures the line before it cuts it.
    let whole = text[line.start..].split('\n').next().unwrap_or_default();
    if whole.len() > LINE_MAX_BYTES {
        return Err(line_too_long(Span::new(first, line.end()), whole.len()));
    }
    // A NUL ends the kernel's copy of the text, and its `isspace` follows Latin-1, where the byte
    // 0xa0 is a blank that would cut a UTF-8 character (and the word) in two.
    let bad = |c: char| c == '\0' || c.encode_utf8(&mut [0; 4]).as_bytes().contains(&0xa0);
    match line.text.char_indices().find(|(_, c)| bad(*c)) {
        Some((at, c)) => Err(Diagnostic::error(
            Code::BadCharacter,
            Span::new(line.start + at, line.start + at + c.len_utf8()),
            format!("the kernel cannot read the character {c:?} in a definition"),
        ))
        // The part before a NUL can be a valid line; half of a character is in no valid word.
        .map_err(|problem| if c == '\0' { problem.by_kprobed() } else { problem }),
        None => Ok(()),
    }
}
