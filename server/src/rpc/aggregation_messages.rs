//! Conversion of aggregations to messages, and back.
//!
//! Owns which fields are refused. Never reads what was counted.

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_key::Key as KeyMessage;
use kprobed_proto::v1::aggregation_spec::Aggregation as SpecMessage;
use kprobed_proto::v1::{key_value, sum_value};

use crate::control::{
    Aggregation, AggregationSpec, Column, ContextKey, HistogramSpec, Key, KeyValue, LatencySpec, Row, Scale,
    Snapshot, SumValue,
};
use crate::messages::{length, timestamp};

/// A field of a request and what is wrong with it.
type Misfit = (&'static str, &'static str);

/// The specification that a client sent.
pub(super) fn spec(message: Option<v1::AggregationSpec>) -> Result<AggregationSpec, Misfit> {
    match message.and_then(|message| message.aggregation) {
        None => Err(("spec", "`spec` must be a histogram or a latency")),
        Some(SpecMessage::Histogram(message)) => {
            let v1::HistogramSpec { probe, keys, sums, filter, size, include_self } = message;
            let keys = keys.into_iter().map(key).collect::<Result<_, _>>()?;
            Ok(AggregationSpec::Histogram(HistogramSpec { probe, keys, sums, filter, size, include_self }))
        }
        Some(SpecMessage::Latency(message)) => {
            let keys = message.keys().map(context).collect::<Option<_>>();
            Ok(AggregationSpec::Latency(LatencySpec {
                keys: keys.ok_or(("spec.latency.keys", "a key must be a field or a context key"))?,
                start_probe: message.start_probe,
                end_probe: message.end_probe,
                match_field: message.match_field,
                start_filter: message.start_filter,
                end_filter: message.end_filter,
                bucket_ns: message.bucket_ns,
                size: message.size,
                include_self: message.include_self,
            }))
        }
    }
}

fn key(message: v1::AggregationKey) -> Result<Key, Misfit> {
    let field = "spec.histogram.keys";
    match message.key {
        Some(KeyMessage::Context(key)) => {
            let key = v1::ContextKey::try_from(key).ok().and_then(context);
            key.map(Key::Context).ok_or((field, "`context` must name a context key"))
        }
        Some(KeyMessage::Field(key)) => {
            let scale = match (key.scale(), key.bucket_size) {
                (v1::KeyScale::Linear, size) => Scale::Linear(size),
                (_, 1..) => return Err((field, "`bucket_size` is only valid with KEY_SCALE_LINEAR")),
                (v1::KeyScale::Unspecified, 0) => Scale::Exact,
                (v1::KeyScale::Log2, 0) => Scale::Log2,
                (v1::KeyScale::Symbol, 0) => Scale::Symbol,
                (v1::KeyScale::SymbolOffset, 0) => Scale::SymbolOffset,
            };
            Ok(Key::Field { field: key.field, scale })
        }
        None => Err((field, "a key must be a field or a context key")),
    }
}

const fn context(key: v1::ContextKey) -> Option<ContextKey> {
    match key {
        v1::ContextKey::Unspecified => None,
        v1::ContextKey::Thread => Some(ContextKey::Thread),
        v1::ContextKey::Comm => Some(ContextKey::Comm),
        v1::ContextKey::Cpu => Some(ContextKey::Cpu),
        v1::ContextKey::Stack => Some(ContextKey::Stack),
    }
}

fn context_message(key: ContextKey) -> v1::ContextKey {
    match key {
        ContextKey::Thread => v1::ContextKey::Thread,
        ContextKey::Comm => v1::ContextKey::Comm,
        ContextKey::Cpu => v1::ContextKey::Cpu,
        ContextKey::Stack => v1::ContextKey::Stack,
    }
}

fn key_message(key: &Key) -> v1::AggregationKey {
    let key = match key {
        Key::Context(key) => KeyMessage::Context(context_message(*key).into()),
        Key::Field { field, scale } => {
            let (scale, bucket_size) = match scale {
                Scale::Exact => (v1::KeyScale::Unspecified, 0),
                Scale::Log2 => (v1::KeyScale::Log2, 0),
                Scale::Linear(size) => (v1::KeyScale::Linear, *size),
                Scale::Symbol => (v1::KeyScale::Symbol, 0),
                Scale::SymbolOffset => (v1::KeyScale::SymbolOffset, 0),
            };
            KeyMessage::Field(v1::FieldKey { field: field.clone(), scale: scale.into(), bucket_size })
        }
    };
    v1::AggregationKey { key: Some(key) }
}

