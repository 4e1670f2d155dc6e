//! The terminal: its width and that of text, colours, and no control sequence that this program has not written.
//!
//! Owns the last look at text for people. Names, labels, messages and memory come from daemons, whose
//! hosts others may control; each output escapes what it knows to be such. Never changes JSON or YAML. A colour never
//! says anything that the text does not say.
//!
//! Kept, and not `anstyle` with `anstream`: six codes, which are static text for the hot path of
//! `observe`, and no pass over the output to strip them again.

use std::borrow::Cow;
use std::env;
use std::fmt::Write as _;
use std::io;

use terminal_size::{Width, terminal_size_of};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Columns of what is not a terminal, and of a terminal that does not say.
const DEFAULT_COLUMNS: usize = 80;

/// Columns of stdout: those that the environment variable COLUMNS asks for, or those of the
/// terminal.
pub(super) fn columns() -> usize {
    known_columns().unwrap_or(DEFAULT_COLUMNS)
}

/// The same, if there are any: a file and a pipe have no end of a line.
pub(super) fn known_columns() -> Option<usize> {
    let asked = env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let shown = || terminal_size_of(io::stdout()).map(|(Width(columns), _)| usize::from(columns));
    asked.or_else(shown).filter(|columns| *columns > 0)
}

/// Whether the locale has other characters than those of ASCII.
pub(super) fn has_unicode() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
    set.into_iter().find(|value| !value.is_empty()).is_some_and(|locale| is_utf8(&locale))
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Columns that a text takes on a terminal: two for each wide character, none for a combining one.
pub(super) fn columns_of(text: &str) -> usize {
    text.width()
}

/// The text, cut with `~` at its end if it is wider than that.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if columns_of(text) <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let fits = |character: &char| {
        let width = character.width().unwrap_or(0);
        let is_fitting = width <= room;
        room = room.saturating_sub(width);
        is_fitting
    };
    let mut shown: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        shown.push('~');
    }
    shown
}

/// Whether to use colours, and which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    enabled: bool,
}

/// Meaning of a text, which selects its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Doubtful,
    Faint,
    Strong,
    /// The name of a task.
    Task,
}

impl Style {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled }
    }

    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        if !self.enabled {
            return text.to_owned();
        }
        match code(tone) {
            "" => text.to_owned(),
            code => format!("{code}{text}\x1b[0m"),
        }
    }

    /// The escape sequences before and after a text in this tone.
    pub(super) fn brackets(self, tone: Tone) -> (&'static str, &'static str) {
        if self.enabled && tone != Tone::Plain { (code(tone), "\x1b[0m") } else { ("", "") }
    }

    pub(super) fn error(self, text: &str) -> String {
        self.paint(Tone::Bad, text)
    }

    pub(super) fn warning(self, text: &str) -> String {
        self.paint(Tone::Doubtful, text)
    }

    pub(super) fn hint(self, text: &str) -> String {
        self.paint(Tone::Good, text)
    }

    pub(super) fn note(self, text: &str) -> String {
        self.paint(Tone::Strong, text)
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "\x1b[32m",
        Tone::Bad => "\x1b[1;31m",
        Tone::Doubtful => "\x1b[33m",
        Tone::Faint => "\x1b[2m",
        Tone::Strong => "\x1b[1m",
        Tone::Task => "\x1b[36m",
    }
}

const ESCAPE: char = '\u{1b}';

/// The text with every control character escaped (`\x07`), apart from line feeds, tabs, and the
/// sequences for colours (`ESC [ numbers m`), which move no cursor and answer no question.
pub(super) fn safe(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if c == ESCAPE { colour_length(rest) } else { 0 };
        let taken = if length > 0 { length } else { c.len_utf8() };
        let (piece, after) = rest.split_at(taken);
        if length > 0 || is_harmless(c) {
            safe.push_str(piece);
        } else if u32::from(c) < 0x100 {
            write!(safe, "\\x{:02x}", u32::from(c)).ok();
        } else {
            write!(safe, "\\u{{{:x}}}", u32::from(c)).ok();
        }
        rest = after;
    }
    Cow::Owned(safe)
}

/// Bytes of the sequence for a colour at the beginning of a text; 0 if there is none.
fn colour_length(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';');
    match end {
        Some(end) if parameters[end..].starts_with('m') => 2 + end + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_cut() {
        assert_eq!(
            (cut("open", 4), cut("opened", 4), cut("x", 0)),
            ("open".into(), "ope~".into(), String::new())
        );
        // Two columns each; the accent is a character of its own, and takes none.
        assert_eq!((columns_of("読む"), columns_of("e\u{301}")), (4, 1));
        assert_eq!((cut("読む", 4), cut("読む本", 4)), ("読む".into(), "読~".into()));
        assert!(is_utf8("de_DE.UTF-8") && is_utf8("C.utf8") && !is_utf8("C"));
    }

    #[test]
    fn only_colours_pass() {
        for (text, expected) in [
            ("plain\n\tö", "plain\n\tö"),
            ("\u{1b}[1;31merror:\u{1b}[0m", "\u{1b}[1;31merror:\u{1b}[0m"),
            // Moving the cursor, setting the title, asking for an answer, ringing.
            ("\u{1b}[2J", "\\x1b[2J"),
            ("\u{1b}]0;title\u{7}", "\\x1b]0;title\\x07"),
            ("\u{1b}[6n", "\\x1b[6n"),
            ("\u{1b}[31", "\\x1b[31"),
            ("a\rb\u{8}c\u{9b}m", "a\\x0db\\x08c\\x9bm"),
        ] {
            assert_eq!(safe(text), expected);
        }
    }

    proptest! {
        #[test]
        fn nothing_else_passes_and_nothing_is_lost(text in "[ -~\\x00-\\x20\\x7f-\\x9f]{0,40}") {
            let safe = safe(&text);
            let mut pieces = safe.split(ESCAPE);
            let first = pieces.next().unwrap_or_default().to_owned();
            let mut plain = vec![first];
            for piece in pieces {
                let (parameters, rest) = piece.split_once('m').unwrap();
                let is_colour = parameters.starts_with('[')
                    && parameters[1..].chars().all(|c| c.is_ascii_digit() || c == ';');
                prop_assert!(is_colour);
                plain.push(rest.to_owned());
            }
            let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
            prop_assert!(plain.iter().all(|piece| piece.chars().all(is_plain)));
            prop_assert!(safe.chars().count() >= text.chars().count());
        }
    }
}
