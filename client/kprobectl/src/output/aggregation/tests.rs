//! Tests of the printer of aggregations.

use jiff::tz::TimeZone;
use kprobed_client::api::key_value::Value;
use kprobed_client::api::*;
use proptest::prelude::*;

use super::columns::{Columns, key_notation};
use super::order::{CountOrder, CountView, choose};
use super::text::account;
use super::{LatencyUnit, Style, heading, rows, snapshot_json, stack};

fn any_value() -> impl Strategy<Value = Option<Value>> {
    let bucket = |(first, last)| Value::UnsignedBucket(UnsignedBucket { first, last });
    let signed = |(first, last)| Value::SignedBucket(SignedBucket { first, last });
    prop_oneof![
        Just(None),
        any::<u64>().prop_map(|number| Some(Value::Unsigned(number))),
        any::<i64>().prop_map(|number| Some(Value::Signed(number))),
        any::<String>().prop_map(|text| Some(Value::Text(text))),
        any::<(u64, u64)>().prop_map(move |ends| Some(bucket(ends))),
        any::<(i64, i64)>().prop_map(move |ends| Some(signed(ends))),
        ".{0,12}".prop_map(|symbol| Some(Value::Symbol(symbol))),
        any::<(u32, String)>().prop_map(|(tid, comm)| Some(Value::Thread(ThreadKey { tid, comm }))),
        prop::collection::vec(".{0,12}", 0..4)
            .prop_map(|frames| Some(Value::Stack(StackKey { frames, incomplete: false }))),
    ]
}

fn any_row() -> impl Strategy<Value = AggregationRow> {
    let sum = prop_oneof![
        Just(None),
        any::<u64>().prop_map(|sum| Some(sum_value::Value::Unsigned(sum))),
        any::<i64>().prop_map(|sum| Some(sum_value::Value::Signed(sum))),
    ];
    let key = (any_value(), prop::option::of("(443|-2 \\(ENOENT\\))"));
    let keys = prop::collection::vec(key.prop_map(|(value, shown)| KeyValue { value, shown }), 0..4);
    let sums = prop::collection::vec(sum.prop_map(|value| SumValue { value }), 0..3);
    (keys, any::<u64>(), sums).prop_map(|(keys, count, sums)| AggregationRow { keys, count, sums })
}

fn any_aggregation() -> impl Strategy<Value = Aggregation> {
    let key = prop_oneof![
        (0..6_i32).prop_map(aggregation_key::Key::Context),
        (0..6_i32, any::<u64>()).prop_map(|(scale, bucket_size)| {
            aggregation_key::Key::Field(FieldKey { field: "f".to_owned(), scale, bucket_size })
        }),
    ];
    let keys = prop::collection::vec(prop::option::of(key).prop_map(|key| AggregationKey { key }), 0..4);
    let histogram = keys.prop_map(|keys| {
        aggregation_spec::Aggregation::Histogram(HistogramSpec { keys, ..Default::default() })
    });
    let latency = any::<u64>().prop_map(|bucket_ns| {
        aggregation_spec::Aggregation::Latency(LatencySpec { bucket_ns, ..Default::default() })
    });
    let column = ("(latency_ns|f|comm)", any::<bool>()).prop_map(|(name, hexadecimal)| AggregationColumn {
        name,
        hexadecimal,
        unproven: hexadecimal,
    });
    let columns = || prop::collection::vec(column.clone(), 0..4);
    (prop::option::of(prop_oneof![histogram, latency]), columns(), columns()).prop_map(
        |(aggregation, keys, sums)| Aggregation {
            spec: Some(AggregationSpec { aggregation }),
            keys,
            sums,
            ..Default::default()
        },
    )
}

