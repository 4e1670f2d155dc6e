//! Width of the terminal and of text, and whether the locale has Unicode.

use std::env;
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

#[cfg(test)]
mod tests {
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
}
