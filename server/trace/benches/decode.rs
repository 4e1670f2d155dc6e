//! Benchmark of decoding pages into columns, against the unavoidable cost: copying the pages once,
//! and walking over their records.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput};
use kprobed_host::ring::{Page, PageLayout};
use kprobed_host::tracefs::format::Format;
use kprobed_trace::decode::{Columns, CompileOptions, CompiledFormat, Window};

/// More than the caches of one core hold, as pages that come from the kernel are in none either.
const GENERATED_PAGES: usize = 128;
const SUB_BUFFER_BYTES: usize = 64 << 10;
const PAGE_HEADER_BYTES: usize = 16;

/// Records that are decoded together, as in the daemon.
const TOGETHER: usize = 256;

/// Payload of a probe with four arguments, in words of 32 bits and in bytes: common fields and
/// `__probe_ip`, 8 bytes each, and the arguments.
const PAYLOAD_WORDS: u32 = 12;
const PAYLOAD_BYTES: usize = 6 * 8;
const RECORD_BYTES: usize = 4 + PAYLOAD_BYTES;

/// By event id.
type Plans = Vec<Option<(CompiledFormat, Columns)>>;

/// The plan of a record, and its columns.
fn plan_of<'p>(plans: &'p mut Plans, record: &[u8]) -> &'p mut (CompiledFormat, Columns) {
    let id = u16::from_le_bytes(*record.first_chunk().unwrap());
    plans[usize::from(id)].as_mut().unwrap()
}

/// Pages, and how the events on them are decoded.
struct Load {
    name: &'static str,
    layout: PageLayout,
    pages: Vec<Vec<u8>>,
    plans: Plans,
    ids: Vec<u16>,
}

impl Load {
    /// Every page into the columns of its events, which are emptied for the next one. Returns the
    /// number of events. As in the readers, events that have only numbers wait for more of them,
    /// and are decoded column by column.
    fn columns(&mut self) -> usize {
        let mut events = 0;
        for bytes in &self.pages {
            let page = Page::parse(black_box(bytes), &self.layout).unwrap();
            let mut waiting: Vec<(u16, Vec<Window<'_>>)> = Vec::new();
            let mut guess = 0;
            let walked = page.records().each(|record, onward| {
                let (plan, columns) = plan_of(&mut self.plans, record.payload);
                let place = match waiting.get(guess) {
                    Some((id, _)) if *id == plan.id() => Some(guess),
                    _ => waiting.iter().position(|(id, _)| *id == plan.id()),
                };
                let Some(bytes) = onward.first_chunk().filter(|_| plan.is_fixed()) else {
                    // The last record of its page is decoded after all waiting ones.
                    if let Some(place) = place {
                        plan.decode_fixed(&waiting[place].1, columns);
                        waiting[place].1.clear();
                    }
                    plan.decode(record.payload, record.timestamp_ns, columns).unwrap();
                    return;
                };
                assert!(record.payload.len() >= plan.fixed_bytes());
                guess = place.unwrap_or_else(|| {
                    waiting.push((plan.id(), Vec::with_capacity(TOGETHER)));
                    waiting.len() - 1
                });
                let windows = &mut waiting[guess].1;
                windows.push(Window { timestamp_ns: record.timestamp_ns, bytes });
                if windows.len() == TOGETHER {
                    plan.decode_fixed(windows, columns);
                    windows.clear();
                }
            });
            walked.unwrap();
            for (id, windows) in &waiting {
                let (plan, columns) = plan_of(&mut self.plans, &id.to_le_bytes());
                plan.decode_fixed(windows, columns);
            }
            for id in &self.ids {
                let (_, columns) = plan_of(&mut self.plans, &id.to_le_bytes());
                events += black_box(&*columns).len();
                columns.clear();
            }
        }
        events
    }

    /// Only where each record is, and when it was written.
    fn walk(&self) -> usize {
        let mut events = 0;
        for bytes in &self.pages {
            let page = Page::parse(black_box(bytes), &self.layout).unwrap();
            let walked = page.records().each(|record, _onward| {
                black_box(record.payload.as_ptr());
                events += 1;
            });
            walked.unwrap();
        }
        events
    }

    fn copy(&self, into: &mut [u8]) {
        for bytes in &self.pages {
            into.copy_from_slice(black_box(bytes));
            black_box(&*into);
        }
    }
}

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/ring/small-mix")
}

