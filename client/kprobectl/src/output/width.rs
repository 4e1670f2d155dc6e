//! How wide output for people may be, and which characters it may have.

use std::env;
use std::io;

use terminal_size::{Width, terminal_size_of};

/// Columns of what is not a terminal, and of a terminal that does not say.
const DEFAULT_COLUMNS: usize = 80;

/// Columns of stdout: those that the environment variable COLUMNS asks for, or those of the terminal.
pub(super) fn columns() -> usize {
    let asked = env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let shown = || terminal_size_of(io::stdout()).map(|(Width(columns), _)| usize::from(columns));
    asked.or_else(shown).filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
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

/// The beginning of a text, if it is longer than that.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut shown: String = text.chars().take(columns.saturating_sub(1)).collect();
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
        assert!(is_utf8("de_DE.UTF-8") && is_utf8("C.utf8") && !is_utf8("C"));
    }
}
