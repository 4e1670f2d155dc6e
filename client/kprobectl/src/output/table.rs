//! Tables of text, aligned by display width.
//!
//! Kept, and not a crate: these have no borders, no wrapping, and a colour for each cell.

use std::fmt::Write as _;

use super::style::{Style, Tone};
use super::width::columns_of;

/// A table: headings, and rows of cells.
pub(super) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
pub(super) struct Cell {
    text: String,
    tone: Tone,
    right: bool,
}

impl Cell {
    /// Text, on the left. What would break the line is shown escaped.
    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    /// Text with a colour.
    pub(super) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = text.as_ref();
        let text = if text.is_empty() { "-".to_owned() } else { super::data::one_line(text) };
        Self { text, tone, right: false }
    }

    /// A number, on the right.
    pub(super) fn number(number: u64) -> Self {
        Self { text: number.to_string(), tone: Tone::Plain, right: true }
    }

    /// A number that may not be known.
    pub(super) fn maybe(number: Option<u64>) -> Self {
        number.map_or(Self { text: "?".to_owned(), tone: Tone::Faint, right: true }, Self::number)
    }

    /// Whether a sum adds up; nothing where there is none.
    pub(super) fn mark(closes: Option<bool>) -> Self {
        match closes {
            Some(true) => Self::toned("yes", Tone::Good),
            Some(false) => Self::toned("NO", Tone::Bad),
            None => Self::text(""),
        }
    }

    /// The same cell, on the right.
    pub(super) fn right(self) -> Self {
        Self { right: true, ..self }
    }

    fn width(&self) -> usize {
        columns_of(&self.text)
    }
}

impl Table {
    pub(super) fn new(headings: &[impl AsRef<str>]) -> Self {
        let headings = headings.iter().map(|heading| heading.as_ref().to_owned()).collect();
        Self { headings, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(super) fn render(&self, style: Style) -> String {
        let headings = self.headings.iter().enumerate().map(|(column, heading)| Cell {
            text: heading.clone(),
            tone: Tone::Strong,
            right: self.rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.right),
        });
        let headings: Vec<Cell> = headings.collect();
        let all = || std::iter::once(&headings).chain(&self.rows);
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|column| all().filter_map(|row| row.get(column)).map(Cell::width).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in all() {
            let last = row.len().saturating_sub(1);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let padding = " ".repeat(width.saturating_sub(cell.width()));
                let painted = style.paint(cell.tone, &cell.text);
                if column > 0 {
                    text.push_str("  ");
                }
                if cell.right {
                    text.push_str(&padding);
                }
                text.push_str(&painted);
                if !cell.right && column < last {
                    text.push_str(&padding);
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Names and values below each other, for one thing that has many.
pub(super) fn properties(style: Style, properties: &[(&str, String)]) -> String {
    let width = properties.iter().map(|(name, _)| columns_of(name)).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in properties {
        let padding = " ".repeat(width - columns_of(name));
        let value = if value.is_empty() { "-" } else { value };
        writeln!(text, "{}{padding}  {}", style.paint(Tone::Strong, name), super::data::one_line(value)).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", "HITS", "WHERE"]);
        table.row(vec![Cell::text("kprobes/open"), Cell::number(7), Cell::text("a\nb")]);
        table.row(vec![Cell::toned("x", Tone::Bad), Cell::maybe(None), Cell::text("")]);
        insta::assert_snapshot!(table.render(Style::new(false)), @r"
        NAME          HITS  WHERE
        kprobes/open     7  a\nb
        x                ?  -
        ");
        let mut table = Table::new(&["TASK", "OWNER"]);
        table.row(vec![Cell::text("読む"), Cell::text("a")]);
        table.row(vec![Cell::text("rée"), Cell::text("b")]);
        insta::assert_snapshot!(table.render(Style::new(false)), @r"
        TASK  OWNER
        読む  a
        rée   b
        ");
    }

    #[test]
    fn colours_take_no_columns() {
        let mut table = Table::new(&["NAME"]);
        table.row(vec![Cell::toned("x", Tone::Bad)]);
        assert!(table.render(Style::new(true)).contains("\x1b[1;31mx\x1b[0m"));
    }
}
