//! Happenings for tests: records, with the rows and losses that must follow from them.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::writer::Happening;
use crate::pipeline::LossCause;

/// Events whose fields are all of fixed size, and events with a text.
const FIXED: u16 = 301;
const TEXT: u16 = 302;
/// Where the text begins in a record.
const TEXT_AT: usize = 28;
/// An event whose call stack follows it in a record of its own, and that record.
const STACKED: u16 = 303;
pub(super) const STACKED_NAME: &str = "stacked";
const STACK: u16 = 4;
/// An event that no probe of the daemon defined.
const FOREIGN: u16 = 999;

/// A happening that is repeated.
#[derive(Clone, Debug)]
pub(super) struct Step {
    what: What,
    times: usize,
}

#[derive(Clone, Debug)]
enum What {
    Fixed {
        after_ns: u64,
        seed: u64,
    },
    Text {
        after_ns: u64,
        seed: u64,
        text: Option<Vec<u8>>,
    },
    /// An event with its call stack, and what becomes of that.
    Stacked {
        after_ns: u64,
        seed: u64,
        callers: usize,
        stack: StackIs,
    },
    /// Bytes that are not an event of a probe: a foreign event, or a record that is too short.
    Senseless {
        after_ns: u64,
        id: u16,
        words: usize,
    },
    Discarded {
        after_ns: u32,
        words: usize,
    },
    Overwritten {
        events: u64,
    },
}

/// What follows an event that is to have a call stack.
#[derive(Clone, Copy, Debug)]
enum StackIs {
    /// Its call stack.
    There,
    /// An NMI with an event and its call stack, and then that of the event.
    Interrupted,
    /// Nothing: the kernel had no room.
    Missing,
    /// A call stack of another place.
    Foreign,
    /// A record that says that it has more frames than it has.
    Cut,
}

/// An event as it must be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) timestamp_ns: u64,
    pub(super) tid: i32,
    pub(super) flags: u8,
    pub(super) preempt_count: u8,
    pub(super) ip: u64,
    pub(super) values: Vec<String>,
}

/// Rows and losses that a subscriber receives.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By event id.
    pub(super) rows: BTreeMap<u16, Vec<Row>>,
    /// Causes with the number of rows before, how many are lost and in how many gaps.
    losses: Vec<(LossCause, u64, u64, u64)>,
    /// Records of call stacks.
    pub(super) stacks: u64,
}

impl Told {
    pub(super) fn events(&self) -> u64 {
        self.rows.values().map(|rows| rows.len() as u64).sum()
    }

    /// Losses without an event between them are one.
    pub(super) fn loss(&mut self, cause: LossCause, count: u64, gaps: u64) {
        let events = self.events();
        let same =
            |(known, before, ..): &&mut (LossCause, u64, u64, u64)| (*known, *before) == (cause, events);
        match self.losses.iter_mut().find(same) {
            Some((_, _, more, others)) => (*more, *others) = (*more + count, *others + gaps),
            None => self.losses.push((cause, events, count, gaps)),
        }
    }

    pub(super) fn losses_of(&self, wanted: LossCause) -> Vec<(u64, u64)> {
        let of = self.losses.iter().filter(|(cause, ..)| *cause == wanted);
        of.map(|(_, before, count, _)| (*before, *count)).collect()
    }

    /// Places and numbers of gaps.
    pub(super) fn gaps(&self, wanted: LossCause) -> Vec<(u64, u64)> {
        let of = self.losses.iter().filter(|(cause, ..)| *cause == wanted);
        of.map(|(_, before, _, gaps)| (*before, *gaps)).collect()
    }

    pub(super) fn lost(&self, wanted: LossCause) -> u64 {
        self.losses_of(wanted).iter().map(|(_, count)| count).sum()
    }
}

