//! The table of errors in `proto/guide/errors.md`, as a page of its own and as a line of each call.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::page;
use crate::schema::Schema;

/// Stands in the table for every call.
const EVERY_CALL: &str = "every call";

struct Row {
    reason: String,
    code: String,
    /// Empty: every call.
    calls: Vec<String>,
    meaning: String,
}

pub(crate) struct Errors {
    introduction: String,
    rows: Vec<Row>,
}

impl Errors {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let (introduction, table) = text.split_once("| reason |").expect("a table");
        let rows = table.lines().skip(2).filter(|line| !line.trim().is_empty()).map(|line| {
            let cells: Vec<&str> = line.trim().trim_matches('|').splitn(4, '|').map(str::trim).collect();
            let [reason, code, calls, meaning] = cells[..] else { panic!("{line}: four cells") };
            let calls = match calls {
                EVERY_CALL => Vec::new(),
                list => list.split(", ").map(str::to_owned).collect(),
            };
            Row { reason: reason.to_owned(), code: code.to_owned(), calls, meaning: meaning.to_owned() }
        });
        Self { introduction: introduction.to_owned(), rows: rows.collect() }
    }

    /// The reasons with which one call can fail, without those of every call.
    pub(crate) fn of_call(&self, call: &str) -> Vec<&str> {
        let own = self.rows.iter().filter(|row| row.calls.iter().any(|own| own == call));
        own.map(|row| row.reason.as_str()).collect()
    }

    /// Every reason with every call that is named beside it.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().flat_map(|row| row.calls.iter().map(|call| (row.reason.as_str(), call.as_str())))
    }

    pub(crate) fn reasons(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.reason.as_str())
    }

    pub(crate) fn has(&self, code: &str, reason: &str) -> bool {
        self.rows.iter().any(|row| row.reason == reason && row.code.split(", ").any(|one| one == code))
    }

    pub(crate) fn page(&self, schema: &Schema) -> String {
        let mut page = self.introduction.clone();
        for row in &self.rows {
            let calls: Vec<_> = row.calls.iter().filter_map(|call| page::link(schema, call)).collect();
            let calls = if calls.is_empty() { EVERY_CALL.to_owned() } else { calls.join(", ") };
            writeln!(page, "### {}\n\n{}: {}\n\nFrom {calls}.\n", row.reason, row.code, row.meaning).unwrap();
        }
        format!("{}\n", page.trim_end())
    }
}

/// Codes and reasons of the list in the daemon's source: `NotFound: NO_SUCH_EVENT NO_SUCH_PROBE;`.
pub(crate) fn in_source(text: &str) -> BTreeSet<(String, String)> {
    let (_, list) = text.split_once("\nreasons! {").expect("a list of reasons");
    let (list, _) = list.split_once('}').expect("its end");
    let of_code = list.split(';').filter_map(|of_code| of_code.split_once(':'));
    let all = of_code.flat_map(|(code, reasons)| {
        reasons.split_whitespace().map(|reason| (shouted(code.trim()), reason.to_owned()))
    });
    all.collect()
}

/// `NotFound` as `NOT_FOUND`.
fn shouted(code: &str) -> String {
    let mut name = String::new();
    for c in code.chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}
