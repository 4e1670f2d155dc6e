//! Tests of decoding on pages of a real kernel, against the kernel's own text of the same events.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use kprobed_host::ring::{Lost, Page, PageLayout};

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/ring").join(name)
}

/// An event as the kernel prints it, without the name of the task.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    tid: i32,
    context: String,
    time_us: u64,
    text: String,
}

/// The lines of `TID [CPU] CONTEXT TIME: EVENT: ...`, for each CPU.
fn kernel_lines(text: &str) -> BTreeMap<usize, Vec<Line>> {
    let mut lines: BTreeMap<usize, Vec<Line>> = BTreeMap::new();
    for line in text.lines() {
        let (tid, rest) = line.split_once(" [").unwrap();
        let (cpu, rest) = rest.split_once("] ").unwrap();
        let (context, rest) = rest.split_once(' ').unwrap();
        let (time, text) = rest.trim_start().split_once(": ").unwrap();
        let (seconds, micros) = time.split_once('.').unwrap();
        lines.entry(cpu.parse().unwrap()).or_default().push(Line {
            tid: tid.parse().unwrap(),
            context: merged(context),
            time_us: seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap(),
            text: text.to_owned(),
        });
    }
    lines
}

/// The context as it is compared: garbage is all the same, and the six letters for what makes a
/// reschedule due are all `n`.
fn merged(letters: &str) -> String {
    if letters.ends_with("ff") {
        return "garbage".into();
    }
    match letters.strip_prefix('.') {
        Some(rest) if !rest.starts_with('.') => format!(".n{}", &rest[1..]),
        _ => letters.to_owned(),
    }
}

/// The five letters for the context.
fn letters(flags: u8, preempt_count: u8) -> String {
    kprobed_event::Context::new(flags, preempt_count)
        .map_or_else(|| "garbage".into(), |context| context.to_string())
}

fn print(name: &str, columns: &Columns, row: usize) -> String {
    let number = |value| match value {
        Some(Value::Unsigned(value)) => i128::from(value),
        Some(Value::Signed(value)) => i128::from(value),
        other => panic!("{other:?}"),
    };
    if name == "sys_enter" {
        let arguments: Vec<_> =
            (0..6).map(|element| format!("{:x}", number(columns.fields[1].value(row, element)))).collect();
        return format!("{name}: NR {} ({})", number(columns.fields[0].value(row, 0)), arguments.join(", "));
    }
    if name == "sys_exit" {
        let [id, result] = [0, 1].map(|field: usize| number(columns.fields[field].value(row, 0)));
        return format!("{name}: NR {id} = {result}");
    }
    let mut text = format!("{name}: (0x{:x})", columns.ip(row).unwrap());
    for (field, column) in columns.schema().fields.iter().zip(&columns.fields) {
        let value = column.value(row, 0).unwrap();
        match (value, field.base) {
            (Value::Bytes(bytes), _) => write!(text, " {}=\"{}\"", field.name, bytes.escape_ascii()),
            (Value::Fault, _) => write!(text, " {}=(fault)", field.name),
            (_, Some(Base::Hex)) => write!(text, " {}=0x{:x}", field.name, number(Some(value))),
            _ => write!(text, " {}={}", field.name, number(Some(value))),
        }
        .unwrap();
    }
    text
}

/// Decodes a whole corpus and compares all that the kernel printed. Returns the number of events
/// and what each page says about loss.
fn agree(name: &str) -> (usize, BTreeMap<usize, Vec<Lost>>) {
    let directory = corpus(name);
    let layout = PageLayout::parse(&fs::read_to_string(directory.join("header_page")).unwrap()).unwrap();
    let mut table = BTreeMap::new();
    for entry in fs::read_dir(directory.join("formats")).unwrap() {
        let format = Format::parse(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        let plan = plan(&format);
        let columns = plan.columns();
        table.insert(format.id, (format.name, plan, columns));
    }
    let mut lost: BTreeMap<usize, Vec<Lost>> = BTreeMap::new();
    let mut compared = 0;
    for (cpu, expected) in kernel_lines(&fs::read_to_string(directory.join("trace.txt")).unwrap()) {
        let mut expected = expected.into_iter();
        let raw = fs::read(directory.join(format!("cpu{cpu}.raw"))).unwrap();
        for bytes in raw.chunks(layout.sub_buffer_bytes()) {
            let page = Page::parse(bytes, &layout).unwrap();
            lost.entry(cpu).or_default().push(page.lost());
            for record in page.records() {
                let record = record.unwrap();
                let id = u16::from_le_bytes(*record.payload.first_chunk().unwrap());
                let (name, plan, columns) = table.get_mut(&id).unwrap();
                plan.decode(record.payload, record.timestamp_ns, columns).unwrap();
                let row = columns.len() - 1;
                let decoded = Line {
                    tid: columns.tid(row).unwrap(),
                    context: letters(columns.flags(row).unwrap(), columns.preempt_count(row).unwrap()),
                    // The kernel rounds.
                    time_us: (columns.timestamps_ns[row] + 500) / 1000,
                    text: print(name, columns, row),
                };
                assert_eq!(Some(decoded), expected.next(), "cpu {cpu}, event {compared}");
                compared += 1;
            }
        }
        assert_eq!(expected.next(), None, "cpu {cpu} has events that are not in the pages");
    }
    let kept: usize = table.values().map(|(_, _, columns)| columns.len()).sum();
    assert_eq!(kept, compared);
    (compared, lost)
}

#[test]
fn a_mix_of_uprobes_and_tracepoints_is_what_the_kernel_printed() {
    let (compared, lost) = agree("small-mix");
    assert_eq!(compared, 10_228);
    assert!(lost[&0].iter().all(|lost| *lost == Lost::None));
    assert_ne!(lost[&1][0], Lost::None);
    assert!(lost[&1][1..].iter().all(|lost| *lost == Lost::None));
}

#[test]
fn pages_after_an_overrun_say_so() {
    let (compared, lost) = agree("small-lossy");
    assert_eq!(compared, 1979);
    // The first page of CPU 0 is too full for a count; its per-CPU statistics said 2305.
    assert_eq!(lost[&0][0], Lost::Unknown);
    assert_eq!(lost[&1][0], Lost::Count(1716));
    assert!(lost.values().all(|pages| pages[1..].iter().all(|lost| *lost == Lost::None)));
}
