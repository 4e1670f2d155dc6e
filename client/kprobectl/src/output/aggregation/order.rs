//! Order of rows, and the selection of `--top`.
//!
//! Rows that differ only in the key of a bar chart are one group. Hidden rows are counted.

use std::cmp::Ordering;
use std::collections::HashMap;

use kprobed_client::api::key_value::Value;
use kprobed_client::api::{AggregationRow, KeyValue, sum_value};
use prost::Message as _;

use super::bucket::{Bucket, LatencyUnit, value};
use super::columns::Columns;

/// The requested order and size of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountView {
    pub(crate) order: CountOrder,
    /// Groups that are shown. `None`: all.
    pub(crate) top: Option<usize>,
    pub(crate) unit: LatencyUnit,
    /// Call stacks are printed as flame graph tools read them.
    pub(crate) is_folded: bool,
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountOrder {
    /// The largest count.
    Count,
    /// The smallest key.
    Key,
    /// The largest sum of this index.
    Sum(usize),
}

/// Rows that are shown together.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// At least one.
    pub(super) rows: Vec<&'a AggregationRow>,
    pub(super) count: u64,
    pub(super) sums: Vec<i128>,
}

/// What is shown, and what is not.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    pub(super) groups: Vec<Group<'a>>,
    /// All events in rows, shown or not.
    pub(super) total: u64,
    /// Rows that are not shown, and the events in them.
    pub(super) hidden_rows: usize,
    pub(super) hidden_count: u64,
}

impl<'a> Group<'a> {
    /// The value of a key that all rows of the group share.
    pub(super) fn key(&self, index: usize) -> Option<&'a KeyValue> {
        self.rows.first().and_then(|row| row.keys.get(index))
    }

    fn add(&mut self, row: &'a AggregationRow) {
        self.rows.push(row);
        self.count = self.count.saturating_add(row.count);
        for (sum, more) in self.sums.iter_mut().zip(&row.sums) {
            *sum = sum.saturating_add(number(more.value.as_ref()));
        }
    }
}

/// A sum of a row.
pub(super) fn number(sum: Option<&sum_value::Value>) -> i128 {
    match sum {
        Some(sum_value::Value::Unsigned(sum)) => (*sum).into(),
        Some(sum_value::Value::Signed(sum)) => (*sum).into(),
        None => 0,
    }
}

/// Groups, orders and cuts.
pub(super) fn choose<'a>(rows: &'a [AggregationRow], columns: &Columns, view: CountView) -> Chosen<'a> {
    let mut groups = groups(rows, columns);
    let by_key = |a: &Group<'_>, b: &Group<'_>| {
        let keys = (0..columns.keys.len()).filter(|index| Some(*index) != columns.axis);
        let mut orders = keys.map(|index| compare(value(a.key(index)), value(b.key(index))));
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    groups.sort_by(|a, b| match view.order {
        CountOrder::Count => b.count.cmp(&a.count).then_with(|| by_key(a, b)),
        CountOrder::Key => by_key(a, b),
        CountOrder::Sum(index) => b.sums.get(index).cmp(&a.sums.get(index)).then_with(|| by_key(a, b)),
    });
    let total = groups.iter().fold(0_u64, |total, group| total.saturating_add(group.count));
    let (mut hidden_rows, mut hidden_count) = (0, 0_u64);
    for group in groups.drain(view.top.unwrap_or(groups.len()).min(groups.len())..) {
        hidden_rows += group.rows.len();
        hidden_count = hidden_count.saturating_add(group.count);
    }
    Chosen { groups, total, hidden_rows, hidden_count }
}

fn groups<'a>(rows: &'a [AggregationRow], columns: &Columns) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places = HashMap::new();
    for row in rows {
        let place = match columns.axis {
            None => groups.len(),
            Some(axis) => {
                let others = row.keys.iter().enumerate().filter(|(index, _)| *index != axis);
                let key: Vec<u8> = others.flat_map(|(_, key)| key.encode_length_delimited_to_vec()).collect();
                *places.entry(key).or_insert(groups.len())
            }
        };
        if place == groups.len() {
            groups.push(Group { rows: Vec::new(), count: 0, sums: vec![0; columns.sums.len()] });
        }
        if let Some(group) = groups.get_mut(place) {
            group.add(row);
        }
    }
    groups
}

/// The order of two values of a key: numbers by size, all else by text.
fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let numeric = |value: Option<&Value>| match value? {
        Value::Unsigned(number) => Some(i128::from(*number)),
        Value::Signed(number) => Some(i128::from(*number)),
        _ => Bucket::of(value).map(|bucket| bucket.first),
    };
    let text = |value: Option<&Value>| match value {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Symbol(symbol)) => symbol.clone(),
        Some(Value::Thread(thread)) => thread.comm.clone(),
        Some(Value::Stack(stack)) => stack.frames.join("\n"),
        _ => String::new(),
    };
    let tid = |value: Option<&Value>| match value {
        Some(Value::Thread(thread)) => thread.tid,
        _ => 0,
    };
    numeric(a).cmp(&numeric(b)).then_with(|| text(a).cmp(&text(b))).then_with(|| tid(a).cmp(&tid(b)))
}
