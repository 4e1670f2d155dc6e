//! Aggregations: counts that the kernel makes.
//!
//! Owns the stream of snapshots, and the sum of those of several hosts. It never formats counts.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use tonic::Streaming;

use crate::api::stream_aggregation_request::Source;
use crate::api::stream_aggregation_response::Message;
use crate::api::sum_value::Value;
use crate::api::{
    Aggregation, AggregationRow, AggregationSnapshot, KeyValue, StreamAggregationRequest,
    StreamAggregationResponse, SumValue,
};
use crate::client::Client;
use crate::error::Error;

/// Snapshots of one aggregation. When it was made for the stream, dropping this deletes it.
#[derive(Debug)]
pub struct AggregationStream {
    aggregation: Aggregation,
    inner: Streaming<StreamAggregationResponse>,
}

impl AggregationStream {
    /// The aggregation, with the columns of its rows.
    pub fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// The next snapshot; `None` when the daemon has ended the stream.
    ///
    /// # Errors
    /// When the aggregation cannot be read any more, or the daemon is gone.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<AggregationSnapshot>, Error> {
        while let Some(response) = self.inner.message().await? {
            if let Some(Message::Snapshot(snapshot)) = response.message {
                return Ok(Some(snapshot));
            }
        }
        Ok(None)
    }
}

impl Client {
    /// Reads an aggregation, and the counts so far.
    pub async fn read_aggregation(&self, name: &str) -> Result<(Aggregation, AggregationSnapshot), Error> {
        let source = Some(Source::Name(name.to_owned()));
        let request = StreamAggregationRequest { source, once: true, ..Default::default() };
        let reading = async {
            let mut stream = self.begin_aggregation(request).await?;
            let snapshot = stream.next().await?.ok_or(Error::Incomplete("snapshot"))?;
            Ok((stream.aggregation, snapshot))
        };
        Box::pin(self.within_timeout::<_, Error>(reading)).await
    }

    /// Reads an aggregation again and again (`Source::Name`), or one that is made for the stream
    /// and deleted with it (`Source::Spec`). `deltas`: each snapshot holds what was counted since
    /// the one before it.
    pub async fn stream_aggregation(
        &self,
        source: Source,
        interval: Duration,
        deltas: bool,
    ) -> Result<AggregationStream, Error> {
        let interval = Some(to_proto_duration(interval));
        let source = Some(source);
        self.begin_aggregation(StreamAggregationRequest { source, interval, deltas, once: false }).await
    }

    async fn begin_aggregation(&self, request: StreamAggregationRequest) -> Result<AggregationStream, Error> {
        let (first, inner) = self
            .begin_with_first(request, async |request| self.counting().stream_aggregation(request).await)
            .await?;
        match first.message {
            Some(Message::Started(aggregation)) => Ok(AggregationStream { aggregation, inner }),
            _ => Err(Error::Incomplete("started")),
        }
    }
}

/// A duration as a message of the API. Durations that it cannot hold do not occur.
pub(crate) fn to_proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or_default()
}

/// Adds up snapshots of aggregations with the same specification: counts and sums of rows whose
/// keys are equal, and all terms. Nothing is estimated, since buckets have the same bounds
/// everywhere. The whole counts since the earliest beginning, and was read at the latest time. As
/// in one snapshot, a sum that does not fit 64 bits wraps around.
pub fn add_snapshots(snapshots: &[AggregationSnapshot]) -> AggregationSnapshot {
    let mut whole = AggregationSnapshot::default();
    // Equal keys have equal bytes: a message without maps and unknown fields is encoded in one way.
    let mut rows: BTreeMap<Vec<Vec<u8>>, AggregationRow> = BTreeMap::new();
    let moment = |time: &prost_types::Timestamp| (time.seconds, time.nanos);
    for snapshot in snapshots {
        whole.hits = whole.hits.saturating_add(snapshot.hits);
        whole.dropped = whole.dropped.saturating_add(snapshot.dropped);
        whole.kernel_rows = whole.kernel_rows.saturating_add(snapshot.kernel_rows);
        whole.starts = whole.starts.saturating_add(snapshot.starts);
        whole.match_dropped = whole.match_dropped.saturating_add(snapshot.match_dropped);
        whole.own = whole.own.into_iter().chain(snapshot.own).reduce(u64::saturating_add);
        whole.nmissed = whole.nmissed.into_iter().chain(snapshot.nmissed).reduce(u64::saturating_add);
        whole.unread = whole.unread.into_iter().chain(snapshot.unread).reduce(u64::saturating_add);
        whole.delta |= snapshot.delta;
        whole.time = whole.time.into_iter().chain(snapshot.time).max_by_key(moment);
        whole.since = whole.since.into_iter().chain(snapshot.since).min_by_key(moment);
        for row in &snapshot.rows {
            rows.entry(row.keys.iter().map(KeyValue::encode_to_vec).collect())
                .and_modify(|sum| add(sum, row))
                .or_insert_with(|| row.clone());
        }
    }
    whole.rows = rows.into_values().collect();
    whole
}

