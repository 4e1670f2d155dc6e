//! Results of an aggregation: rows of keys, counts and sums, made of the kernel's tables, and the difference of two
//! snapshots.
//!
//! Owns what a value of the kernel's table means, and which rows are one. Never reads the tables itself.

use std::collections::{BTreeMap, HashMap};

use kprobed_event::Escaped;
use kprobed_proto::v1;
use kprobed_proto::v1::key_value::Value;
use kprobed_proto::v1::sum_value::Value as Sum;

use super::plan::{Meaning, Role, RowKey, TriggerPlan};
use kprobed_host::tracefs::hist::{HistRow, HistTable, HistValue};
use kprobed_trace::decode::Position;

/// Rows with the same meaning become one: the kernel distinguishes threads of the same name,
/// addresses in the same function, and stacks that differ in how the probe was reached.
pub(super) fn rows(plan: &TriggerPlan, tables: &[HistTable]) -> Vec<v1::AggregationRow> {
    let mut merged = BTreeMap::<Vec<Value>, (u64, Vec<u64>)>::new();
    for (table, planned) in tables.iter().zip(&plan.tables) {
        let Role::Result { beyond } = planned.role else { continue };
        for row in &table.rows {
            let (count, sums) =
                merged.entry(keys(plan, row, beyond)).or_insert_with(|| (0, vec![0; plan.signed_sums.len()]));
            *count = count.wrapping_add(row.hits);
            for (sum, more) in sums.iter_mut().zip(&row.sums) {
                *sum = sum.wrapping_add(*more);
            }
        }
    }
    let sum = |(signed, sum): (&bool, u64)| v1::SumValue {
        value: Some(if *signed { Sum::Signed(sum.cast_signed()) } else { Sum::Unsigned(sum) }),
    };
    let key = |(value, key): (Value, &RowKey)| v1::KeyValue { shown: key.text(&value), value: Some(value) };
    let row = |(keys, (count, sums)): (Vec<Value>, (u64, Vec<u64>))| v1::AggregationRow {
        keys: keys.into_iter().zip(&plan.keys).map(key).collect(),
        count,
        sums: plan.signed_sums.iter().zip(sums).map(sum).collect(),
    };
    merged.into_iter().map(row).collect()
}

/// The keys of a row in the order in which they were requested. `beyond` is the key that the table
/// of values beyond the powers of two leaves out.
fn keys(plan: &TriggerPlan, row: &HistRow, beyond: Option<usize>) -> Vec<Value> {
    let mut values = row.keys.iter();
    let mut printed: Vec<_> = vec![None; plan.keys.len()];
    for &index in &plan.printed {
        let value = if beyond == Some(index) { None } else { values.next() };
        if let (Some(slot), Some(RowKey { meaning, .. })) = (printed.get_mut(index), plan.keys.get(index)) {
            let mut value = value.map_or_else(|| meaning.beyond(), |value| meaning.of(value));
            if let (Value::Stack(stack), Some(place)) = (&mut value, &plan.place) {
                begin_at(place, stack);
            }
            *slot = Some(value);
        }
    }
    printed.into_iter().flatten().collect()
}

impl Meaning {
    /// What a value of the kernel's table means.
    fn of(self, value: &HistValue) -> Value {
        match value {
            HistValue::Number(number) if self == Self::Signed => Value::Signed(number.cast_signed()),
            HistValue::Number(number) if self == Self::LowerHalf => {
                let [a, b, c, d, ..] = number.to_le_bytes();
                Value::Signed(i32::from_le_bytes([a, b, c, d]).into())
            }
            HistValue::Number(number) => Value::Unsigned(*number),
            HistValue::Log2(exponent) => self.bucket(log2(*exponent)),
            // The bucket around -1 wraps around; what is above 0 in it has another one.
            HistValue::Bucket(first, last) if last < first => self.bucket((*first, u64::MAX)),
            HistValue::Bucket(first, last) => self.bucket((*first, *last)),
            HistValue::Symbol(symbol) => Value::Symbol(symbol.clone()),
            HistValue::Thread { comm, .. } if self == Self::Comm => Value::Text(Escaped(comm).to_string()),
            HistValue::Thread { tid, comm } => {
                Value::Thread(v1::ThreadKey { tid: *tid, comm: Escaped(comm).to_string() })
            }
            HistValue::Text(text) if self == Self::Symbol => Value::Symbol(Escaped(text).to_string()),
            HistValue::Text(text) => Value::Text(Escaped(text).to_string()),
            HistValue::Stack(frames) => {
                Value::Stack(v1::StackKey { frames: without_probing(frames), incomplete: false })
            }
        }
    }

