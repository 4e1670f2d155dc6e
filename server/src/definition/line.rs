//! The lexer: from a text to the words of its single definition.
//!
//! Follows kernel/trace/trace.c:trace_parse_run_command (lines, comments, length) and lib/argv_split.c
//! (words). It knows nothing about what a word means.

use super::code::Code;
use super::diagnostic::Diagnostic;
use super::span::Span;

/// Longest line that the kernel takes, without its newline (`WRITE_BUFSIZE - 2`).
pub(super) const LINE_MAX_BYTES: usize = 4094;

/// One word, and where it starts in the text.
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

    /// The part from byte `from` on, which must be a character boundary of the word.
    pub(super) fn tail(self, from: usize) -> Self {
        Word { start: self.start + from, text: &self.text[from..] }
    }

    /// The part before byte `to`, which must be a character boundary of the word.
    pub(super) fn head(self, to: usize) -> Self {
        Word { start: self.start, text: &self.text[..to] }
    }

    /// The parts before and after the first `separator`.
    pub(super) fn split_once(self, separator: char) -> Option<(Word<'a>, Word<'a>)> {
        let at = self.text.find(separator)?;
        Some((self.head(at), self.tail(at + separator.len_utf8())))
    }
}

/// What the kernel's `isspace` says of the ASCII characters.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The words of all lines of a text, comments left out.
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

/// Each line up to its comment. A `#` cuts the line wherever it stands, even inside an immediate string.
fn lines(text: &str) -> impl Iterator<Item = Word<'_>> {
    let mut start = 0;
    text.split('\n').map(move |line| {
        let here = start;
        start += line.len() + 1;
        Word { start: here, text: line.split('#').next().unwrap_or_default() }
    })
}

/// The words of the only definition in `text`, or why there is not exactly one that could be sent to the
/// kernel.
pub(super) fn single(text: &str) -> Result<Vec<Word<'_>>, Diagnostic> {
    let mut found: Option<Vec<Word<'_>>> = None;
    for line in lines(text) {
        let words: Vec<_> = words_of(line).collect();
        let (Some(first), Some(last)) = (words.first(), words.last()) else { continue };
        if found.is_some() {
            return Err(Diagnostic::error(
                Code::SeveralLines,
                Span::new(first.start, last.end()),
                "a second definition: one text defines one probe",
            ));
        }
        check_line(text, line, first.start)?;
        found = Some(words);
    }
    found.ok_or_else(|| {
        Diagnostic::error(Code::NoDefinition, Span::point(text.len()), "no definition in this text")
    })
}

/// What of an argument cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// A member, or what should be the name of a parameter.
    Name,
    /// The type does not fit the expression, which the kernel has read by then.
    Fit,
    /// The name that the kernel makes for it.
    OwnName,
    /// Anything else.
    Word,
}

/// When the kernel looks at words that are `$argN` and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumbersAre {
    /// With all others, in their order (before 6.5).
    InOrder,
    /// Before all others it asks whether there can be any (from 6.5 on).
    AskedFirst,
    /// Before all others it puts the names of parameters there.
    NamedFirst,
}

/// A part of a line that the kernel looks at before it comes to where it cannot read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPart {
    /// The line with blanks for the rest, so that positions stay.
    pub text: String,
    /// Whether it looks names up by then, or only whether there can be any.
    pub looks_names_up: bool,
    /// Where the words begin that it has only looked at for what they are.
    pub read_end: usize,
}

/// What the kernel looks at before it finds out at `end` that it cannot read a line, in its order: where it looks at words that are
/// `$arg...` and nothing else first, those; the arguments before that which `end` is in; and the same with as much of that one as it has
/// read by then.
pub fn parts_before<'a>(text: &'a str, end: usize, unread: Unread, numbers: NumbersAre) -> Vec<ReadPart> {
    let Ok(words) = single(text) else { return Vec::new() };
    let Some((head, arguments)) = words.split_at_checked(2) else { return Vec::new() };
    let part = |kept: &[Word<'_>], last: Option<(usize, String)>, after: &[Word<'_>], looks_names_up| {
        let mut line = String::with_capacity(text.len());
        let mut put = |start: usize, word: &str| {
            let blanks = start.saturating_sub(line.len()).max(usize::from(!line.is_empty()));
            line.extend(std::iter::repeat_n(' ', blanks));
            line.push_str(word);
        };
        for word in head.iter().chain(kept) {
            put(word.start, word.text);
        }
        if let Some((start, last)) = &last {
            put(*start, last);
        }
        for word in after {
            put(word.start, word.text);
        }
        let read_end = after.first().map_or(usize::MAX, |word| word.start);
        ReadPart { text: line, looks_names_up, read_end }
    };
    let after_arg =
        |word: &Word<'a>| word.text.strip_prefix("$arg").filter(|_| numbers != NumbersAre::InOrder);
    let without_tail = |word: &Word<'a>| {
        let digits = after_arg(word)?.bytes().take_while(u8::is_ascii_digit).count();
        Some(match numbers {
            // Whether the number is good is not asked yet.
            NumbersAre::AskedFirst if digits > 0 => Word { text: "$arg1", ..*word },
            _ => word.head(word.text.find(':').unwrap_or(word.text.len())),
        })
    };
    let looked_at_first: Vec<Word<'_>> = arguments.iter().filter_map(without_tail).collect();
    let count = arguments.iter().take_while(|word| word.end() < end).count();
    let (before, last) = (arguments.get(..count).unwrap_or_default(), arguments.get(count));
    let read = |last: &Word<'a>| last.text.get(..end.saturating_sub(last.start)).unwrap_or(last.text);
    let is_read_first = |word: &Word<'a>| {
        let is_digit = |after: &str| after.starts_with(|c: char| c.is_ascii_digit());
        after_arg(word).is_some_and(|after| numbers == NumbersAre::NamedFirst || !is_digit(after))
    };
    if last.is_some_and(|last| unread != Unread::OwnName && is_read_first(last) && !read(last).contains(':'))
    {
        // One of those words is bad itself: whether there can be any is asked of the first.
        let first = looked_at_first.first().map(|word| (word.start, "$arg1".to_owned()));
        return vec![part(&[], first, &[], false)];
    }
    // What it has looked at before stays looked at.
    let numbers_from = |start: usize| {
        let first = looked_at_first.partition_point(|word| word.start < start);
        looked_at_first.get(first..).unwrap_or_default()
    };
    let after_before = numbers_from(last.map_or(end, |last| last.start));
    let after = numbers_from(end + 1);
    let mut parts = vec![part(&looked_at_first, None, &[], true), part(before, None, after_before, true)];
    if let Some(last) = last {
        let read = read(last);
        match unread {
            Unread::Name => {
                let (root, has_members) = root_of(*last, end);
                parts.push(part(before, Some(root), after, has_members));
            }
            Unread::Fit => {
                let fetch = read.rfind(':').map(|colon| last.head(colon));
                parts.extend(fetch.map(|fetch| part(&[before, &[fetch]].concat(), None, after, true)));
            }
            Unread::OwnName | Unread::Word => {}
        }
    }
    parts
}

