//! Tests of reading and decoding: the result depends neither on how the kernel lays events out on
//! pages, nor on when the reader reads them.
//!
//! A model of the kernel's writer lays the same happenings out in several ways, and [`Cpu`] reads
//! them from a file. Each layout must give the rows, the losses and the counts that follow from the
//! happenings themselves.

mod happenings;
mod terms;
mod writer;

use std::collections::BTreeMap;
use std::io::{Seek as _, Write as _};

use futures_util::FutureExt as _;
use proptest::collection::vec;
use proptest::prelude::*;

use self::happenings::{Step, Told, steps};
use self::writer::{HEADER_BYTES, Manner, pages};
use super::*;
use crate::decode::{Column, Columns, CompileOptions, CompiledFormat, Value};
use crate::pipeline::collector::BATCH_EVENTS;
use crate::pipeline::commands::{Command, commands};
use crate::pipeline::{
    Binder, EventSource, Hub, Item, LossCause, QueueLimits, SourceTable, Subscription, View,
};
use crate::wire::read_batch;
use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::format::Format;
use kprobed_host::tracefs::{BufferStats, Instance, Tracefs};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// A time with bits above those of an absolute stamp.
const START_NS: u64 = (3 << 59) + 12_345_678;
const CPU: u32 = 3;

/// A host with one instance, in a directory.
struct World {
    directory: tempfile::TempDir,
    tracefs: Tracefs,
    facts: Arc<FactsCache>,
    sources: Arc<SourceTable>,
    /// By event id.
    probes: BTreeMap<u16, Arc<EventSource>>,
    hub: Arc<Hub>,
}

impl World {
    fn new(overwritten: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let per_cpu = directory.path().join(format!("instances/i/per_cpu/cpu{CPU}"));
        std::fs::create_dir_all(&per_cpu).unwrap();
        std::fs::write(per_cpu.join("stats"), format!("overrun: {overwritten}\n")).unwrap();
        let stack = directory.path().join("events/ftrace/kernel_stack");
        std::fs::create_dir_all(&stack).unwrap();
        std::fs::write(stack.join("format"), happenings::stack_format()).unwrap();
        let path = || directory.path().to_owned();
        let paths = KernelPaths { procfs: path(), sysfs: path(), debugfs: path(), tracefs: path() };
        let sources = Arc::<SourceTable>::default();
        let mut probes = BTreeMap::new();
        for (schema_id, (name, text)) in (1..).zip(happenings::formats()) {
            let format = Format::parse(&text).unwrap();
            let options =
                CompileOptions { stack: name == happenings::STACKED_NAME, ..CompileOptions::default() };
            let plan = CompiledFormat::compile(&format, &options).unwrap();
            let name = ProbeName::new("kprobes", name).unwrap();
            let source = Arc::new(EventSource::new(schema_id, ProbeUid(schema_id.into()), name, plan));
            sources.insert([(format.id, Arc::clone(&source))]);
            probes.insert(format.id, source);
        }
        Self {
            tracefs: Tracefs::new(path(), path()),
            facts: Arc::new(FactsCache::new(paths)),
            sources,
            probes,
            hub: Arc::new(Hub::new(Binder::new("here".to_owned(), None))),
            directory,
        }
    }

    /// Reads pages to their end, in these turns, over and over.
    fn read(&self, pages: &[Vec<u8>], sub_buffer_bytes: usize, turns: &[TurnOf]) -> Cpu {
        let mut file = tempfile::tempfile_in(self.directory.path()).unwrap();
        file.write_all(&pages.concat()).unwrap();
        file.rewind().unwrap();
        let instance = Instance::find(&self.tracefs, "i").unwrap();
        let ring = Ring::new(instance, layout(sub_buffer_bytes), CPU, file, &BufferStats::default());
        let mut cpu = Cpu::new(ring);
        let mut target = self.target();
        let mut buffer = Vec::new();
        for TurnOf { depth, is_waited_for } in turns.iter().cycle() {
            let (outbox, inbox, _) = commands().unwrap();
            if *is_waited_for {
                outbox.send(Command::Stop);
            }
            let found = cpu.read(&mut buffer, *depth, &inbox, &mut target);
            assert!(!found.broken && (found.is_published || !found.caught_up));
            // A command waits for at most one page, and for one that may have a call stack, unless the turn is to read
            // everything.
            assert!(!is_waited_for || *depth != Depth::Pages || found.pages <= 2);
            if found.pages == 0 {
                assert!(found.caught_up && found.is_published);
                break;
            }
        }
        cpu
    }