proptest! {
    /// Whatever a daemon sends is shown, and no event of a row is lost on the way.
    #[test]
    fn anything_is_shown(
        aggregation in any_aggregation(),
        rows_sent in prop::collection::vec(any_row(), 0..12),
        order in prop_oneof![Just(CountOrder::Count), Just(CountOrder::Key), (0_usize..3).prop_map(CountOrder::Sum)],
        top in prop::option::of(1_usize..5),
        hits: u64,
    ) {
        let columns = Columns::of(&aggregation, LatencyUnit::Auto);
        let snapshot = AggregationSnapshot { rows: rows_sent, hits, ..Default::default() };
        let chosen = choose(&snapshot.rows, &columns, CountView { order, top, unit: LatencyUnit::Auto, is_folded: false });
        let style = Style::new(false);
        rows(&chosen, &columns, style);
        account(&snapshot, &chosen, &columns, style);
        stack::folded(&chosen, &columns, columns.stack.unwrap_or_default());
        let value = snapshot_json(&snapshot, &chosen, &columns, true).unwrap();
        let rows: usize = chosen.groups.iter().map(|group| group.rows.len()).sum();
        prop_assert_eq!(value["rows"].as_array().map(Vec::len), Some(rows));
        let shown = chosen.groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.count));
        prop_assert_eq!(shown.saturating_add(chosen.hidden_count), chosen.total);
        let shown: usize = chosen.groups.iter().map(|group| group.rows.len()).sum();
        prop_assert_eq!(shown + chosen.hidden_rows, snapshot.rows.len());
        for key in aggregation.spec.iter().flat_map(|spec| match &spec.aggregation {
            Some(aggregation_spec::Aggregation::Histogram(spec)) => spec.keys.as_slice(),
            _ => &[],
        }) {
            prop_assert!(!key_notation(key).is_empty());
        }
    }
}

#[test]
fn keys_of_one_name_stay_apart() {
    let column =
        |name: &str| AggregationColumn { name: name.to_owned(), hexadecimal: false, unproven: false };
    let aggregation = Aggregation { keys: vec![column("a"), column("a"), column("a")], ..Default::default() };
    let names: Vec<_> =
        Columns::of(&aggregation, LatencyUnit::Auto).keys.into_iter().map(|key| key.name).collect();
    assert_eq!(names, ["a", "a'", "a''"]);
}

/// What the kernel has skipped is a reason of its own, and no part of the others.
#[test]
fn skipped_ends_are_told_apart() {
    let snapshot = AggregationSnapshot { hits: 10, starts: 110, nmissed: Some(90), ..Default::default() };
    let view = CountView { order: CountOrder::Count, top: None, unit: LatencyUnit::Auto, is_folded: false };
    let columns = Columns { is_latency: true, ..Columns::of(&Aggregation::default(), LatencyUnit::Auto) };
    let chosen = choose(&snapshot.rows, &columns, view);
    let said = account(&snapshot, &chosen, &columns, Style::new(false));
    assert!(said.contains("90 ends were skipped by the kernel (NMISSED)"), "{said}");
    assert!(said.contains("10 starts without a measured end: still open"), "{said}");
    let all = AggregationSnapshot { starts: 100, ..snapshot.clone() };
    assert!(!account(&all, &chosen, &columns, Style::new(false)).contains("without a measured end"));
}

#[test]
fn headings_say_when() {
    let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 500_000_000 });
    let snapshot = AggregationSnapshot { time: time(10), since: time(5), ..Default::default() };
    assert_eq!(heading(&snapshot, &TimeZone::UTC), "00:00:10.500, counted since 00:00:05.500");
    let unknown = AggregationSnapshot::default();
    assert_eq!(heading(&unknown, &TimeZone::UTC), "?, counted since ?");
}

#[test]
fn one_is_not_many() {
    let snapshot =
        AggregationSnapshot { hits: 1, starts: 3, match_dropped: 1, nmissed: Some(1), ..Default::default() };
    let view = CountView { order: CountOrder::Count, top: None, unit: LatencyUnit::Auto, is_folded: false };
    let said = |is_latency| {
        let columns = Columns { is_latency, ..Columns::of(&Aggregation::default(), LatencyUnit::Auto) };
        let chosen = choose(&snapshot.rows, &columns, view);
        account(&snapshot, &chosen, &columns, Style::new(false))
    };
    let latency = said(true);
    assert!(latency.starts_with("1 measured, 3 starts, 1 not matched, 0 dropped, 0 rows\n"), "{latency}");
    assert!(latency.contains("\n  1 start or end not matched: "), "{latency}");
    assert!(
        latency.contains("\n  1 end was skipped by the kernel (NMISSED), and is in no row: "),
        "{latency}"
    );
    assert!(latency.contains("\n  1 start without a measured end: "), "{latency}");
    let counts = said(false);
    assert!(counts.starts_with("1 hit, 0 dropped, 0 rows\n"), "{counts}");
    assert!(counts.contains("\n  1 run was skipped by the kernel (NMISSED), and is in no row: "), "{counts}");
}
