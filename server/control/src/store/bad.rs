//! Bad values: what rows hold that this daemon does not write, after a disk has changed some bytes.
//!
//! Owns the list of those that were met. A bad value costs its field or its row, never the start of the daemon: whoever
//! reads the row says what it costs. Never changes a row.

use std::fmt;

use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row as _, Type};

/// Most bytes of a value that are shown.
const SHOWN: usize = 60;

/// Most values of a table that are listed: with more, a person looks at the file anyway.
pub(super) const LISTED: usize = 1000;

/// A bad value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadValue {
    /// The table.
    pub table: &'static str,
    /// What the row is about, as far as that can be read.
    pub row: String,
    /// The column.
    pub column: &'static str,
    /// The value, and what is wrong with it.
    pub value: String,
    /// What it costs.
    pub cost: &'static str,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, row, column, value, cost } = self;
        write!(f, "`{column}` of row {row} in table `{table}` is {value}: {cost}")
    }
}

/// A row that is being read, and the bad values that were met in it.
pub(super) struct CheckedRow<'a> {
    row: &'a SqliteRow,
    table: &'static str,
    name: String,
    found: &'a mut Vec<BadValue>,
}

impl<'a> CheckedRow<'a> {
    /// `key`: the column that identifies the row to people.
    pub(super) fn new(
        row: &'a SqliteRow,
        table: &'static str,
        key: &str,
        found: &'a mut Vec<BadValue>,
    ) -> Self {
        Self { row, table, name: shown(row, key), found }
    }

    /// A value that the row cannot do without. Absent if it is bad.
    pub(super) fn need<T>(&mut self, column: &'static str, cost: &'static str) -> Option<T>
    where
        T: for<'r> Decode<'r, Sqlite> + Type<Sqlite>,
    {
        let value = self.row.try_get(column);
        value.inspect_err(|error| self.note(column, error, cost)).ok()
    }

    /// A value that is left out if it is bad.
    pub(super) fn get<T>(&mut self, column: &'static str, cost: &'static str) -> T
    where
        T: for<'r> Decode<'r, Sqlite> + Type<Sqlite> + Default,
    {
        self.need(column, cost).unwrap_or_default()
    }

    /// A number that is never negative. Absent if it is bad.
    pub(super) fn count(&mut self, column: &'static str, cost: &'static str) -> Option<i64> {
        let number: i64 = self.need(column, cost)?;
        if number < 0 {
            self.note(column, &"it is never negative", cost);
            return None;
        }
        Some(number)
    }

    /// A text of which only people read what is left.
    pub(super) fn text(&mut self, column: &'static str) -> String {
        self.need(column, "what can be read of it is shown").unwrap_or_else(|| lossy(self.row, column))
    }

    /// A value has the right type, and means nothing.
    pub(super) fn note(&mut self, column: &'static str, wrong: &dyn fmt::Display, cost: &'static str) {
        let value = format!("{} ({wrong})", shown(self.row, column));
        let bad = BadValue { table: self.table, row: self.name.clone(), column, value, cost };
        self.found.push(bad);
    }
}

/// States of probes that do not exist, by their numbers.
pub(super) fn orphans(states: impl Iterator<Item = i64>) -> Vec<BadValue> {
    let (table, column, cost) = ("probe_state", "probe_uid", "the history of states lacks one");
    let value = "the uid of no probe";
    states.map(|id| BadValue { table, row: id.to_string(), column, value: value.to_owned(), cost }).collect()
}

/// The text of a value, whatever it is.
pub(super) fn lossy(row: &SqliteRow, column: &str) -> String {
    let bytes: Result<Vec<u8>, _> = row.try_get_unchecked(column);
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

fn shown(row: &SqliteRow, column: &str) -> String {
    let number: Result<i64, _> = row.try_get(column);
    if let Ok(number) = number {
        return number.to_string();
    }
    let text = lossy(row, column);
    let end = text.floor_char_boundary(SHOWN);
    let more = if end < text.len() { "..." } else { "" };
    format!("{:?}{more}", text.get(..end).unwrap_or_default())
}
