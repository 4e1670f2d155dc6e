//! Tables of text, aligned by display width.
//!
//! Kept, and not a crate: these have no borders, are broken in their sentences only, and have a colour for each cell.

use std::fmt::Write as _;

use super::data::{moment, one_line, rfc3339};
use super::terminal::{Style, Tone, columns_of};

/// A table: headings, and rows of cells.
pub(crate) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<Cell>>,
    /// Columns that are left out if they say nothing.
    optional: Vec<bool>,
    /// The last column has sentences: they are broken where there is no room for them, and not left out.
    ends_in_sentences: bool,
}

/// What a table is printed on.
#[derive(Clone, Copy)]
pub(super) struct Page {
    pub(super) style: Style,
    /// Columns of the terminal, if the table is to fit it.
    pub(super) room: Option<usize>,
    pub(super) has_headings: bool,
    /// All columns are shown, those that say nothing too.
    pub(super) is_whole: bool,
}

/// Fewest columns for sentences beside the others. With fewer they stand below their rows.
const LEAST_BESIDE: usize = 24;

/// Columns before what stands below a row.
const INDENT: usize = 8;

/// A cell of a table.
pub(crate) struct Cell {
    text: String,
    /// The whole value, if the text is a part of it.
    value: Option<String>,
    tone: Tone,
    right: bool,
}

impl Cell {
    /// Text, on the left. What would break the line is shown escaped.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    /// Text with a colour.
    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = text.as_ref();
        let text = if text.is_empty() { "-".to_owned() } else { one_line(text) };
        Self { text, value: None, tone, right: false }
    }

    /// A number, on the right.
    pub(crate) fn number(number: u64) -> Self {
        Self::text(number.to_string()).right()
    }

    /// A number, or nothing where there is none.
    pub(crate) fn optional(number: Option<u64>) -> Self {
        number.map_or_else(|| Self::text("").right(), Self::number)
    }

    /// A time of the API to the second, or nothing where there is none.
    pub(crate) fn time(time: Option<&prost_types::Timestamp>) -> Self {
        Self { value: rfc3339(time), ..Self::text(moment(time).unwrap_or_default()) }
    }

    /// A number that may not be known.
    pub(crate) fn maybe(number: Option<u64>) -> Self {
        number.map_or_else(|| Self::toned("?", Tone::Faint).right(), Self::number)
    }

    /// Whether a sum adds up; nothing where there is none.
    pub(crate) fn mark(closes: Option<bool>) -> Self {
        match closes {
            Some(true) => Self::toned("yes", Tone::Good),
            Some(false) => Self::toned("NO", Tone::Bad),
            None => Self::text(""),
        }
    }

    /// The same cell, on the right.
    pub(crate) fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// The value without what is for the eye.
    pub(super) fn into_value(self) -> String {
        let text = if self.text == "-" { String::new() } else { self.text };
        self.value.unwrap_or(text)
    }

    fn width(&self) -> usize {
        columns_of(&self.text)
    }

    pub(super) fn says_nothing(&self) -> bool {
        matches!(self.text.as_str(), "-" | "0")
    }
}

/// A word and its colour.
impl From<(&str, Tone)> for Cell {
    fn from((text, tone): (&str, Tone)) -> Self {
        Self::toned(text, tone)
    }
}

impl Page {
    /// A page without an end of its lines.
    pub(super) fn endless(style: Style) -> Self {
        Self { style, room: None, has_headings: true, is_whole: false }
    }
}

impl Table {
    pub(crate) fn new(headings: &[impl AsRef<str>]) -> Self {
        let headings: Vec<_> = headings.iter().map(|heading| heading.as_ref().to_owned()).collect();
        Self { optional: vec![false; headings.len()], headings, rows: Vec::new(), ends_in_sentences: false }
    }