fn spec_message(spec: &AggregationSpec) -> v1::AggregationSpec {
    let message = match spec {
        AggregationSpec::Histogram(spec) => SpecMessage::Histogram(v1::HistogramSpec {
            probe: spec.probe.clone(),
            keys: spec.keys.iter().map(key_message).collect(),
            sums: spec.sums.clone(),
            filter: spec.filter.clone(),
            size: spec.size,
            include_self: spec.include_self,
        }),
        AggregationSpec::Latency(spec) => SpecMessage::Latency(v1::LatencySpec {
            start_probe: spec.start_probe.clone(),
            end_probe: spec.end_probe.clone(),
            match_field: spec.match_field.clone(),
            start_filter: spec.start_filter.clone(),
            end_filter: spec.end_filter.clone(),
            bucket_ns: spec.bucket_ns,
            keys: spec.keys.iter().map(|key| context_message(*key).into()).collect(),
            size: spec.size,
            include_self: spec.include_self,
        }),
    };
    v1::AggregationSpec { aggregation: Some(message) }
}

pub(super) fn aggregation(aggregation: &Aggregation) -> v1::Aggregation {
    let columns = |columns: &[Column]| {
        let message = |column: &Column| v1::AggregationColumn {
            name: column.name.clone(),
            hexadecimal: column.hexadecimal,
        };
        columns.iter().map(message).collect()
    };
    v1::Aggregation {
        name: aggregation.name.clone(),
        spec: Some(spec_message(&aggregation.spec)),
        create_time: Some(timestamp(aggregation.create_time)),
        expire_time: aggregation.expire_time.map(timestamp),
        bound_to_stream: aggregation.bound_to_stream,
        keys: columns(&aggregation.keys),
        sums: columns(&aggregation.sums),
    }
}

pub(super) fn snapshot(snapshot: Snapshot) -> v1::AggregationSnapshot {
    v1::AggregationSnapshot {
        name: snapshot.name,
        time: Some(timestamp(snapshot.time)),
        since: Some(timestamp(snapshot.since)),
        delta: snapshot.delta,
        rows: snapshot.rows.into_iter().map(row).collect(),
        hits: snapshot.hits,
        dropped: snapshot.dropped,
        kernel_rows: length(snapshot.kernel_rows),
        starts: snapshot.starts,
        match_dropped: snapshot.match_dropped,
        own: snapshot.own,
    }
}

fn row(row: Row) -> v1::AggregationRow {
    let sum = |sum| v1::SumValue {
        value: Some(match sum {
            SumValue::Unsigned(sum) => sum_value::Value::Unsigned(sum),
            SumValue::Signed(sum) => sum_value::Value::Signed(sum),
        }),
    };
    v1::AggregationRow {
        keys: row.keys.into_iter().map(key_value).collect(),
        count: row.count,
        sums: row.sums.into_iter().map(sum).collect(),
    }
}

fn key_value(value: KeyValue) -> v1::KeyValue {
    use key_value::Value;
    let value = match value {
        KeyValue::Unsigned(number) => Value::Unsigned(number),
        KeyValue::Signed(number) => Value::Signed(number),
        KeyValue::Text(text) => Value::Text(text),
        KeyValue::UnsignedBucket(first, last) => Value::UnsignedBucket(v1::UnsignedBucket { first, last }),
        KeyValue::SignedBucket(first, last) => Value::SignedBucket(v1::SignedBucket { first, last }),
        KeyValue::Symbol(symbol) => Value::Symbol(symbol),
        KeyValue::Thread(tid, comm) => Value::Thread(v1::ThreadKey { tid, comm }),
        KeyValue::Stack(frames) => Value::Stack(v1::StackKey { frames }),
    };
    v1::KeyValue { value: Some(value) }
}