    fn bucket(self, (first, last): (u64, u64)) -> Value {
        match self {
            Self::Signed => {
                let (first, last) = (first.cast_signed(), last.cast_signed());
                // The last range of powers of two ends beyond the largest number.
                let last = if last < first { i64::MAX } else { last };
                Value::SignedBucket(v1::SignedBucket { first, last })
            }
            _ => Value::UnsignedBucket(v1::UnsignedBucket { first, last }),
        }
    }

    /// The one row of the values that have no power of two of their own.
    fn beyond(self) -> Value {
        match self {
            Self::Signed => Value::SignedBucket(v1::SignedBucket { first: i64::MIN, last: -1 }),
            _ => Value::UnsignedBucket(v1::UnsignedBucket { first: (1 << 63) + 1, last: u64::MAX }),
        }
    }
}

impl RowKey {
    /// A number as the text of an event has it. `None` if that is the number itself.
    fn text(&self, value: &Value) -> Option<String> {
        let (bits, number) = match value {
            Value::Unsigned(number) => (*number, number.to_string()),
            Value::Signed(number) => (number.cast_unsigned(), number.to_string()),
            _ => return None,
        };
        let mut text = Vec::new();
        let text =
            self.notation.push(&mut text, bits, self.bytes).then(|| String::from_utf8(text).ok())??;
        let above =
            u32::try_from(self.bytes).map_or(0, |bytes| 64_u32.saturating_sub(bytes.saturating_mul(8)));
        let word = bits.wrapping_shl(above).wrapping_shr(above);
        Some(match self.notation.position()? {
            Position::Behind if self.column.hexadecimal => format!("{word:#x} ({text})"),
            Position::Behind => format!("{number} ({text})"),
            Position::Instead => text,
        })
    }
}

/// What was counted since an earlier snapshot of the same aggregation: rows that have grown, by how much.
#[must_use]
pub fn grown_since(
    now: &v1::AggregationSnapshot,
    before: &v1::AggregationSnapshot,
) -> v1::AggregationSnapshot {
    let earlier: HashMap<_, _> = before.rows.iter().map(|row| (&row.keys, row)).collect();
    let grown = |row: &v1::AggregationRow| match earlier.get(&row.keys) {
        None => Some(row.clone()),
        Some(then) if then.count == row.count => None,
        Some(then) => Some(v1::AggregationRow {
            keys: row.keys.clone(),
            count: row.count.wrapping_sub(then.count),
            sums: row.sums.iter().zip(&then.sums).map(|(now, then)| grown_sum(*now, *then)).collect(),
        }),
    };
    v1::AggregationSnapshot {
        name: now.name.clone(),
        time: now.time,
        since: before.time,
        delta: true,
        rows: now.rows.iter().filter_map(grown).collect(),
        hits: now.hits.saturating_sub(before.hits),
        dropped: now.dropped.saturating_sub(before.dropped),
        kernel_rows: now.kernel_rows,
        starts: now.starts.saturating_sub(before.starts),
        match_dropped: now.match_dropped.saturating_sub(before.match_dropped),
        own: now.own.map(|own| own.saturating_sub(before.own.unwrap_or_default())),
        nmissed: now.nmissed.map(|nmissed| nmissed.saturating_sub(before.nmissed.unwrap_or_default())),
        unread: now.unread.map(|unread| unread.saturating_sub(before.unread.unwrap_or_default())),
    }
}

