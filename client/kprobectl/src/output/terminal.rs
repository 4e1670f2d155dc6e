//! What reaches a terminal: no control sequence that this program has not written.
//!
//! Owns the last look at text for people. Names, labels, messages and memory come from daemons, whose
//! hosts others may control; each output escapes what it knows to be such. Never changes JSON or YAML.

use std::borrow::Cow;
use std::fmt::Write as _;

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
    use super::*;
    use proptest::prelude::*;

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