    /// Sets for each column whether it is left out if it is zero or empty in all rows.
    pub(super) fn optional(self, optional: Vec<bool>) -> Self {
        Self { optional, ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Breaks the sentences of the last column where the terminal ends: they are better broken than left out.
    pub(crate) fn ending_in_sentences(self, ends_in_sentences: bool) -> Self {
        Self { ends_in_sentences, ..self }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table as text, and the headings of the columns for which there was no room. If there is no room
    /// for half of the columns, each row is printed as a list of its values.
    pub(super) fn render(&self, page: Page) -> (String, Vec<&str>) {
        let says_something = |column: &usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(*column));
            page.is_whole || !self.optional[*column] || cells.any(|cell| !cell.says_nothing())
        };
        let mut columns: Vec<usize> = (0..self.headings.len()).filter(says_something).collect();
        let mut widths: Vec<usize> = columns.iter().map(|column| self.column_width(*column, page)).collect();
        let room = page.room.unwrap_or(usize::MAX);
        let all = columns.clone();
        let is_broken = self.ends_in_sentences && needed(&widths) > room;
        if is_broken {
            let widest = widths.pop().unwrap_or(0);
            let beside = room.saturating_sub(needed(&widths) + GAP);
            if beside >= LEAST_BESIDE {
                widths.push(beside.min(widest));
            } else {
                columns.pop();
            }
        }
        while needed(&widths) > room && columns.len() > 1 {
            columns.pop();
            widths.pop();
        }
        if columns.len() < all.len().div_ceil(2) {
            return (self.lists(&all, page.style), Vec::new());
        }
        let hidden = &all[columns.len()..];
        let mut text = String::new();
        if page.has_headings {
            let heading = |column: &usize| Cell {
                value: None,
                text: self.headings[*column].clone(),
                tone: Tone::Strong,
                right: self.rows.first().and_then(|row| row.get(*column)).is_some_and(|cell| cell.right),
            };
            let headings: Vec<_> = columns.iter().map(heading).collect();
            line(&mut text, &headings.iter().collect::<Vec<_>>(), &widths, page.style);
        }
        for row in &self.rows {
            let mut cells: Vec<_> = columns.iter().filter_map(|column| row.get(*column)).collect();
            let (broken, indent) = match cells.last() {
                Some(sentence) if is_broken && hidden.is_empty() => {
                    (sentence.text.clone(), needed(&widths[..widths.len() - 1]) + GAP)
                }
                _ if is_broken => (self.below(row, hidden), INDENT),
                _ => (String::new(), 0),
            };
            let mut parts =
                broken_at(&broken, room.saturating_sub(indent)).into_iter().filter(|part| !part.is_empty());
            let beside;
            if is_broken
                && hidden.is_empty()
                && let Some(sentence) = cells.pop()
            {
                beside = Cell { text: parts.next().unwrap_or_default().to_owned(), value: None, ..*sentence };
                cells.push(&beside);
            }
            line(&mut text, &cells, &widths, page.style);
            for part in parts {
                writeln!(text, "{}{part}", " ".repeat(indent)).ok();
            }
        }
        let left_out = hidden.iter().filter(|_| !is_broken).map(|column| &*self.headings[*column]);
        (text, left_out.map(|heading| heading.trim_start_matches(['+', ' '])).collect())
    }

    /// What a row has in columns for which there was no room: the sentence of the last one, after the others with
    /// their headings.
    fn below(&self, row: &[Cell], hidden: &[usize]) -> String {
        let said = hidden.iter().filter_map(|column| Some((column, row.get(*column)?)));
        let said = said.filter(|(_, cell)| !cell.says_nothing()).map(|(column, cell)| {
            if column + 1 == self.headings.len() {
                return cell.text.clone();
            }
            format!("{} {}", self.headings[*column], cell.text)
        });
        said.collect::<Vec<_>>().join("; ")
    }

    fn column_width(&self, column: usize, page: Page) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(Cell::width);
        let heading = page.has_headings.then(|| columns_of(&self.headings[column]));
        cells.chain(heading).max().unwrap_or(0)
    }

    /// How wide all columns are together.
    pub(super) fn width(&self, page: Page) -> usize {
        needed(&(0..self.headings.len()).map(|column| self.column_width(column, page)).collect::<Vec<_>>())
    }

    /// Each row as a list of its values, with an empty line between them.
    fn lists(&self, columns: &[usize], style: Style) -> String {
        let list = |row: &Vec<Cell>| {
            let value = |column: &usize| {
                row.get(*column).map(|cell| (&*self.headings[*column], style.paint(cell.tone, &cell.text)))
            };
            list(style, &columns.iter().filter_map(value).collect::<Vec<_>>())
        };
        self.rows.iter().map(list).collect::<Vec<_>>().join("\n")
    }
}

/// Columns between two cells.
const GAP: usize = 2;

/// The width of columns with the gaps between them.
fn needed(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Text in parts of at most so many columns, broken between words. A longer word is a part of its own.
fn broken_at(text: &str, width: usize) -> Vec<&str> {
    let (mut parts, mut begin, mut end) = (Vec::new(), 0, 0);
    for (space, _) in text.match_indices(' ').chain([(text.len(), "")]) {
        if end > begin && columns_of(&text[begin..space]) > width {
            parts.push(&text[begin..end]);
            begin = end + 1;
        }
        end = space;
    }
    parts.push(&text[begin..]);
    parts
}

fn line(text: &mut String, cells: &[&Cell], widths: &[usize], style: Style) {
    let last = widths.len().saturating_sub(1);
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let padding = " ".repeat(width.saturating_sub(cell.width()));
        if column > 0 {
            text.push_str(&" ".repeat(GAP));
        }
        if cell.right {
            text.push_str(&padding);
        }
        text.push_str(&style.paint(cell.tone, &cell.text));
        if !cell.right && column < last {
            text.push_str(&padding);
        }
    }
    text.push('\n');
}