/// The argument `word` with nothing in it but the variable that it starts from, or as many of its members as are read before `end`, at
/// offsets of 0: offsets are looked at when what they stand before has been read. And whether the kernel looks at more than the first sign
/// behind the variable.
fn root_of(word: Word<'_>, end: usize) -> ((usize, String), bool) {
    let name = word.text.find('=').map_or(0, |equals| equals + 1);
    let (mut start, mut depth) = (name, 0);
    let mut path = word.text.get(name..).and_then(|fetch| fetch.split(':').next()).unwrap_or_default();
    while let Some((offset, inner)) = path.split_once('(').filter(|_| path.starts_with(['+', '-'])) {
        start += offset.len() + 1;
        depth += 1;
        path = inner.rfind(')').and_then(|close| inner.get(..close)).unwrap_or(inner);
    }
    let (root, signs) = path.split_at(path.find(['-', '.']).unwrap_or(path.len()));
    let is_name = super::names::is_identifier(root);
    let read = path.get(..end.saturating_sub(word.start + start)).unwrap_or_default();
    let is_first_sign = read.len() == root.len() + 1;
    let at_member =
        (is_name || root == "$retval") && (read.ends_with("->") || read.ends_with('.') && !is_first_sign);
    // Any name does that no parameter and no member has: it is where the kernel stumbles.
    let shown = match root {
        _ if at_member => format!("{read}__"),
        number if number.starts_with("$arg") => "$arg1".to_owned(),
        _ if is_name => root.to_owned(),
        _ => "__".to_owned(),
    };
    let stumbles = signs.starts_with('.') || signs.starts_with('-') && !signs.starts_with("->");
    let (name, offsets) = word.text.get(..start).unwrap_or_default().split_at(name);
    let offsets = offsets.replace(|c: char| c.is_ascii_alphanumeric() && c != 'u', "0");
    let closing = ")".repeat(depth);
    ((word.start, format!("{name}{offsets}{shown}{closing}")), at_member || !stumbles)
}

/// The line of a probe as far as its place, with blanks for the names of the event and for what follows the place, so that positions stay.
/// The kernel looks for the symbol of the place before it reads those. `None` where there is no such line.
pub fn place_alone(text: &str) -> Option<String> {
    let words = single(text).ok()?;
    let (command, place) = (words.first()?, words.get(1)?);
    let command = command.split_once(':').map_or(*command, |(command, _)| command);
    let mut alone = " ".repeat(text.len());
    for kept in [command, *place] {
        alone.replace_range(kept.span().range(), kept.text);
    }
    command.text.starts_with(['p', 'r']).then_some(alone)
}

/// What must hold for a line before its words mean anything.
fn check_line(text: &str, line: Word<'_>, first: usize) -> Result<(), Diagnostic> {
    // The comment counts: the kernel measures the line before it cuts it.
    let whole = text[line.start..].split('\n').next().unwrap_or_default();
    if whole.len() > LINE_MAX_BYTES {
        return Err(Diagnostic::error(
            Code::LineTooLong,
            Span::new(first, line.end()),
            format!("the line has {} bytes, the kernel takes {LINE_MAX_BYTES}", whole.len()),
        ));
    }
    // A NUL ends the kernel's copy of the text, and its `isspace` follows Latin-1, where the byte 0xa0 is a
    // blank that would cut a UTF-8 character (and the word) in two.
    let bad = |c: char| c == '\0' || c.encode_utf8(&mut [0; 4]).as_bytes().contains(&0xa0);
    match line.text.char_indices().find(|(_, c)| bad(*c)) {
        Some((at, c)) => Err(Diagnostic::error(
            Code::BadCharacter,
            Span::new(line.start + at, line.start + at + c.len_utf8()),
            format!("the kernel cannot read the character {c:?} in a definition"),
        ))
        // What stands before a NUL can be a good line; half of a character is in no good word.
        .map_err(|problem| if c == '\0' { problem.by_kprobed() } else { problem }),
        None => Ok(()),
    }
}