/// Names and formats of the probes' events.
pub(super) fn formats() -> [(&'static str, String); 3] {
    let text = |name: &str, id: u16, fields: &[String], print: &str| {
        let common = [
            line("unsigned short common_type", 0, 2, 0),
            line("unsigned char common_flags", 2, 1, 0),
            line("unsigned char common_preempt_count", 3, 1, 0),
            line("int common_pid", 4, 4, 1),
        ];
        let ip = line("unsigned long __probe_ip", 8, 8, 0);
        let (common, fields) = (common.concat(), fields.concat());
        format!("name: {name}\nID: {id}\nformat:\n{common}\n{ip}{fields}\nprint fmt: \"{print}\"\n")
    };
    let fixed = [line("u32 v", 16, 4, 0), line("s16 n", 20, 2, 1), line("u64 a[]", 24, 16, 0)];
    let with_text = [line("__data_loc char[] s", 16, 4, 1), line("u64 w", 20, 8, 0)];
    [
        ("fixed", text("fixed", FIXED, &fixed, "(%lx) v=%u n=%d a={%Lu,%Lu}")),
        ("text", text("text", TEXT, &with_text, r#"(%lx) s=\"%s\" w=%Lu"#)),
        (STACKED_NAME, text(STACKED_NAME, STACKED, &[], "(%lx)")),
    ]
}

fn line(declaration: &str, offset: usize, size: usize, signed: u8) -> String {
    format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
}

/// The format of call stacks.
pub(super) fn stack_format() -> String {
    let common = [
        line("unsigned short common_type", 0, 2, 0),
        line("unsigned char common_flags", 2, 1, 0),
        line("unsigned char common_preempt_count", 3, 1, 0),
        line("int common_pid", 4, 4, 1),
    ];
    let fields = [line("int size", 8, 4, 1), line("unsigned long caller[8]", 16, 64, 0)];
    format!(
        "name: kernel_stack\nID: {STACK}\nformat:\n{}\n{}\nprint fmt: \"\"\n",
        common.concat(),
        fields.concat()
    )
}

/// Mostly short times, and some that no record header can hold, or no batch.
fn after_ns() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0..5000_u64, 2 => 0..1_u64 << 29, 1 => 0..1_u64 << 36]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = prop_oneof![
        1 => Just(None),
        6 => vec(1_u8.., 0..40).prop_map(Some),
        1 => vec(1_u8.., 0..700).prop_map(Some),
    ];
    let what = prop_oneof![
        8 => (after_ns(), any::<u64>()).prop_map(|(after_ns, seed)| What::Fixed { after_ns, seed }),
        6 => (after_ns(), any::<u64>(), text)
            .prop_map(|(after_ns, seed, text)| What::Text { after_ns, seed, text }),
        6 => (after_ns(), any::<u64>(), 0..30_usize, stack_is())
            .prop_map(|(after_ns, seed, callers, stack)| What::Stacked { after_ns, seed, callers, stack }),
        2 => (after_ns(), prop_oneof![Just(FIXED), Just(TEXT), Just(FOREIGN)], 0..4_usize)
            .prop_map(|(after_ns, id, words)| What::Senseless { after_ns, id, words }),
        2 => (1..1_u32 << 27, 0..30_usize)
            .prop_map(|(after_ns, words)| What::Discarded { after_ns, words }),
        2 => (1..1_u64 << 40).prop_map(|events| What::Overwritten { events }),
    ];
    let times = prop_oneof![4 => Just(1_usize), 3 => 1..20_usize, 1 => 1..400_usize];
    vec((what, times).prop_map(|(what, times)| Step { what, times }), 0..40)
}

/// An event whose call stack does not come, and so many events without a call stack.
pub(super) fn missing_stack(events: usize) -> Vec<Step> {
    let stacked = What::Stacked { after_ns: 10, seed: 0, callers: 3, stack: StackIs::Missing };
    let fixed = What::Fixed { after_ns: 10, seed: 1 };
    vec![Step { what: stacked, times: 1 }, Step { what: fixed, times: events }]
}

/// Events with their call stacks.
pub(super) fn stacks(events: usize) -> Vec<Step> {
    let stacked = What::Stacked { after_ns: 10, seed: 0, callers: 3, stack: StackIs::There };
    vec![Step { what: stacked, times: events }]
}

/// A record alone, an event whose call stack does not come, and events that interrupt it, with theirs.
pub(super) fn stacks_behind_a_missing_one(events: usize) -> Vec<Step> {
    let fixed = What::Fixed { after_ns: 10, seed: 1 };
    // The lowest byte has the flags: of a task, and of an interrupt (TRACE_FLAG_HARDIRQ).
    let stacked = |seed, stack| What::Stacked { after_ns: 10, seed, callers: 3, stack };
    vec![
        Step { what: fixed, times: 1 },
        Step { what: stacked(0, StackIs::Missing), times: 1 },
        Step { what: stacked(0x08, StackIs::There), times: events },
    ]
}

fn stack_is() -> impl Strategy<Value = StackIs> {
    prop_oneof![
        4 => Just(StackIs::There),
        2 => Just(StackIs::Interrupted),
        1 => Just(StackIs::Missing),
        1 => Just(StackIs::Foreign),
        1 => Just(StackIs::Cut),
    ]
}

/// Happenings, with the rows and losses that a subscriber must receive. The last one is an event,
/// since a loss is reported before the next event.
pub(super) fn of(start_ns: u64, steps: &[Step]) -> (Vec<Happening>, Told) {
    let mut story = Story {
        now_ns: start_ns,
        happenings: Vec::new(),
        told: Told::default(),
        senseless: 0,
        overwritten: 0,
    };
    for step in steps {
        for _ in 0..step.times {
            story.add(&step.what);
        }
    }
    story.add(&What::Fixed { after_ns: 1, seed: 1 });
    (story.happenings, story.told)
}

struct Story {
    now_ns: u64,
    happenings: Vec<Happening>,
    told: Told,
    /// Undecodable records since the last event of a probe.
    senseless: u64,
    /// Overwritten events since the last record.
    overwritten: u64,
}

impl Story {
    fn add(&mut self, what: &What) {
        match what {
            What::Fixed { after_ns, seed } => {
                let [v, n] = [0, 32].map(|bit| u32::try_from(seed >> bit & 0xffff_ffff).unwrap());
                let n = i16::from_le_bytes([n.to_le_bytes()[0], n.to_le_bytes()[1]]);
                let a = [*seed, !seed];
                let fields = [
                    &v.to_le_bytes()[..],
                    &n.to_le_bytes(),
                    &[0xcc; 2],
                    &a[0].to_le_bytes(),
                    &a[1].to_le_bytes(),
                ]
                .concat();
                let values = [v.to_string(), n.to_string(), a[0].to_string(), a[1].to_string()];
                self.event(*after_ns, FIXED, *seed, &fields, values.to_vec());
            }
            What::Text { after_ns, seed, text } => {
                // A text that cannot be read has no NUL either.
                let stored = text.as_ref().map_or(Vec::new(), |text| [text.as_slice(), b"\0"].concat());
                let descriptor = u32::try_from(stored.len() << 16 | TEXT_AT).unwrap();
                let mut fields = [&descriptor.to_le_bytes()[..], &seed.to_le_bytes(), &stored].concat();
                fields.resize(fields.len().next_multiple_of(4), 0xcc);
                let text = text.as_ref().map_or("fault".to_owned(), |text| text.escape_ascii().to_string());
                self.event(*after_ns, TEXT, *seed, &fields, vec![text, seed.to_string()]);
            }
            What::Stacked { after_ns, seed, callers, stack } => {
                self.stacked(*after_ns, *seed, *callers, *stack);
            }
            What::Senseless { after_ns, id, words } => {
                let mut payload = vec![0xbb; words * 4];
                if let Some(place) = payload.first_chunk_mut() {
                    *place = id.to_le_bytes();
                }
                self.record(*after_ns, payload);
                self.senseless += 1;
            }
            What::Discarded { after_ns, words } => {
                self.now_ns += u64::from(*after_ns);
                self.happenings.push(Happening::Discarded { after_ns: *after_ns, words: *words });
            }
            What::Overwritten { events } => {
                self.overwritten += events;
                self.happenings.push(Happening::Overwritten { events: *events });
            }
        }
    }

    fn stacked(&mut self, after_ns: u64, seed: u64, callers: usize, stack: StackIs) {
        // What can be interrupted is a task.
        let seed = if matches!(stack, StackIs::Interrupted) { seed & !0x58 } else { seed };
        let frames: Vec<u64> =
            (0..callers as u64).map(|caller| 0xffff_ffff_9000_0000 + caller * 16).collect();
        let [own, foreign] = [5, 16].map(|behind| [&[ip(seed) + behind][..], &frames].concat());
        let shown = |frames: &[u64]| {
            let lines: Vec<_> = frames.iter().map(|frame| format!("{frame:#x}")).collect();
            lines.join("\n").as_bytes().escape_ascii().to_string()
        };
        let is_its_own = matches!(stack, StackIs::There | StackIs::Interrupted);
        let value = if is_its_own { shown(&own) } else { "fault".to_owned() };
        self.event(after_ns, STACKED, seed, &[], vec![value]);
        match stack {
            StackIs::There => self.stack(seed, &own, 0),
            StackIs::Interrupted => {
                let inner = seed | 0x48;
                self.event(7, STACKED, inner, &[], vec![shown(&own)]);
                self.stack(inner, &own, 0);
                self.stack(seed, &own, 0);
            }
            StackIs::Missing => {}
            StackIs::Foreign => self.stack(seed, &foreign, 0),
            StackIs::Cut => self.stack(seed, &own, 1),
        }
    }

    /// The record of a call stack: frames of the tracing itself, and these. It says that it has so many more.
    fn stack(&mut self, seed: u64, frames: &[u64], missing: usize) {
        let frames = [&[0xffff_ffff_a000_0000, 0xffff_ffff_a000_0010], frames].concat();
        let count = i32::try_from(frames.len() + missing).unwrap();
        let frames: Vec<u8> = frames.iter().flat_map(|frame| frame.to_le_bytes()).collect();
        let payload = [&head(STACK, seed)[..], &count.to_le_bytes(), &[0xcc; 4], &frames].concat();
        self.record(9, payload);
        self.told.stacks += 1;
    }

    /// A record ends what was overwritten before it.
    fn record(&mut self, after_ns: u64, payload: Vec<u8>) {
        self.now_ns += after_ns;
        self.happenings.push(Happening::Event { after_ns, payload });
        let overwritten = std::mem::take(&mut self.overwritten);
        if overwritten > 0 {
            self.told.loss(LossCause::Overrun, overwritten, 1);
        }
    }

    fn event(&mut self, after_ns: u64, id: u16, seed: u64, fields: &[u8], values: Vec<String>) {
        let [flags, preempt_count, tid, ..] = seed.to_le_bytes();
        let ip = ip(seed);
        self.record(after_ns, [&head(id, seed), &ip.to_le_bytes()[..], fields].concat());
        let senseless = std::mem::take(&mut self.senseless);
        if senseless > 0 {
            self.told.loss(LossCause::Undecodable, senseless, 1);
        }
        let timestamp_ns = self.now_ns;
        let row = Row { timestamp_ns, tid: i32::from(tid % 5), flags, preempt_count, ip, values };
        self.told.rows.entry(id).or_default().push(row);
    }
}

fn ip(seed: u64) -> u64 {
    0xffff_ffff_8000_0000 | seed >> 40
}

/// The fields that all records have.
fn head(id: u16, seed: u64) -> Vec<u8> {
    let [flags, preempt_count, tid, ..] = seed.to_le_bytes();
    [&id.to_le_bytes()[..], &[flags, preempt_count, tid % 5, 0, 0, 0]].concat()
}
