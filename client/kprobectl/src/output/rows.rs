//! Lists in every form: a command declares the columns of its rows once.
//!
//! Owns what a form shows of a list: a table that fits the terminal, all columns as CSV, names alone, and
//! one object a row as JSON and YAML.

use std::io;

use kprobed_document::json::json;
use prost::Name;
use serde_json::Value;

use super::Output;
use super::table::{Cell, Table};
use crate::global::Format;

/// A column of a list of `T`.
pub(crate) struct Column<T> {
    heading: &'static str,
    cell: fn(&T) -> Cell,
    shown: Shown,
    /// What stands under a table that explains its columns.
    meaning: Option<&'static str>,
}

/// When a column is shown. `-o wide` and `-o csv` show all columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// Always; if it is the last column, lines may be longer than the terminal is wide.
    Sentence,
    /// If it is neither zero nor empty in all rows.
    IfAny,
    Wide,
}

impl<T> Column<T> {
    /// A column that is always shown.
    pub(crate) const fn new(heading: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { heading, cell, shown: Shown::Always, meaning: None }
    }

    /// A column that is left out if it is zero or empty in all rows.
    pub(crate) const fn optional(heading: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { heading, cell, shown: Shown::IfAny, meaning: None }
    }

    /// A last column of sentences: nothing of the table is left out where the terminal is narrow.
    pub(crate) const fn sentence(heading: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { heading, cell, shown: Shown::Sentence, meaning: None }
    }

    /// A column that a table shows only with `-o wide`.
    pub(crate) const fn wide(heading: &'static str, cell: fn(&T) -> Cell) -> Self {
        Self { heading, cell, shown: Shown::Wide, meaning: None }
    }

    /// The same column with its meaning.
    pub(super) const fn meaning(self, meaning: &'static str) -> Self {
        Self { meaning: Some(meaning), ..self }
    }

    /// The heading without the signs of a sum.
    pub(super) fn term(&self) -> &'static str {
        self.heading.trim_start_matches(['=', '+', ' '])
    }

    /// What it means, if that is said.
    pub(super) fn legend(&self) -> Option<String> {
        self.meaning.map(|meaning| format!("{}: {meaning}", self.term()))
    }

    /// Whether it is neither zero nor empty in all rows.
    pub(super) fn says_something(&self, rows: &[T]) -> bool {
        rows.iter().any(|row| !(self.cell)(row).says_nothing())
    }
}

/// A row of a list.
pub(crate) trait Row: Sized + 'static {
    /// The columns, the most important first: those at the end are left out where the terminal is narrow.
    const COLUMNS: &'static [Column<Self>];

    /// What `-o name` prints: the first column, unless something else identifies the row.
    fn name(&self) -> String {
        Self::COLUMNS.first().map(|column| (column.cell)(self).into_value()).unwrap_or_default()
    }

    /// The row as JSON.
    fn json(&self) -> io::Result<Value>;
}

/// A message of the API that is a row of a list. Its JSON is its own.
pub(crate) trait MessageRow: Name + Sized + 'static {
    /// As [`Row::COLUMNS`].
    const COLUMNS: &'static [Column<Self>];
}

impl<T: MessageRow> Row for T {
    const COLUMNS: &'static [Column<Self>] = <T as MessageRow>::COLUMNS;

    fn json(&self) -> io::Result<Value> {
        Ok(json(self)?)
    }
}

impl Output {
    /// Prints what became of each: a line for people, rows in every other form.
    pub(crate) fn results<T: Row>(&mut self, rows: &[T], line: impl Fn(&T) -> String) -> io::Result<()> {
        match self.format {
            Format::Table | Format::Wide => rows.iter().try_for_each(|row| self.line(line(row).trim_end())),
            _ => self.rows(rows),
        }
    }

    /// Prints a list in the form that was asked for.
    pub(crate) fn rows<T: Row>(&mut self, rows: &[T]) -> io::Result<()> {
        self.part_of_rows(rows, true)
    }

    /// Prints a part of a list that comes in parts: only the first has headings.
    pub(crate) fn part_of_rows<T: Row>(&mut self, rows: &[T], is_first: bool) -> io::Result<()> {
        let has_headings = self.has_headings && is_first;
        let columns: Vec<_> = T::COLUMNS
            .iter()
            .filter(|column| column.shown != Shown::Wide || self.format != Format::Table)
            .collect();
        let cells = |row: &T| columns.iter().map(|column| (column.cell)(row)).collect::<Vec<_>>();
        match self.format {
            Format::Json | Format::Yaml => {
                self.begin_list();
                rows.iter().try_for_each(|row| self.structured_stream(&row.json()?).map(drop))
            }
            Format::Name => rows.iter().try_for_each(|row| self.line(&row.name())),
            Format::Csv => {
                let headings = columns.iter().map(|column| column.heading.to_lowercase().replace(' ', "_"));
                if has_headings {
                    self.line(&csv_record(headings))?;
                }
                rows.iter()
                    .try_for_each(|row| self.line(&csv_record(cells(row).into_iter().map(Cell::into_value))))
            }
            Format::Table | Format::Wide => {
                let headings: Vec<_> = columns.iter().map(|column| column.heading).collect();
                let is_optional = |column: &&Column<T>| column.shown == Shown::IfAny;
                let ends_in_sentences = columns.last().is_some_and(|column| column.shown == Shown::Sentence);
                let mut table = Table::new(&headings)
                    .optional(columns.iter().map(is_optional).collect())
                    .ending_in_sentences(ends_in_sentences);
                for row in rows {
                    table.row(cells(row));
                }
                self.table_part(&table, is_first)
            }
        }
    }
}

/// The values of a line of CSV (RFC 4180, with newlines as on Unix), in quotes where they would not come back
/// otherwise.
fn csv_record(values: impl IntoIterator<Item = String>) -> String {
    values.into_iter().map(field).collect::<Vec<_>>().join(",")
}

fn field(value: String) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", value.replace('"', "\"\""));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_have_to_be() {
        for (value, expected) in [
            ("kprobes/open", "kprobes/open"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"no\"", "\"say \"\"no\"\"\""),
            ("two\nlines", "\"two\nlines\""),
        ] {
            assert_eq!(csv_record([value.to_owned(), "x".to_owned()]), format!("{expected},x"));
        }
    }
}