/// Marks an aggregation with what is doubtful in another one of the same specification, on another host: what is added
/// up is only as good as the worst part of it.
pub fn add_marks(whole: &mut Aggregation, other: &Aggregation) {
    let columns = whole.keys.iter_mut().chain(&mut whole.sums);
    for (column, same) in columns.zip(other.keys.iter().chain(&other.sums)) {
        column.unproven |= same.unproven;
    }
    for warning in &other.warnings {
        if !whole.warnings.contains(warning) {
            whole.warnings.push(warning.clone());
        }
    }
}

fn add(whole: &mut AggregationRow, row: &AggregationRow) {
    whole.count = whole.count.saturating_add(row.count);
    for (sum, more) in whole.sums.iter_mut().zip(&row.sums) {
        *sum = SumValue { value: sum_of(sum.value, more.value) };
    }
}

/// Both are of one field, and so of one type; if its sign differs between kernels, the first one
/// counts.
fn sum_of(one: Option<Value>, other: Option<Value>) -> Option<Value> {
    Some(match (one, other) {
        (None, value) | (value, None) => return value,
        (Some(Value::Unsigned(one)), Some(Value::Unsigned(other))) => {
            Value::Unsigned(one.wrapping_add(other))
        }
        (Some(Value::Unsigned(one)), Some(Value::Signed(other))) => {
            Value::Unsigned(one.wrapping_add_signed(other))
        }
        (Some(Value::Signed(one)), Some(Value::Signed(other))) => Value::Signed(one.wrapping_add(other)),
        (Some(Value::Signed(one)), Some(Value::Unsigned(other))) => {
            Value::Signed(one.wrapping_add_unsigned(other))
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::key_value::Value as Key;
    use crate::api::{AggregationColumn, Diagnostic, UnsignedBucket};

    fn row(first: u64, count: u64, sum: i64) -> AggregationRow {
        let bucket = Key::UnsignedBucket(UnsignedBucket { first, last: first + 1 });
        AggregationRow {
            keys: vec![KeyValue { value: Some(bucket), ..Default::default() }],
            count,
            sums: vec![SumValue { value: Some(Value::Signed(sum)) }],
        }
    }

    proptest! {
        /// As if all events had been counted in one place, in whatever order the hosts come.
        #[test]
        fn buckets_add_up(hosts in proptest::collection::vec(
            proptest::collection::vec((0..6_u64, 0..1_000_u64, -1_000..1_000_i64), 0..10), 0..5,
        )) {
            let mut expected: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
            let mut snapshots = Vec::new();
            for host in &hosts {
                let mut rows: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
                for (bucket, count, sum) in host {
                    for of in [&mut rows, &mut expected] {
                        let entry = of.entry(*bucket).or_default();
                        *entry = (entry.0 + count, entry.1 + sum);
                    }
                }
                let hits = rows.values().map(|row| row.0).sum();
                let rows = rows.into_iter().map(|(bucket, (count, sum))| row(bucket, count, sum)).collect();
                snapshots.push(AggregationSnapshot { rows, hits, dropped: 1, starts: 2, own: Some(3), unread: Some(1), ..Default::default() });
            }
            let whole = add_snapshots(&snapshots);
            let mut rows: Vec<_> =
                expected.iter().map(|(bucket, (count, sum))| row(*bucket, *count, *sum)).collect();
            let by_key = |row: &AggregationRow| row.keys[0].encode_to_vec();
            rows.sort_by_key(by_key);
            prop_assert_eq!(&whole.rows, &rows);
            prop_assert_eq!(whole.hits, expected.values().map(|row| row.0).sum::<u64>());
            prop_assert_eq!((whole.dropped, whole.starts), (hosts.len() as u64, 2 * hosts.len() as u64));
            prop_assert_eq!(whole.own, (!hosts.is_empty()).then_some(3 * hosts.len() as u64));
            prop_assert_eq!(whole.unread, (!hosts.is_empty()).then_some(hosts.len() as u64));
            snapshots.reverse();
            prop_assert_eq!(add_snapshots(&snapshots), whole);
        }
    }

    #[test]
    fn the_whole_is_marked_as_its_worst_part() {
        let of = |unproven, message: &str| Aggregation {
            keys: vec![AggregationColumn { name: "n".to_owned(), unproven, ..Default::default() }],
            warnings: vec![Diagnostic { message: message.to_owned(), ..Default::default() }],
            ..Default::default()
        };
        let mut whole = of(false, "a");
        add_marks(&mut whole, &of(true, "b"));
        add_marks(&mut whole, &of(false, "a"));
        let warnings: Vec<_> = whole.warnings.iter().map(|warning| warning.message.as_str()).collect();
        assert_eq!((whole.keys[0].unproven, warnings), (true, vec!["a", "b"]));
    }

    #[test]
    fn the_whole_counts_from_the_first_to_the_last() {
        let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let of = |since, until| AggregationSnapshot {
            since: time(since),
            time: time(until),
            ..Default::default()
        };
        let whole = add_snapshots(&[of(5, 9), of(4, 8), AggregationSnapshot::default()]);
        assert_eq!((whole.since, whole.time), (time(4), time(9)));
    }
}
