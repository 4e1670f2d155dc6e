//! Benchmark of the cost of an event as subscribers, distinct events, and CPUs grow in number.
//!
//! No kernel is needed: CPUs are pipes from which the daemon's own readers read pages of 4 KiB, as
//! they do from `trace_pipe_raw`. The time is that of the threads that read, decode, select and
//! encode, without the subscribers' own work.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use kprobed_host::kernel::{ClockMapping, FactsCache, KernelPaths};
use kprobed_host::tracefs::format::Format;
use kprobed_host::tracefs::{Instance, Tracefs};
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::{CompileOptions, CompiledFormat};
use kprobed_trace::filter::Filter;
use kprobed_trace::pipeline::{
    Binder, BufferDemand, Draft, EventSource, Group, Hub, Item, QueueLimits, ReaderContext, Readers,
    SourceTable, Subscription, View,
};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 16;
/// Header of a record, the common fields of probes, and four arguments of 64 bits.
const RECORD_BYTES: usize = 4 + 6 * 8;
/// Words of 32 bits after the header.
const RECORD_WORDS: u32 = 12;
const PAGE_RECORDS: usize = (PAGE_BYTES - HEADER_BYTES) / RECORD_BYTES;
const FIRST_ID: u16 = 3000;
/// Events of a batch that is published without readers.
const BATCH: u64 = 4096;
/// Events of one run through the readers.
const RUN_EVENTS: usize = 4_000_000;
/// Runs, of which the quickest counts.
const ROUNDS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("skipped: `cargo bench` says --bench");
        return;
    }
    println!("| subscribers | the same, ns/event | different filters, ns/event | for each further one |");
    println!("|---|---|---|---|");
    let alone = published(&views(1, true));
    for count in [1, 2, 5, 10, 20, 50] {
        let (same, different) = (published(&views(count, false)), published(&views(count, true)));
        let further = if count == 1 { 0.0 } else { (different - alone) / (count - 1) as f64 };
        println!("| {count} | {same:.1} | {different:.1} | {further:.1} |");
    }
    println!("\n| distinct events | ns/event |\n|---|---|");
    for count in [1, 10, 100, 1000] {
        println!("| {count} | {:.1} |", read(2, count));
    }
    println!("\n| CPUs | reader threads | ns/event |\n|---|---|---|");
    for count in [2_u32, 4, 8, 16, 32, 64] {
        let threads = count.div_ceil(4).clamp(1, 8);
        println!("| {count} | {threads} | {:.1} |", read(count, 4));
    }
}

fn source(index: u16) -> Arc<EventSource> {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/ring/small-mix/formats");
    let file = fs::read_dir(stored).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.file_stem().unwrap() == "perfu__n4").unwrap();
    let mut format = Format::parse(&fs::read_to_string(file).unwrap()).unwrap();
    format.id = FIRST_ID + index;
    let plan = CompiledFormat::compile(&format, &CompileOptions::default()).unwrap();
    let name = ProbeName::new("kprobes", &format!("e{index}")).unwrap();
    Arc::new(EventSource::new(u32::from(index) + 1, ProbeUid(index.into()), name, plan))
}

fn hub() -> Arc<Hub> {
    Arc::new(Hub::new(Binder::new("here".to_owned(), None)))
}

fn limits() -> QueueLimits {
    QueueLimits { events: u64::MAX, bytes: u64::MAX, ..QueueLimits::default() }
}

/// Views without a filter, or each with a filter of its own. They let a half of the events through
/// on average.
fn views(count: usize, filtered: bool) -> Vec<View> {
    let view = |index: usize| {
        let least = BATCH * (index as u64 + 1) / (count as u64 + 1);
        let filter = filtered.then(|| Filter::parse(&format!("d >= {least}")).unwrap());
        View { filter, limits: limits(), ..View::default() }
    };
    (0..count).map(view).collect()
}

