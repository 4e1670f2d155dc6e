//! Readings of an aggregation as JSON and YAML.

use kprobed_client::api::key_value::Value;
use kprobed_client::api::{AggregationRow, AggregationSnapshot, KeyValue};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::bucket::{Bucket, Number};
use super::columns::{Columns, KeyColumn};
use super::distribution::{Distribution, Percentiles};
use super::order::{Chosen, Group, LeftOut, number, value};
use crate::output::data::Text;
use crate::output::time::rfc3339;

/// What was counted.
#[derive(serde::Serialize)]
pub(super) struct SnapshotView<'a> {
    name: &'a str,
    time: Option<String>,
    since: Option<String>,
    delta: bool,
    last: bool,
    hits: u64,
    dropped: u64,
    kernel_rows: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    match_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<u64>,
    not_shown: LeftOut,
    rows: Vec<RowView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    distributions: Option<Vec<DistributionView<'a>>>,
}

#[derive(serde::Serialize)]
struct RowView<'a> {
    keys: Keys<'a>,
    count: u64,
    sums: Sums<'a>,
}

/// A group of rows along a range.
#[derive(serde::Serialize)]
struct DistributionView<'a> {
    keys: Keys<'a>,
    count: u64,
    sums: Sums<'a>,
    percentiles: Option<Percentiles>,
}

/// Values of keys by name.
struct Keys<'a>(Vec<(&'a str, Option<&'a Value>)>);

/// Sums by name.
struct Sums<'a>(Vec<(&'a str, i128)>);

struct KeyView<'a>(Option<&'a Value>);

impl<'a> SnapshotView<'a> {
    /// `last`: counting has ended.
    pub(super) fn new(
        snapshot: &'a AggregationSnapshot,
        chosen: &Chosen<'a>,
        columns: &'a Columns,
        last: bool,
    ) -> Self {
        let latency = |number| columns.is_latency.then_some(number);
        let distribution =
            |axis| chosen.groups.iter().map(|group| distribution(group, columns, axis)).collect();
        Self {
            name: &snapshot.name,
            time: rfc3339(snapshot.time.as_ref()),
            since: rfc3339(snapshot.since.as_ref()),
            delta: snapshot.delta,
            last,
            hits: snapshot.hits,
            dropped: snapshot.dropped,
            kernel_rows: snapshot.kernel_rows,
            starts: latency(snapshot.starts),
            match_dropped: latency(snapshot.match_dropped),
            own: snapshot.own,
            not_shown: chosen.left_out,
            rows: chosen
                .groups
                .iter()
                .flat_map(|group| &group.rows)
                .map(|row| self::row(row, columns))
                .collect(),
            distributions: columns.axis.map(distribution),
        }
    }
}

fn row<'a>(row: &'a AggregationRow, columns: &'a Columns) -> RowView<'a> {
    let key = |(column, key): (&'a KeyColumn, &'a KeyValue)| (column.name.as_str(), value(Some(key)));
    let sums = row.sums.iter().map(|sum| number(sum.value.as_ref()));
    RowView {
        keys: Keys(columns.keys.iter().zip(&row.keys).map(key).collect()),
        count: row.count,
        sums: Sums(columns.sums.iter().map(|sum| sum.name.as_str()).zip(sums).collect()),
    }
}

fn distribution<'a>(group: &Group<'a>, columns: &'a Columns, axis: usize) -> DistributionView<'a> {
    let others = columns.keys.iter().enumerate().filter(|(index, _)| *index != axis);
    DistributionView {
        keys: Keys(others.map(|(index, column)| (column.name.as_str(), group.key(index))).collect()),
        count: group.count,
        sums: Sums(
            columns.sums.iter().map(|sum| sum.name.as_str()).zip(group.sums.iter().copied()).collect(),
        ),
        percentiles: Distribution::of(&group.rows, axis).percentiles(),
    }
}

impl Serialize for Keys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, KeyView(*value))))
    }
}

impl Serialize for Sums<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, sum)| (name, Number(*sum))))
    }
}

impl Serialize for KeyView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => serializer.serialize_none(),
            Some(Value::Unsigned(number)) => serializer.serialize_u64(*number),
            Some(Value::Signed(number)) => serializer.serialize_i64(*number),
            Some(Value::Text(text)) => Text(text).serialize(serializer),
            Some(Value::Symbol(symbol)) => serializer.serialize_str(symbol),
            Some(Value::Stack(stack)) => serializer.collect_seq(&stack.frames),
            Some(Value::UnsignedBucket(_) | Value::SignedBucket(_)) => {
                Bucket::of(self.0).serialize(serializer)
            }
            Some(Value::Thread(thread)) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("tid", &thread.tid)?;
                map.serialize_entry("comm", &Text(&thread.comm))?;
                map.end()
            }
        }
    }
}