    fn target(&self) -> Target {
        let names = (self.tracefs.clone(), self.directory.path().to_owned());
        Target::new(Arc::clone(&self.sources), Arc::clone(&self.hub), names, Arc::clone(&self.facts))
    }

    fn subscribe(&self) -> Subscription {
        let limits = QueueLimits { events: u64::MAX, bytes: u64::MAX, ..QueueLimits::default() };
        let subscription = self.hub.subscribe(View { limits, ..View::default() });
        subscription.attach();
        subscription
    }

    /// The rows and losses that a subscriber received.
    fn told(&self, subscription: &Subscription) -> Told {
        let mut told = Told::default();
        while let Some(Ok(item)) = subscription.next().now_or_never() {
            match item {
                Item::Batch(batch) => {
                    for group in read_batch(&batch.message).unwrap().groups {
                        let source =
                            self.probes.values().find(|source| source.origin.schema_id == group.schema_id);
                        let source = source.unwrap();
                        let schema = Arc::clone(&source.origin.schema);
                        let columns = Columns::from_message(schema, group).unwrap();
                        let rows = told.rows.entry(source.plan.id()).or_default();
                        rows.extend((0..columns.len()).map(|row| row_of(&columns, row)));
                    }
                }
                Item::Loss(loss) => {
                    assert_eq!(loss.cpu, Some(CPU));
                    told.loss(loss.cause, loss.count.unwrap(), loss.gaps);
                }
                other => panic!("{other:?}"),
            }
        }
        told
    }
}

/// How the reader reads.
#[derive(Clone, Copy, Debug)]
struct TurnOf {
    depth: Depth,
    /// Whether a command waits for the reader.
    is_waited_for: bool,
}

fn layout(sub_buffer_bytes: usize) -> PageLayout {
    let text = format!(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
         \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: char data;\toffset:{HEADER_BYTES};\tsize:{};\tsigned:0;\n",
        sub_buffer_bytes - HEADER_BYTES
    );
    PageLayout::parse(&text).unwrap()
}

fn row_of(columns: &Columns, row: usize) -> happenings::Row {
    let values = |column: &Column, elements: usize| -> Vec<String> {
        (0..elements).map(|element| value_text(column.value(row, element).unwrap())).collect()
    };
    let fields = columns.schema().fields.iter().zip(&columns.fields);
    happenings::Row {
        timestamp_ns: columns.timestamps_ns[row],
        tid: columns.tid(row).unwrap(),
        flags: columns.flags(row).unwrap(),
        preempt_count: columns.preempt_count(row).unwrap(),
        ip: columns.ip(row).unwrap(),
        values: fields
            .flat_map(|(field, column)| values(column, field.array_len.unwrap_or(1) as usize))
            .collect(),
    }
}

