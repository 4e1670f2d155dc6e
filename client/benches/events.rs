//! Benchmark of reading events in a client: from the bytes of a message to column sums, to rows, and
//! to calls.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark")]

mod support;

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use kprobed_client::event::{Batch, CallEnd, Calls, Row, TimeOrdered, Value};
use prost::Message as _;

use self::support::{EVENTS, Sample};

/// All arguments of all events, column by column.
fn sum_columns(batch: &Batch) -> u64 {
    let mut sum = 0_u64;
    for group in batch.groups() {
        for index in 0..group.schema().fields().len() {
            if let Some(numbers) = group.column(index).and_then(|column| column.numbers::<u64>()) {
                sum = numbers.fold(sum, u64::wrapping_add);
            }
        }
    }
    sum
}

/// The same and what else an event has.
fn sum_row(row: &Row<'_>) -> u64 {
    let arguments = row.fields().fold(0_u64, |sum, (_, value)| match value {
        Value::Unsigned { value, .. } => sum.wrapping_add(value),
        _ => sum,
    });
    arguments
        .wrapping_add(row.timestamp_ns())
        .wrapping_add(row.tid().map_or(0, |tid| u64::from(tid.unsigned_abs())))
}

fn sum_rows(batch: &Batch) -> u64 {
    batch.rows().fold(0, |sum, row| sum.wrapping_add(sum_row(&row)))
}

fn of_probes(group: &mut BenchmarkGroup<'_, WallTime>, probes: usize) {
    let sample = Sample::new(probes, 0);
    let name = |what: &str| format!("{what}/{probes} probes");
    group.bench_function(name("decode"), |bencher| bencher.iter(|| sample.decode()));
    group.bench_function(name("columns"), |bencher| bencher.iter(|| sum_columns(&sample.decode())));
    group.bench_function(name("rows"), |bencher| bencher.iter(|| sum_rows(&sample.decode())));
}

/// Batches of four CPUs that happened at the same time, put into the order of time.
fn ordered(group: &mut BenchmarkGroup<'_, WallTime>) {
    let samples = [0, 1, 2, 3].map(|cpu| Sample::new(1, cpu));
    group.throughput(Throughput::Elements((samples.len() * EVENTS) as u64));
    group.bench_function("rows in the order of time/4 CPUs", |bencher| {
        let mut ordered = TimeOrdered::new(1_000_000);
        bencher.iter(|| {
            for sample in &samples {
                ordered.push(sample.decode());
            }
            ordered.finish();
            let mut sum = 0_u64;
            while let Some(row) = ordered.next_row() {
                sum = sum.wrapping_add(sum_row(&row));
            }
            sum
        });
        assert_eq!(ordered.held_events(), 0);
    });
}

/// Entries joined with their returns: the events of two probes, which take turns. `keep` says what is kept of an entry,
/// and how many bytes that are.
fn join<T>(batch: &Batch, calls: &mut Calls<T>, keep: impl Fn(&Row<'_>) -> (usize, T)) -> usize {
    let mut joined = 0;
    for row in batch.rows() {
        let end = CallEnd::of(&row, 1).unwrap();
        if row.schema().id() == 1 {
            let (bytes, kept) = keep(&row);
            calls.enter(end, bytes, |_caller| kept);
        } else {
            joined += usize::from(calls.leave(end).is_ok());
        }
    }
    // A thread leaves its CPU within some of them.
    calls.begin_anew();
    while calls.next_incomplete().is_some() {}
    joined
}

fn calls(group: &mut BenchmarkGroup<'_, WallTime>) {
    let batch = Sample::new(2, 0).decode();
    group.throughput(Throughput::Elements((EVENTS / 2) as u64));
    let mut times = Calls::new(1 << 16, 64 << 20);
    group.bench_function("calls joined", |bencher| {
        bencher.iter(|| join(&batch, &mut times, |row| (8, row.timestamp_ns())));
    });
    let mut rows = Calls::new(1 << 16, 64 << 20);
    group.bench_function("calls joined, with the events of their entries", |bencher| {
        bencher.iter(|| {
            join(&batch, &mut rows, |row| {
                let row = row.to_owned();
                (row.bytes(), row)
            })
        });
        assert!(join(&batch, &mut rows, |row| (8, row.to_owned())) > EVENTS / 3);
    });
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("events");
    group.throughput(Throughput::Elements(EVENTS as u64));
    let sample = Sample::new(1, 0);
    assert_eq!(sample.decode().len(), EVENTS);
    group.bench_function("protobuf alone", |bencher| {
        bencher.iter(|| {
            kprobed_client::api::StreamEventsResponse::decode(black_box(sample.message.clone())).unwrap()
        });
    });
    of_probes(&mut group, 1);
    of_probes(&mut group, 4);
    ordered(&mut group);
    calls(&mut group);
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
