//! The example of the configuration as a page for `man`: a section for each table, and each setting with its comment.

use std::mem::take;

use clap_mangen::roff::{Roff, bold};

use super::markdown::inlines;

/// Adds the page. A comment stands before what it explains.
pub(super) fn render(page: &mut Roff, example: &str) {
    page.control("SH", ["DESCRIPTION"]);
    let mut comment = Vec::new();
    // The first comment is about the file.
    let mut is_about_file = true;
    let mut lines = example.lines().map(|line| (line.starts_with('#'), plain(line))).peekable();
    while let Some((is_comment, line)) = lines.next() {
        if line.starts_with('[') && line.ends_with(']') {
            page.control("SS", [line]);
            add_comment(page, &take(&mut comment));
        } else if is_setting(line) {
            page.control("TP", []).text([bold(line)]);
            while let Some((_, next)) = lines.next_if(|(_, next)| is_setting(next)) {
                page.control("TQ", []).text([bold(next)]);
            }
            add_comment(page, &take(&mut comment));
        } else if is_comment || !is_about_file {
            comment.push(line);
        } else {
            add_comment(page, &take(&mut comment));
            page.control("SH", ["SETTINGS"]);
            is_about_file = false;
        }
    }
}

/// A line without the sign of a comment: settings that have no default are in comments.
fn plain(line: &str) -> &str {
    line.strip_prefix("# ").unwrap_or(line.trim_start_matches('#'))
}

/// Whether a line has the form `NAME = VALUE`.
fn is_setting(line: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '.' | '"');
    line.split_once(" = ").is_some_and(|(name, _)| name.chars().all(is_of_name))
}

/// A comment: paragraphs, and lines that are shown as they are because they begin with a blank.
fn add_comment(page: &mut Roff, lines: &[&str]) {
    let mut lines = lines.iter().skip_while(|line| line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let mut text = (*line).to_owned();
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        while let Some(next) = lines.next_if(|next| is_prose(line) && is_prose(next)) {
            text.extend([" ", next]);
        }
        if !text.is_empty() {
            page.text(inlines(&text));
        } else if lines.peek().is_some() {
            page.control("PP", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_their_comments() {
        let example = "# About\n# it.\n\n# Of `x`.\n\n# More.\n[x]\n# Both:\n#   a  one\n#   b  two\ny = 1\n# z = \"2\"\n#\n# [[w]]\n# v = []\n";
        let mut page = Roff::new();
        render(&mut page, example);
        let expected = ".SH DESCRIPTION\nAbout it.\n.SH SETTINGS\n.SS [x]\nOf \\fBx\\fR.\n.PP\nMore.\n\
                        .TP\n\\fBy = 1\\fR\n.TQ\n\\fBz = \"2\"\\fR\nBoth:\n  a  one\n  b  two\n\
                        .SS [[w]]\n.TP\n\\fBv = []\\fR\n";
        assert_eq!(page.to_roff(), expected);
    }

    #[test]
    fn every_setting_of_the_example_is_on_the_page() {
        let example = include_str!("../../../../deploy/kprobed.example.toml");
        let mut page = Roff::new();
        render(&mut page, example);
        let (text, settings) = (page.to_roff(), example.lines().map(plain).filter(|line| is_setting(line)));
        let named = text.lines().filter(|line| line.starts_with("\\fB") && line.contains(" = "));
        assert_eq!(named.count(), settings.count());
        assert!(text.contains("\n.TP\n\\fBinterval_ms = 30000\\fR\nMilliseconds between"), "{text}");
    }
}
