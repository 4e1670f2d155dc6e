//! Benchmark of appending events to the spool, and of reading them.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use kprobed_trace::spool::{
    BootId, EntryKind, HistoryStart, Spool, SpoolEntry, SpoolItem, SpoolOptions, SpoolWriter,
};

/// Events of an encoded batch with four arguments.
const EVENTS: u32 = 1000;
const PAYLOAD_BYTES: usize = 60 << 10;

/// 120 MiB, twice the limit of the spool: half of it expires meanwhile.
const ENTRIES: u64 = 2048;
const MAX_BYTES: u64 = 64 << 20;
const RUNS: usize = 5;

/// Small entries, as they come at low rates.
const SMALL_BYTES: usize = 100;
const SMALL_ENTRIES: u64 = 200_000;

fn open(directory: &Path) -> (Spool, SpoolWriter) {
    let day = Duration::from_hours(24);
    let options = SpoolOptions::new(directory, MAX_BYTES, day, Duration::from_hours(1));
    let (spool, writer, _) = Spool::open(options, BootId([1; 16]), 1).unwrap();
    (spool, writer)
}

fn entry(sequence: u64, events: u32, payload: &[u8]) -> SpoolEntry {
    SpoolEntry {
        kind: EntryKind::Events,
        sequence,
        events,
        first_ns: sequence,
        last_ns: sequence,
        wall_offset_ns: 0,
        key: 0,
        payload: payload.to_vec().into(),
    }
}

/// Time of appending entries until all of them are in files, including the removal of expired
/// segments.
fn append(directory: &Path, payload: &[u8], entries: u64, events: u32) -> Duration {
    let (_spool, mut writer) = open(&directory.join("spool"));
    let mut entry = entry(0, events, payload);
    let start = Instant::now();
    for _ in 0..entries {
        writer.append(&entry, &[]).unwrap();
        entry.sequence += u64::from(events);
    }
    writer.flush().unwrap();
    let elapsed = start.elapsed();
    std::fs::remove_dir_all(directory.join("spool")).unwrap();
    elapsed
}

fn new_file(path: &Path) -> File {
    OpenOptions::new().write(true).create(true).truncate(true).open(path).unwrap()
}

/// Time of only writing the same bytes, a batch at a time, into as many files of the same size,
/// each synced when it is full: the lower bound.
fn write(directory: &Path, payload: &[u8], entries: u64) -> Duration {
    let per_file = (MAX_BYTES / 16) / payload.len() as u64;
    let names: Vec<_> =
        (0..entries.div_ceil(per_file)).map(|number| directory.join(number.to_string())).collect();
    let start = Instant::now();
    for (number, name) in names.iter().enumerate() {
        let mut file = new_file(name);
        for _ in 0..per_file {
            file.write_all(black_box(payload)).unwrap();
        }
        file.sync_data().unwrap();
        if let Some(old) = number.checked_sub(16) {
            std::fs::remove_file(&names[old]).unwrap();
        }
    }
    let elapsed = start.elapsed();
    for name in names.iter().rev().take(16) {
        std::fs::remove_file(name).unwrap();
    }
    elapsed
}

/// Processor time of appending entries, and of the same writes to one place of one file, without
/// the disk.
fn processor(directory: &Path, payload: &[u8]) -> (Duration, Duration) {
    let entries = (MAX_BYTES / 16) / (payload.len() as u64 + 100) - 1;
    let file = new_file(&directory.join("floor"));
    let floor = support::shortest(RUNS * 4, || {
        file.set_len(0).unwrap();
        for number in 0..entries {
            file.write_all_at(black_box(payload), number * payload.len() as u64).unwrap();
        }
    });
    let mut shortest = Duration::MAX;
    for run in 0..support::much(RUNS * 4, 1) {
        let (_spool, mut writer) = open(&directory.join(format!("spool{run}")));
        let mut entry = entry(0, EVENTS, payload);
        let start = Instant::now();
        for _ in 0..entries {
            writer.append(&entry, &[]).unwrap();
            entry.sequence += u64::from(EVENTS);
        }
        writer.flush().unwrap();
        shortest = shortest.min(start.elapsed());
    }
    let entries = u32::try_from(entries).unwrap();
    (shortest / entries, floor / entries)
}

/// Time of reading all entries.
fn read(directory: &Path, payload: &[u8]) -> (Duration, u64) {
    let (spool, mut writer) = open(&directory.join("read"));
    let mut entry = entry(0, EVENTS, payload);
    for _ in 0..ENTRIES / 4 {
        writer.append(&entry, &[]).unwrap();
        entry.sequence += u64::from(EVENTS);
    }
    let elapsed = support::shortest(RUNS, || {
        let mut reader = spool.reader(HistoryStart::Oldest, |_| 0).unwrap();
        let mut entries = 0;
        while let Some(item) = reader.next().unwrap() {
            entries += u64::from(matches!(item, SpoolItem::Entry(_)));
        }
        assert_eq!(entries, ENTRIES / 4);
    });
    (elapsed, ENTRIES / 4)
}

fn main() {
    let directory = std::env::var_os("KPROBED_BENCH_DIRECTORY")
        .map_or_else(|| tempfile::tempdir().unwrap(), |parent| tempfile::tempdir_in(parent).unwrap());
    let directory = directory.path();
    let payload: Vec<u8> = (0..=255_u8).cycle().take(PAYLOAD_BYTES).collect();
    let gib_s = |elapsed: Duration, bytes: u64| bytes as f64 / elapsed.as_secs_f64() / f64::from(1 << 30);
    let per_event = |elapsed: Duration, events: u64| elapsed.as_secs_f64() * 1e9 / events as f64;

    let (spool, floor) = processor(directory, &payload);
    println!("into the page cache, entries of {PAYLOAD_BYTES} bytes and {EVENTS} events, each:");
    println!("  spool {spool:?}: {:.1} ns an event", per_event(spool, EVENTS.into()));
    println!(
        "  write {floor:?}: the spool takes {:.2} times as long",
        spool.as_secs_f64() / floor.as_secs_f64()
    );

    let bytes = ENTRIES * PAYLOAD_BYTES as u64;
    let spool = support::shortest(RUNS, || {
        append(directory, &payload, ENTRIES, EVENTS);
    });
    let floor = support::shortest(RUNS, || {
        write(directory, &payload, ENTRIES);
    });
    println!("onto the disk, {} MiB, each segment synced when it is full:", bytes >> 20);
    println!("  spool {spool:?}: {:.2} GiB/s", gib_s(spool, bytes));
    println!(
        "  write {floor:?}: {:.2} GiB/s, {:.2} of the spool's time",
        gib_s(floor, bytes),
        floor.as_secs_f64() / spool.as_secs_f64()
    );

    let small = append(directory, &payload[..SMALL_BYTES], SMALL_ENTRIES, 1);
    println!("entries of {SMALL_BYTES} bytes: {:.0} ns each", per_event(small, SMALL_ENTRIES));

    let (elapsed, entries) = read(directory, &payload);
    println!(
        "reading: {:.1} ns an event, {:.2} GiB/s",
        per_event(elapsed, entries * u64::from(EVENTS)),
        gib_s(elapsed, entries * PAYLOAD_BYTES as u64)
    );
}