/// The stored formats that are wanted, by the names of their files.
fn plans(wanted: impl Fn(&str) -> bool) -> (Plans, Vec<u16>) {
    let (mut plans, mut ids) = (Plans::new(), Vec::new());
    for entry in fs::read_dir(stored().join("formats")).unwrap() {
        let path = entry.unwrap().path();
        if !wanted(path.file_stem().unwrap().to_str().unwrap()) {
            continue;
        }
        let format = Format::parse(&fs::read_to_string(path).unwrap()).unwrap();
        let plan = CompiledFormat::compile(&format, &CompileOptions::default()).unwrap();
        let columns = plan.columns();
        let index = usize::from(format.id);
        if plans.len() <= index {
            plans.resize_with(index + 1, || None);
        }
        plans[index] = Some((plan, columns));
        ids.push(format.id);
    }
    (plans, ids)
}

/// Full sub-buffers of 64 KiB with nothing but events of four 64-bit arguments.
fn generated() -> Load {
    let (plans, ids) = plans(|name| name == "perfu__n4");
    let [id] = ids[..].try_into().unwrap();
    let data_bytes = SUB_BUFFER_BYTES - PAGE_HEADER_BYTES;
    let header_page = format!(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: char data;\toffset:{PAGE_HEADER_BYTES};\tsize:{data_bytes};\tsigned:0;\n"
    );
    let records = data_bytes / RECORD_BYTES;
    let page = |number: usize| {
        let mut page = Vec::with_capacity(SUB_BUFFER_BYTES);
        page.extend((1_000_000_000 + number as u64 * 1_000_000).to_le_bytes());
        page.extend(((records * RECORD_BYTES) as u64).to_le_bytes());
        for row in 0..records as u64 {
            // Length in words, and nanoseconds since the record before
            // (include/linux/ring_buffer.h:struct ring_buffer_event).
            let (words, delta) = (PAYLOAD_WORDS, 330_u32);
            page.extend((words | delta << 5).to_le_bytes());
            page.extend(id.to_le_bytes());
            page.extend([0, 1]);
            page.extend(4321_i32.to_le_bytes());
            page.extend(0xffff_ffff_8140_7700_u64.to_le_bytes());
            page.extend([1, 2, 3, row].iter().flat_map(|argument| argument.to_le_bytes()));
        }
        page.resize(SUB_BUFFER_BYTES, 0);
        page
    };
    let layout = PageLayout::parse(&header_page).unwrap();
    assert_eq!(layout.sub_buffer_bytes(), SUB_BUFFER_BYTES);
    Load { name: "four arguments", layout, pages: (0..GENERATED_PAGES).map(page).collect(), plans, ids }
}

/// Pages of a real kernel with all kinds of events on them, partly empty.
fn mixture() -> Load {
    let layout = PageLayout::parse(&fs::read_to_string(stored().join("header_page")).unwrap()).unwrap();
    let raw = ["cpu0.raw", "cpu1.raw"].map(|name| fs::read(stored().join(name)).unwrap());
    let pages =
        raw.iter().flat_map(|raw| raw.chunks(layout.sub_buffer_bytes()).map(<[u8]>::to_vec)).collect();
    let (plans, ids) = plans(|_| true);
    Load { name: "stored mixture", layout, pages, plans, ids }
}

fn main() {
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    for mut load in [generated(), mixture()] {
        let events = load.columns();
        assert_eq!(events, load.walk(), "every event becomes a row");
        let mut copied = vec![0; load.layout.sub_buffer_bytes()];
        let mut group = criterion.benchmark_group(load.name);
        group.throughput(Throughput::Elements(events as u64));
        group.bench_function("columns", |bencher| bencher.iter(|| load.columns()));
        group.bench_function("walk", |bencher| bencher.iter(|| load.walk()));
        group.bench_function("copy", |bencher| bencher.iter(|| load.copy(&mut copied)));
        group.finish();

        let times = [
            ("columns", support::shortest(25, || assert_eq!(load.columns(), events))),
            ("walk", support::shortest(25, || assert_eq!(load.walk(), events))),
            ("copy", support::shortest(25, || load.copy(&mut copied))),
        ];
        println!("{}: {events} events on {} pages", load.name, load.pages.len());
        for (what, time) in times {
            let each = time.as_secs_f64() / events as f64;
            println!("{what:<8} {:>7.2} ns each, {:>7.1} million a second", each * 1e9, 1e-6 / each);
        }
    }
}
