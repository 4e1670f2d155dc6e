//! The events that a filter selects.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use kprobed_trace::decode::{Columns, Value};
use kprobed_trace::filter::{BoundFilter, RowOf};

use super::guest::Recorded;

/// How often an event of these values was recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection(BTreeMap<String, usize>);

impl Selection {
    /// All that a probe recorded.
    pub(super) fn all(recorded: &Recorded) -> Result<Self> {
        Self::of(&recorded.columns, |_| true)
    }

    /// What we select of a probe. The name of the task is the one that was recorded; `type_id` is
    /// the number of the event with the filter.
    pub(super) fn ours(filter: &BoundFilter, of: &Recorded, type_id: u16) -> Result<Self> {
        let columns = &of.columns;
        let task =
            columns.schema().fields.iter().position(|field| field.name == "task").context("no task")?;
        Self::of(columns, |row| {
            let comm = match columns.fields[task].value(row, 0) {
                Some(Value::Bytes(comm)) => Some(comm),
                _ => None,
            };
            filter.matches(&RowOf { columns, row, cpu: 0, type_id, tgid: None, comm })
        })
    }

    fn of(columns: &Columns, selected: impl Fn(usize) -> bool) -> Result<Self> {
        let mut counts = BTreeMap::new();
        for row in 0..columns.len() {
            if selected(row) {
                *counts.entry(row_text(columns, row)?).or_default() += 1;
            }
        }
        Ok(Self(counts))
    }

    pub(super) fn events(&self) -> usize {
        self.0.values().sum()
    }

    /// Whether all events of another one are in it.
    pub(super) fn holds(&self, other: &Self) -> bool {
        other.0.iter().all(|(event, count)| self.0.get(event).is_some_and(|here| here >= count))
    }
}

/// The values of a row as text. Flags are left out: they change from one probe to the next.
fn row_text(columns: &Columns, row: usize) -> Result<String> {
    let tid = columns.tids.get(row).map(i32::from_le_bytes).context("no tid")?;
    let mut text = format!("{tid} ");
    for field in &columns.fields {
        for element in 0.. {
            match field.value(row, element) {
                Some(value) => write!(text, "{value:?} ")?,
                None => break,
            }
        }
    }
    Ok(text)
}
