//! The `hist` file of an event: what its triggers have counted
//! (kernel/trace/trace_events_hist.c:hist_trigger_show).
//!
//! ```text
//! # event histogram
//! #
//! # trigger info: hist:keys=common_pid.execname:vals=hitcount,n:kprobed_7=0:sort=hitcount:size=2048 [active]
//! #
//!
//! { common_pid: cat             [       141] } hitcount:          2  n:         20
//!
//! Totals:
//!     Hits: 2
//!     Entries: 1
//!     Dropped: 0
//! ```
//!
//! Nothing is escaped: a program that chooses a file name or the name of a thread can write what
//! looks like a row. A forged row makes one more than the kernel's count, and a row with two
//! possible readings is an error.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use thiserror::Error;

use super::{HistKey, HistTrigger, KeyForm};

/// The table of one trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistTable {
    /// In the order of the file, which means nothing.
    pub rows: Vec<HistRow>,
    /// Events counted.
    pub hits: u64,
    /// Events that no row was left for.
    pub dropped: u64,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistRow {
    /// One for each key of the trigger.
    pub keys: Vec<HistValue>,
    /// Events.
    pub hits: u64,
    /// One for each sum of the trigger. Signed fields are extended to 64 bits before they are
    /// added.
    pub sums: Vec<u64>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistValue {
    /// A number. Signed ones are extended to 64 bits.
    Number(u64),
    /// The binary logarithm of the next power of two.
    Log2(u8),
    /// The first and the last number of a bucket. The last one wraps around at 2^64.
    Bucket(u64, u64),
    /// A symbol, or an address of which no symbol is known.
    Symbol(String),
    /// A thread.
    Thread {
        /// Its id.
        tid: u32,
        /// Its name, as far as the kernel remembers it.
        comm: Vec<u8>,
    },
    /// A string, without the blanks at its end.
    Text(Vec<u8>),
    /// Frames from the innermost outward.
    Stack(Vec<String>),
}

/// Why a table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct HistError(String);

const HEAD: &str = "# event histogram\n#\n# trigger info: ";
const TOTALS: &str = "\nTotals:\n    Hits: ";

impl HistTable {
    /// Reads the table of one trigger from the file of its event, which has that many hist
    /// triggers.
    ///
    /// # Errors
    /// [`HistError`]. Nothing is guessed.
    pub fn parse(file: &[u8], trigger: &HistTrigger, triggers: usize) -> Result<Self, HistError> {
        // Strings can hold any bytes. Each becomes the character of that number, and back again in
        // the end.
        let file: String = file.iter().copied().map(char::from).collect();
        let found = file.split(HEAD).count().saturating_sub(1);
        if found != triggers {
            return Err(HistError(format!(
                "there are {found} tables for {triggers} triggers: a string or the name of a thread looks like one"
            )));
        }
        let mark = format!(":{}=", trigger.variable.name());
        let ours: Vec<_> = file
            .split(HEAD)
            .skip(1)
            .filter_map(|table| table.split_once('\n'))
            .filter(|(info, _)| info.contains(&mark))
            .collect();
        let [(_, table)] = ours.as_slice() else {
            let count = ours.len();
            return Err(HistError(format!("there are {count} tables of the trigger instead of one")));
        };
        let no_totals = || HistError("the table has no totals".to_owned());
        let (rows, totals) = table.rsplit_once(TOTALS).ok_or_else(no_totals)?;
        let (hits, entries, dropped) = parse_totals(totals).ok_or_else(no_totals)?;
        let rows = rows.strip_prefix("#\n\n").ok_or_else(no_totals)?;
        let rows = parse_rows(rows, trigger)?;
        if u64::try_from(rows.len()).ok() != Some(entries) {
            let found = rows.len();
            return Err(HistError(format!(
                "the table has {entries} rows, and {found} can be read: a string or the name of a thread in it looks like a row"
            )));
        }
        Ok(Self { rows, hits, dropped })
    }
}

/// Parses the text after [`TOTALS`]: hits, entries, dropped.
fn parse_totals(text: &str) -> Option<(u64, u64, u64)> {
    let (hits, rest) = text.split_once("\n    Entries: ")?;
    let (entries, dropped) = rest.split_once("\n    Dropped: ")?;
    // As the kernel prints them: without a sign or zeros before them.
    let number = |text: &str| text.parse().ok().filter(|number: &u64| number.to_string() == text);
    Some((number(hits)?, number(entries)?, number(dropped.trim_end())?))
}

fn parse_rows(text: &str, trigger: &HistTrigger) -> Result<Vec<HistRow>, HistError> {
    let mut rows = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        // A string can contain line breaks: the row ends at the first line break at which it
        // parses.
        let ends = rest.match_indices('\n').map(|(at, _)| at);
        let found = ends.into_iter().find_map(|end| {
            let (row, rest) = rest.split_at_checked(end)?;
            Some((parse_row(row, trigger)?, rest.strip_prefix('\n')?))
        });
        let Some((row, after)) = found else {
            let line = rest.lines().next().unwrap_or_default();
            return Err(HistError(format!("a row cannot be understood: `{line}`")));
        };
        rows.push(row);
        rest = after;
    }
    Ok(rows)
}