fn value_text(value: Value<'_>) -> String {
    match value {
        Value::Unsigned(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Bytes(bytes) => bytes.escape_ascii().to_string(),
        Value::Fault => "fault".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn manner() -> impl Strategy<Value = Manner> {
    let sizes = prop_oneof![Just(4096), Just(16_384), Just(65_536)];
    let reads = prop_oneof![Just(Vec::new()), vec(1..300_usize, 1..4), vec(1..4_usize, 1..4)];
    (sizes, reads, any::<bool>(), any::<bool>()).prop_map(
        |(sub_buffer_bytes, reads, is_absolute, is_padded)| Manner {
            sub_buffer_bytes,
            reads,
            is_absolute,
            is_padded,
        },
    )
}

fn turns() -> impl Strategy<Value = Vec<TurnOf>> {
    let depth = prop_oneof![3 => Just(Depth::Pages), 1 => any::<u64>().prop_map(Depth::Until)];
    let turn = (depth, any::<bool>()).prop_map(|(depth, is_waited_for)| TurnOf { depth, is_waited_for });
    vec(turn, 1..5)
}

/// Reads the happenings in that layout, and compares the result with the one expected.
fn check(steps: &[Step], manner: &Manner, turns: &[TurnOf]) {
    let (happenings, expected) = happenings::of(START_NS, steps);
    let world = World::new(expected.lost(LossCause::Overrun));
    let subscription = world.subscribe();
    let pages = pages(START_NS, &happenings, manner);
    let cpu = world.read(&pages, manner.sub_buffer_bytes, turns);

    let told = world.told(&subscription);
    assert_eq!(told.rows, expected.rows);
    assert_eq!(told.losses_of(LossCause::Undecodable), expected.losses_of(LossCause::Undecodable));
    // Each gap is at its place. If a page has no room for the number, the reader uses the kernel's
    // counter, which can be ahead: the sum is exact.
    assert_eq!(told.gaps(LossCause::Overrun), expected.gaps(LossCause::Overrun));
    assert_eq!(told.lost(LossCause::Overrun), expected.lost(LossCause::Overrun));

    let counts = cpu.counters.counts(CPU);
    assert_eq!(counts.pages, pages.len() as u64);
    assert_eq!(counts.read, expected.events());
    assert_eq!(counts.overrun, expected.lost(LossCause::Overrun));
    assert_eq!(counts.undecodable, expected.lost(LossCause::Undecodable));
    assert_eq!(cpu.counters.seen(), counts.read + counts.undecodable + expected.stacks);
    assert_eq!(world.hub.sequence(), expected.events());
    for (id, source) in &world.probes {
        let rows = expected.rows.get(id).map_or(&[][..], Vec::as_slice);
        let counts = source.counts();
        assert_eq!(counts.read, rows.len() as u64);
        assert_eq!(counts.read_span.first_ns, rows.first().map_or(0, |row| row.timestamp_ns));
        assert_eq!(counts.read_span.last_ns, rows.last().map_or(0, |row| row.timestamp_ns));
    }
}

/// The number of events of the largest batch that was published.
fn largest_batch_after_a_missing_stack(events: usize, turn: TurnOf) -> u64 {
    let (happenings, expected) = happenings::of(START_NS, &happenings::missing_stack(events));
    let manner = Manner { sub_buffer_bytes: 4096, reads: Vec::new(), is_absolute: false, is_padded: false };
    let world = World::new(0);
    let subscription = world.subscribe();
    world.read(&pages(START_NS, &happenings, &manner), 4096, &[turn]);
    let (mut all, mut largest) = (0, 0);
    while let Some(Ok(Item::Batch(batch))) = subscription.next().now_or_never() {
        all += batch.events;
        largest = largest.max(batch.events);
    }
    assert_eq!(all, expected.events());
    largest
}

#[test]
fn a_call_stack_that_does_not_come_holds_up_no_events() {
    // A page of 4 KiB has less than 100 events, and a turn reads two pages: those of nine turns wait.
    let turn = TurnOf { depth: Depth::Pages, is_waited_for: true };
    let largest = largest_batch_after_a_missing_stack(5000, turn);
    assert!(largest < 1800, "{largest}");
    let turn = TurnOf { depth: Depth::Until(u64::MAX), is_waited_for: false };
    let largest = largest_batch_after_a_missing_stack(5 * BATCH_EVENTS, turn);
    assert!(largest < 4 * BATCH_EVENTS as u64 + 100, "{largest}");
}

/// Each page begins with the stack of the last event of the page before.
#[test]
fn a_row_of_pages_that_end_between_an_event_and_its_stack_loses_none() {
    let reads = std::iter::once(1).chain(std::iter::repeat_n(2, 600)).collect();
    let manner = Manner { sub_buffer_bytes: 4096, reads, is_absolute: false, is_padded: false };
    for depth in [Depth::Until(0), Depth::Pages] {
        let turn = TurnOf { depth, is_waited_for: false };
        check(&happenings::stacks(300), &manner, &[turn]);
        check(&happenings::stacks_behind_a_missing_one(300), &manner, &[turn]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn pages_and_reads_make_no_difference(
        steps in steps(),
        ways in vec((manner(), turns()), 3),
    ) {
        for (manner, turns) in ways {
            check(&steps, &manner, &turns);
        }
    }
}