/// Names and values below each other, for one thing that has many. What would break a line is shown escaped.
pub(super) fn properties(style: Style, properties: &[(&str, String)]) -> String {
    let shown = |value: &String| if value.is_empty() { "-".to_owned() } else { one_line(value) };
    list(style, &properties.iter().map(|(name, value)| (*name, shown(value))).collect::<Vec<_>>())
}

fn list(style: Style, values: &[(&str, String)]) -> String {
    let width = values.iter().map(|(name, _)| columns_of(name)).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in values {
        let padding = " ".repeat(width - columns_of(name));
        writeln!(text, "{}{padding}  {value}", style.paint(Tone::Strong, name)).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(room: Option<usize>) -> Page {
        Page { room, ..Page::endless(Style::new(false)) }
    }

    fn rendered(table: &Table) -> String {
        table.render(page(None)).0
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", "HITS", "WHERE"]);
        table.row(vec![Cell::text("kprobes/open"), Cell::number(7), Cell::text("a\nb")]);
        table.row(vec![Cell::toned("x", Tone::Bad), Cell::maybe(None), Cell::text("")]);
        insta::assert_snapshot!(rendered(&table), @r"
        NAME          HITS  WHERE
        kprobes/open     7  a\nb
        x                ?  -
        ");
        let without = table.render(Page { has_headings: false, ..page(None) }).0;
        assert_eq!(without, "kprobes/open  7  a\\nb\nx             ?  -\n");
        let mut table = Table::new(&["TASK", "OWNER"]);
        table.row(vec![Cell::text("読む"), Cell::text("a")]);
        table.row(vec![Cell::text("rée"), Cell::text("b")]);
        insta::assert_snapshot!(rendered(&table), @r"
        TASK  OWNER
        読む  a
        rée   b
        ");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let mut table =
            Table::new(&["PROBE", "READ", "OVERRUN", "DEFINITION"]).optional(vec![false, true, true, false]);
        table.row(vec![
            Cell::text("kprobes/open"),
            Cell::number(7),
            Cell::number(0),
            Cell::text("p:open vfs_open"),
        ]);
        table.row(vec![
            Cell::text("kprobes/read"),
            Cell::number(0),
            Cell::number(0),
            Cell::text("p:read vfs_read"),
        ]);
        insta::assert_snapshot!(rendered(&table), @r"
        PROBE         READ  DEFINITION
        kprobes/open     7  p:open vfs_open
        kprobes/read     0  p:read vfs_read
        ");
        let (whole, _) = table.render(Page { is_whole: true, ..page(None) });
        assert!(whole.contains("OVERRUN"), "{whole}");
        let (text, left_out) = table.render(page(Some(20)));
        assert_eq!((text.lines().map(str::len).max(), left_out), (Some(18), vec!["DEFINITION"]));
        insta::assert_snapshot!(table.render(page(Some(15))).0, @r"
        PROBE       kprobes/open
        READ        7
        DEFINITION  p:open vfs_open

        PROBE       kprobes/read
        READ        0
        DEFINITION  p:read vfs_read
        ");
    }

    #[test]
    fn sentences_are_broken_and_not_left_out() {
        let mut table = Table::new(&["TIME", "CALL", "REASON"]).ending_in_sentences(true);
        table.row(vec![
            Cell::text("07:00"),
            Cell::text("CreateProbe"),
            Cell::text("no role of user:alice allows it"),
        ]);
        table.row(vec![Cell::text("07:01"), Cell::text("ListProbes"), Cell::text("")]);
        insta::assert_snapshot!(table.render(page(Some(44))).0, @r"
        TIME   CALL         REASON
        07:00  CreateProbe  no role of user:alice
                            allows it
        07:01  ListProbes   -
        ");
        let (text, left_out) = table.render(page(Some(28)));
        assert!(left_out.is_empty(), "{left_out:?}");
        insta::assert_snapshot!(text, @r"
        TIME   CALL
        07:00  CreateProbe
                no role of
                user:alice allows it
        07:01  ListProbes
        ");
        assert_eq!(table.render(page(Some(51))).0, rendered(&table));
    }

    proptest! {
        #[test]
        fn broken_sentences_are_whole(text in "[ -~読é]{0,80}", width in 1_usize..40) {
            let parts = broken_at(&text, width);
            prop_assert_eq!(parts.join(" "), &*text);
            for part in parts {
                prop_assert!(columns_of(part) <= width || !part.trim().contains(' '), "{:?}", part);
            }
        }
    }

    #[test]
    fn colours_take_no_columns() {
        let mut table = Table::new(&["NAME"]);
        table.row(vec![Cell::toned("x", Tone::Bad)]);
        let (text, _) = table.render(Page::endless(Style::new(true)));
        assert!(text.contains("\x1b[1;31mx\x1b[0m"));
    }
}