/// Sums are modulo 2^64.
fn grown_sum(now: v1::SumValue, then: v1::SumValue) -> v1::SumValue {
    let value = match (now.value, then.value) {
        (Some(Sum::Signed(now)), Some(Sum::Signed(then))) => Some(Sum::Signed(now.wrapping_sub(then))),
        (Some(Sum::Unsigned(now)), Some(Sum::Unsigned(then))) => Some(Sum::Unsigned(now.wrapping_sub(then))),
        (now, _) => now,
    };
    v1::SumValue { value }
}

/// First and last number whose next power of two is that one. The kernel takes 0 for 1
/// (kernel/trace/trace_events_hist.c:hist_field_log2).
fn log2(exponent: u8) -> (u64, u64) {
    let power = |exponent: u8| 1_u64.checked_shl(exponent.into()).unwrap_or(u64::MAX);
    match exponent.checked_sub(1) {
        None => (0, 1),
        Some(below) => (power(below).saturating_add(1), power(exponent)),
    }
}

/// Functions through which a probe is reached (arch/x86/kernel/kprobes, kernel/kprobes.c,
/// kernel/trace/rethook.c), measured on 6.1 and 6.12.
const PROBING: &[&str] = &[
    "aggr_pre_handler",
    "opt_pre_handler",
    "optimized_callback",
    "kprobe_dispatcher",
    "kprobe_ftrace_handler",
    "kprobe_int3_handler",
    "do_int3",
    "exc_int3",
    "asm_exc_int3",
    "kretprobe_dispatcher",
    "kretprobe_rethook_handler",
    "rethook_trampoline_handler",
    "arch_rethook_trampoline_callback",
    "arch_rethook_trampoline",
    "__kretprobe_trampoline_handler",
    "__kretprobe_trampoline",
    "trampoline_handler",
    "ftrace_ops_assist_func",
    "ftrace_ops_list_func",
    "arch_ftrace_ops_list_func",
];

/// A stack without the frames of the probing itself. Trampolines have no symbol. A stack that
/// consists of nothing else stays as it is.
fn without_probing(frames: &[String]) -> Vec<String> {
    let inner = frames.iter().take_while(|frame| is_probing(frame)).count();
    frames.get(inner..).filter(|rest| !rest.is_empty()).unwrap_or(frames).to_vec()
}

fn is_probing(frame: &str) -> bool {
    PROBING.contains(&function(frame)) || frame.starts_with("0x")
}

fn function(frame: &str) -> &str {
    frame.split('+').next().unwrap_or_default()
}

