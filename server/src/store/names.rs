//! Names of a principal in a column: a JSON array of texts.
//!
//! Owns that form. Never says what a name means: [`kprobed_rights::Principal`] does.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::StoreError;

/// The column of the names.
const COLUMN: &str = "creator_names";

pub(super) fn text(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

pub(super) fn read(row: &SqliteRow) -> Result<Vec<String>, StoreError> {
    let text: String = row.try_get(COLUMN)?;
    serde_json::from_str(&text)
        .map_err(|_not_names| StoreError::Corrupt { what: "names of a principal", value: text })
}
