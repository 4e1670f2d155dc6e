//! Benchmark of the output of `kprobectl observe`: from the bytes of a message to the bytes of its
//! lines, on one core.
//!
//! For comparison it writes the same lines with the formatting of the standard library, and the
//! same objects with `serde_json`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark")]

mod support;

use std::io::Write as _;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kprobed_client::event::format::{
    EXACT, JsonLines, LocationForm, TextColours, TextLines, TextParts, TimeForm,
};
use kprobed_client::event::{Address, Batch, Context, Escaped, Fields, Row, Value};
use serde::{Serialize, Serializer};

use self::support::{EVENTS, Sample};

/// A time of day without a zone: what makes one is asked once a second.
fn clock(second: u64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3600 % 24, second / 60 % 60, second % 60)
}

fn text_lines() -> TextLines {
    let parts = TextParts { context: false, task: true, location: LocationForm::All };
    TextLines::new(TimeForm::Wall(Box::new(clock)), parts, TextColours::default())
}

/// A line of text by the formatting of the standard library.
fn write_plainly(buffer: &mut Vec<u8>, second: &str, row: &Row<'_>) {
    write!(buffer, "{second}.{:06} [{:03}] ", row.wall_ns() % 1_000_000_000 / 1_000, row.cpu()).unwrap();
    let tid = row.tid().unwrap();
    match row.comm() {
        Some(comm) => write!(buffer, "{}-{tid} ", Escaped(comm)).unwrap(),
        None => write!(buffer, "<...>-{tid} ").unwrap(),
    }
    write!(buffer, "{} ({})", row.probe(), row.location().unwrap()).unwrap();
    for (name, value) in row.fields() {
        write!(buffer, " {name}={value}").unwrap();
    }
    buffer.push(b'\n');
}

/// An event as an object, by derived serialisation.
#[derive(Serialize)]
struct Object<'a> {
    r#type: &'static str,
    time: String,
    timestamp_ns: u64,
    probe: &'a str,
    cpu: u32,
    tid: Option<i32>,
    tgid: Option<i32>,
    comm: Option<&'a str>,
    context: Option<ContextObject>,
    #[serde(serialize_with = "address")]
    location: Option<Address<'a>>,
    #[serde(serialize_with = "address")]
    return_location: Option<Address<'a>>,
    #[serde(serialize_with = "fields")]
    fields: Fields<'a>,
    faults: [&'a str; 0],
    unproven: [&'a str; 0],
}

#[derive(Serialize)]
struct ContextObject {
    irqs_off: bool,
    hardirq: bool,
    softirq: bool,
    nmi: bool,
    need_resched: bool,
    bh_off: bool,
    preempt_depth: u8,
    migrate_disable_depth: u8,
}

impl From<Context> for ContextObject {
    fn from(context: Context) -> Self {
        Self {
            irqs_off: context.irqs_off(),
            hardirq: context.hardirq(),
            softirq: context.softirq(),
            nmi: context.nmi(),
            need_resched: context.need_resched(),
            bh_off: context.bh_off(),
            preempt_depth: context.preempt_depth(),
            migrate_disable_depth: context.migrate_disable_depth(),
        }
    }
}

#[expect(clippy::ref_option, reason = "the signature that serde wants")]
fn address<S: Serializer>(address: &Option<Address<'_>>, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_none(),
    }
}

/// An integer that is text beyond what a JSON number keeps.
struct Integer(u64);

impl Serialize for Integer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 > EXACT { serializer.collect_str(&self.0) } else { serializer.serialize_u64(self.0) }
    }
}

fn fields<S: Serializer>(fields: &Fields<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.clone().map(|(name, value)| match value {
        Value::Unsigned { value, .. } => (name, Integer(value)),
        _ => panic!("all fields are numbers"),
    }))
}

fn object<'a>(row: &Row<'a>) -> Object<'a> {
    let time = jiff::Timestamp::from_nanosecond(row.wall_ns().into()).unwrap();
    Object {
        r#type: "event",
        time: format!("{time:.9}"),
        timestamp_ns: row.timestamp_ns(),
        probe: row.probe(),
        cpu: row.cpu(),
        tid: row.tid(),
        tgid: row.tgid(),
        comm: row.comm().and_then(|comm| std::str::from_utf8(comm).ok()),
        context: row.context().map(ContextObject::from),
        location: row.location(),
        return_location: row.return_location(),
        fields: row.fields(),
        faults: [],
        unproven: [],
    }
}

/// Writes every event of a batch.
fn write_rows(batch: &Batch, buffer: &mut Vec<u8>, mut write: impl FnMut(&mut Vec<u8>, &Row<'_>)) -> usize {
    buffer.clear();
    for row in batch.rows() {
        write(buffer, &row);
    }
    buffer.len()
}

fn observe(criterion: &mut Criterion) {
    let sample = Sample::new(1, 3);
    let batch = sample.decode();
    let second = clock(batch.rows().next().unwrap().wall_ns() / 1_000_000_000);
    let (mut text, mut json) = (text_lines(), JsonLines::new());
    let mut buffer = Vec::new();

    // What is compared is the same.
    let mut expected = Vec::new();
    write_rows(&batch, &mut expected, |buffer, row| write_plainly(buffer, &second, row));
    write_rows(&batch, &mut buffer, |buffer, row| text.push(buffer, row));
    assert_eq!(String::from_utf8(buffer.clone()).unwrap(), String::from_utf8(expected.clone()).unwrap());
    write_rows(&batch, &mut expected, |buffer, row| {
        serde_json::to_writer(&mut *buffer, &object(row)).unwrap();
        buffer.push(b'\n');
    });
    write_rows(&batch, &mut buffer, |buffer, row| json.push(buffer, row));
    assert_eq!(String::from_utf8(buffer.clone()).unwrap(), String::from_utf8(expected).unwrap());

    let mut group = criterion.benchmark_group("observe");
    group.throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("text", |bencher| {
        bencher.iter(|| write_rows(&sample.decode(), &mut buffer, |buffer, row| text.push(buffer, row)));
    });
    group.bench_function("text by the standard library", |bencher| {
        bencher.iter(|| {
            write_rows(&sample.decode(), &mut buffer, |buffer, row| write_plainly(buffer, &second, row))
        });
    });
    group.bench_function("json", |bencher| {
        bencher.iter(|| write_rows(&sample.decode(), &mut buffer, |buffer, row| json.push(buffer, row)));
    });
    group.bench_function("json by serde", |bencher| {
        bencher.iter(|| {
            write_rows(&sample.decode(), &mut buffer, |buffer, row| {
                serde_json::to_writer(&mut *buffer, &object(row)).unwrap();
                buffer.push(b'\n');
            })
        });
    });
    group.finish();
}

criterion_group!(benches, observe);
criterion_main!(benches);