/// Begins a stack with the place of the probe, where the kernel could not follow it: of an optimized probe it finds
/// the frames of the probing, and after them none up to the entry of the kernel (seen on 6.1 and 6.12). A stack that
/// begins in the function of the probe is whole: the kernel had not optimized the probe yet.
fn begin_at(place: &str, stack: &mut v1::StackKey) {
    if stack.frames.first().is_some_and(|first| function(first) == function(place)) {
        return;
    }
    if stack.frames.iter().all(|frame| is_probing(frame)) {
        stack.frames.clear();
    }
    stack.frames.insert(0, place.to_owned());
    stack.incomplete = true;
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn signed(first: i64, last: i64) -> Value {
        Value::SignedBucket(v1::SignedBucket { first, last })
    }

    fn unsigned(first: u64, last: u64) -> Value {
        Value::UnsignedBucket(v1::UnsignedBucket { first, last })
    }

    #[test]
    fn powers_of_two_are_ranges_without_gaps() {
        assert_eq!((log2(0), log2(1), log2(2), log2(3)), ((0, 1), (2, 2), (3, 4), (5, 8)));
        assert_eq!(log2(64), ((1 << 63) + 1, u64::MAX));
        for exponent in 1..=64 {
            assert_eq!(log2(exponent).0, log2(exponent - 1).1 + 1);
        }
    }

    #[test]
    fn negative_buckets_end_at_minus_one() {
        let bucket = HistValue::Bucket((-6_i64).cast_unsigned(), 3);
        assert_eq!(Meaning::Signed.of(&bucket), signed(-6, -1));
        let bucket = HistValue::Bucket(10, 19);
        assert_eq!(Meaning::Signed.of(&bucket), signed(10, 19));
    }

    #[test]
    fn the_largest_bucket_ends_with_the_largest_number() {
        let bucket = |meaning: Meaning| meaning.bucket(log2(63));
        assert_eq!(bucket(Meaning::Signed), signed((1 << 62) + 1, i64::MAX));
        assert_eq!(bucket(Meaning::Unsigned), unsigned((1 << 62) + 1, 1 << 63));
    }

    #[test]
    fn only_growth_is_told() {
        let row = |key, count, sum| v1::AggregationRow {
            keys: vec![v1::KeyValue { value: Some(Value::Unsigned(key)), ..Default::default() }],
            count,
            sums: vec![v1::SumValue { value: Some(Sum::Signed(sum)) }],
        };
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let before = v1::AggregationSnapshot {
            name: "a".to_owned(),
            time: time(0),
            since: time(0),
            rows: vec![row(1, 5, 50), row(2, 1, 1)],
            hits: 6,
            kernel_rows: 2,
            own: Some(4),
            nmissed: Some(2),
            unread: Some(1),
            ..Default::default()
        };
        let now = v1::AggregationSnapshot {
            time: time(1),
            rows: vec![row(1, 7, 40), row(2, 1, 1), row(3, 4, 4)],
            hits: 12,
            dropped: 3,
            kernel_rows: 3,
            own: Some(9),
            nmissed: Some(5),
            unread: Some(3),
            ..before.clone()
        };
        let delta = grown_since(&now, &before);
        assert_eq!(delta.rows, [row(1, 2, -10), row(3, 4, 4)]);
        assert_eq!((delta.hits, delta.dropped, delta.kernel_rows, delta.delta), (6, 3, 3, true));
        assert_eq!((delta.since, delta.own, delta.unread), (before.time, Some(5), Some(2)));
        assert_eq!(delta.nmissed, Some(3));
    }

    #[test]
    fn a_stack_that_cannot_be_followed_begins_at_the_place_and_says_so() {
        let from = |frames: &[&str]| {
            let frames: Vec<_> = frames.iter().map(|&frame| frame.to_owned()).collect();
            let mut stack = v1::StackKey { frames: without_probing(&frames), incomplete: false };
            begin_at("kernel_clone+0x9", &mut stack);
            (stack.frames.join(" "), stack.incomplete)
        };
        let entry = "entry_SYSCALL_64_after_hwframe+0x76/0x7e";
        let jump = ["opt_pre_handler+0x4/0x80", "optimized_callback+0x3/0x90", "0xffffffffc03810de"];
        assert_eq!(from(&[&jump[..], &[entry]].concat()), (format!("kernel_clone+0x9 {entry}"), true));
        assert_eq!(from(&jump), ("kernel_clone+0x9".to_owned(), true));
        let whole = ["exc_int3+0x1/0x2", "kernel_clone+0xa/0x490", "do_syscall_64+0x1/0x2"];
        assert_eq!(from(&whole), (whole[1..].join(" "), false), "armed by a breakpoint");
    }

    #[test]
    fn stacks_begin_at_the_probe() {
        let stack = |frames: &[&str]| frames.iter().map(|&frame| frame.to_owned()).collect::<Vec<_>>();
        let whole = stack(&[
            "aggr_pre_handler+0x44/0x80",
            "kprobe_ftrace_handler+0x13b/0x1d0",
            "0xffffffffc03810de",
            "do_sys_openat2+0x5/0xe0",
            "0xffffffffc0000000",
        ]);
        assert_eq!(without_probing(&whole), stack(&["do_sys_openat2+0x5/0xe0", "0xffffffffc0000000"]));
        let only = stack(&["exc_int3+0x1/0x2"]);
        assert_eq!(without_probing(&only), only);
    }
}