/// Nanoseconds for an event to be published to subscribers with these views.
fn published(views: &[View]) -> f64 {
    let hub = hub();
    let attach = |view: &View| {
        let subscription = hub.subscribe(view.clone());
        subscription.attach();
        subscription
    };
    let subscriptions: Vec<_> = views.iter().map(attach).collect();
    let source = source(0);
    let mut columns = source.plan.columns();
    for row in 0..BATCH {
        source.plan.decode(&record(FIRST_ID, row)[4..], 1_000_000 + row * 330, &mut columns).unwrap();
    }
    let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    let draft = Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock };
    let round = || {
        let mut time = Duration::ZERO;
        for _ in 0..100 {
            let begun = Instant::now();
            hub.publish(&draft);
            time += begun.elapsed();
            subscriptions.iter().for_each(empty);
        }
        time.as_nanos() as f64 / (100 * BATCH) as f64
    };
    (0..=ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn empty(subscription: &Subscription) {
    while let Some(item) = subscription.next().now_or_never() {
        item.unwrap();
    }
}

/// A record of an event: length in words and nanoseconds since the one before, common fields, the
/// address of the probe, and arguments of which two differ from event to event.
fn record(id: u16, row: u64) -> Vec<u8> {
    let mut record = (RECORD_WORDS | 330 << 5).to_le_bytes().to_vec();
    record.extend(id.to_le_bytes());
    record.extend([0, 1]);
    record.extend(4321_i32.to_le_bytes());
    record.extend(0xffff_ffff_8140_7700_u64.to_le_bytes());
    record.extend(
        [1, 2, row.wrapping_mul(0x9e37_79b9_7f4a_7c15), row].iter().flat_map(|arg| arg.to_le_bytes()),
    );
    record
}

/// Nanoseconds of the reader threads for each event, with this many CPUs and distinct events.
fn read(cpus: u32, events: u16) -> f64 {
    (0..ROUNDS).map(|_| read_once(cpus, events)).fold(f64::INFINITY, f64::min)
}

fn read_once(cpus: u32, events: u16) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    let pipes = lay_out(&root, cpus);
    let sources = Arc::<SourceTable>::default();
    sources.insert((0..events).map(|index| (FIRST_ID + index, source(index))));
    let hub = hub();
    let subscription = hub.subscribe(View { limits: limits(), ..View::default() });
    subscription.attach();
    let tracefs = Tracefs::new(&root, &root);
    let path = || root.clone();
    let paths = KernelPaths { procfs: path(), sysfs: path(), debugfs: path(), tracefs: path() };
    let readers = Readers::start(&ReaderContext {
        instance: Instance::find(&tracefs, "i").unwrap(),
        tracefs,
        procfs: root,
        sources,
        hub: Arc::clone(&hub),
        facts: Arc::new(FactsCache::new(paths)),
        demand: Arc::<BufferDemand>::default(),
        activity: Arc::default(),
    })
    .unwrap();
    let writer = std::thread::spawn(move || write(&pipes, events));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let wanted = RUN_EVENTS as u64;
    runtime.block_on(async {
        let mut seen = 0;
        while seen < wanted {
            if let Item::Batch(batch) = subscription.next().await.unwrap() {
                seen += batch.events;
            }
        }
        assert_eq!(seen, wanted, "every event, once");
    });
    let time = reader_time();
    let pipes = writer.join().unwrap();
    readers.stop();
    drop(pipes);
    time.as_nanos() as f64 / wanted as f64
}

/// An instance whose CPUs are pipes.
fn lay_out(root: &Path, cpus: u32) -> Vec<PathBuf> {
    fs::create_dir_all(root.join("events")).unwrap();
    let data_bytes = PAGE_BYTES - HEADER_BYTES;
    let header_page = format!(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: char data;\toffset:{HEADER_BYTES};\tsize:{data_bytes};\tsigned:0;\n"
    );
    fs::write(root.join("events/header_page"), header_page).unwrap();
    let pipe = |cpu: u32| {
        let directory = root.join(format!("instances/i/per_cpu/cpu{cpu}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("stats"), "overrun: 0\n").unwrap();
        let pipe = directory.join("trace_pipe_raw");
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        pipe
    };
    let pipes = (0..cpus).map(pipe).collect();
    fs::write(root.join("instances/i/buffer_size_kb"), "16384\n").unwrap();
    pipes
}

/// Writes pages to all pipes in turn. A page is written as a whole, since it has no more bytes than
/// `PIPE_BUF`.
fn write(pipes: &[PathBuf], events: u16) -> Vec<File> {
    let open = |pipe: &PathBuf| {
        let file = OpenOptions::new().write(true).open(pipe).unwrap();
        // If the kernel does not allow that, the pipe has 64 KiB.
        fcntl(&file, FcntlArg::F_SETPIPE_SZ(1 << 20)).ok();
        file
    };
    let mut files: Vec<File> = pipes.iter().map(open).collect();
    let mut written = 0;
    let mut time_ns = 1_000_000_000_u64;
    for index in 0.. {
        let count = PAGE_RECORDS.min(RUN_EVENTS - written);
        if count == 0 {
            break;
        }
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.extend(time_ns.to_le_bytes());
        page.extend(((count * RECORD_BYTES) as u64).to_le_bytes());
        for row in written..written + count {
            page.extend(record(FIRST_ID + u16::try_from(row % usize::from(events)).unwrap(), row as u64));
        }
        page.resize(PAGE_BYTES, 0);
        let place = index % files.len();
        files[place].write_all(&page).unwrap();
        written += count;
        time_ns += count as u64 * 330;
    }
    files
}

/// Processor time of all present reader threads of this process.
fn reader_time() -> Duration {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with("kprobed-read")) {
            let stat = fs::read_to_string(task.join("schedstat")).unwrap();
            nanos += stat.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    Duration::from_nanos(nanos)
}