/// `{ KEY: VALUE, KEY: VALUE } hitcount: N  FIELD: N`.
fn parse_row(row: &str, trigger: &HistTrigger) -> Option<HistRow> {
    let (keys, counts) = row.strip_prefix("{ ")?.rsplit_once("} hitcount: ")?;
    let (hits, sums) = parse_counts(counts, &trigger.sums)?;
    let mut readings = read_keys(keys, &trigger.keys).into_iter();
    // Two readings are none.
    let keys = readings.next().filter(|_| readings.next().is_none())?;
    Some(HistRow { keys, hits, sums })
}

fn parse_counts(text: &str, names: &[String]) -> Option<(u64, Vec<u64>)> {
    let mut parts = text.split("  ").filter(|part| !part.trim().is_empty());
    // Numbers are padded with blanks in front, which cuts the name off when there are two or more
    // of them.
    let hits = number(parts.next()?)?;
    let mut sums = Vec::new();
    for name in names {
        let value = parts.next()?.trim_start().strip_prefix(name.as_str())?.strip_prefix(':')?.trim();
        sums.push(if value.is_empty() { number(parts.next()?)? } else { number(value)? });
    }
    parts.next().is_none().then_some((hits, sums))
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// All ways, but no more than two, in which a text is values of these keys.
fn read_keys(text: &str, keys: &[HistKey]) -> Vec<Vec<HistValue>> {
    let Some((key, others)) = keys.split_first() else { return Vec::new() };
    let Some(text) = after_name(text, key) else { return Vec::new() };
    let Some(next) = others.first() else {
        let value = text.strip_suffix(' ').unwrap_or(text);
        return read_value(value, key.form).map(|value| vec![value]).into_iter().collect();
    };
    let mut readings = Vec::new();
    for (at, _) in text.match_indices(", ") {
        let Some((value, rest)) = text.split_at_checked(at) else { continue };
        let Some(rest) = rest.strip_prefix(", ") else { continue };
        if after_name(rest, next).is_none() {
            continue;
        }
        let Some(value) = read_value(value, key.form) else { continue };
        for reading in read_keys(rest, others) {
            readings.push(std::iter::once(value.clone()).chain(reading).collect());
        }
        // Only strings and names can hold what ends them.
        if readings.len() > 1 || !matches!(key.form, KeyForm::Text | KeyForm::Execname) {
            break;
        }
    }
    readings.truncate(2);
    readings
}

/// The text after the name of a key. The call stack has two names: the newer one since 6.3.
fn after_name<'a>(text: &'a str, key: &HistKey) -> Option<&'a str> {
    if key.form == KeyForm::Stack {
        return text.strip_prefix("common_stacktrace:\n").or_else(|| text.strip_prefix("stacktrace:\n"));
    }
    text.strip_prefix(key.field.as_str())?.strip_prefix(": ")
}

fn read_value(text: &str, form: KeyForm) -> Option<HistValue> {
    match form {
        KeyForm::Number => number(text).map(HistValue::Number),
        KeyForm::Log2 => {
            let exponent = text.strip_prefix("~ 2^")?.trim_end().parse().ok()?;
            (exponent <= 64).then_some(HistValue::Log2(exponent))
        }
        KeyForm::Buckets(_) => {
            let (first, last) = text.strip_prefix("~ ")?.split_once('-')?;
            Some(HistValue::Bucket(first.parse().ok()?, last.trim_end().parse().ok()?))
        }
        KeyForm::Symbol | KeyForm::SymbolOffset => {
            let (address, symbol) = text.strip_prefix('[')?.split_once("] ")?;
            let known = address.bytes().all(|byte| byte.is_ascii_hexdigit()) && !symbol.contains('\n');
            known.then(|| HistValue::Symbol(symbol.trim_end().to_owned()))
        }
        KeyForm::Execname => {
            let (comm, tid) = text.strip_suffix(']')?.rsplit_once('[')?;
            // A thread id is an `int` that is printed as 64 bits.
            let tid = u32::try_from(number(tid)? & 0xffff_ffff).ok()?;
            Some(HistValue::Thread { tid, comm: bytes(comm.trim_end_matches(' ')) })
        }
        KeyForm::Text => Some(HistValue::Text(bytes(text.trim_end_matches(' ')))),
        KeyForm::Stack => {
            let frames: Vec<_> = text.lines().map(|frame| frame.trim().to_owned()).collect();
            (text.is_empty() || text.ends_with('\n')).then_some(HistValue::Stack(frames))
        }
    }
}

/// The bytes that the characters stand for.
fn bytes(text: &str) -> Vec<u8> {
    text.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
