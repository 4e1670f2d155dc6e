//! Results of an aggregation: rows of keys, counts and sums, made of the kernel's tables.
//!
//! Owns what a value of the kernel's table means, and which rows are one. Never reads the tables
//! itself.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::plan::{Meaning, Role, TriggerPlan};
use kprobed_host::tracefs::hist::{HistRow, HistTable, HistValue};

/// What an aggregation has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The aggregation.
    pub name: String,
    /// When it was read.
    pub time: SystemTime,
    /// When counting began.
    pub since: SystemTime,
    /// Whether it holds only what was counted since the previous snapshot.
    pub delta: bool,
    /// In the order of their keys.
    pub rows: Vec<Row>,
    /// Events counted.
    pub hits: u64,
    /// Events for which the kernel's table had no row left.
    pub dropped: u64,
    /// Rows in the kernel's tables of results.
    pub kernel_rows: usize,
    /// Starts of latencies.
    pub starts: u64,
    /// Starts and ends for which the kernel's table had no row left.
    pub match_dropped: u64,
    /// Events of the daemon's own threads, which are in no row. Absent if they are counted like others.
    pub own: Option<u64>,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// One for each key.
    pub keys: Vec<KeyValue>,
    /// Events.
    pub count: u64,
    /// One for each sum.
    pub sums: Vec<SumValue>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// Unsigned integer.
    Unsigned(u64),
    /// Signed integer.
    Signed(i64),
    /// Bytes.
    Text(Vec<u8>),
    /// From the first to the last, both included.
    UnsignedBucket(u64, u64),
    /// From the first to the last, both included.
    SignedBucket(i64, i64),
    /// Symbol.
    Symbol(String),
    /// Id and name.
    Thread(u32, Vec<u8>),
    /// Frames from the innermost outward.
    Stack(Vec<String>),
}

/// A sum, modulo 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumValue {
    /// Of an unsigned field.
    Unsigned(u64),
    /// Of a signed field.
    Signed(i64),
}

/// Rows with the same meaning become one: the kernel distinguishes threads of the same name,
/// addresses in the same function, and stacks that differ in how the probe was reached.
pub(super) fn rows(plan: &TriggerPlan, tables: &[HistTable]) -> Vec<Row> {
    let mut merged = BTreeMap::<Vec<KeyValue>, (u64, Vec<u64>)>::new();
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
    let sum = |(signed, sum): (&bool, u64)| match signed {
        true => SumValue::Signed(sum.cast_signed()),
        false => SumValue::Unsigned(sum),
    };
    let row = |(keys, (count, sums)): (Vec<KeyValue>, (u64, Vec<u64>))| {
        let sums = plan.signed_sums.iter().zip(sums).map(sum).collect();
        Row { keys, count, sums }
    };
    merged.into_iter().map(row).collect()
}

/// The keys of a row in the order in which they were requested. `beyond` is the key that the table
/// of values beyond the powers of two leaves out.
fn keys(plan: &TriggerPlan, row: &HistRow, beyond: Option<usize>) -> Vec<KeyValue> {
    let mut values = row.keys.iter();
    let mut printed: Vec<_> = vec![None; plan.meanings.len()];
    for &index in &plan.printed {
        let value = if beyond == Some(index) { None } else { values.next() };
        if let (Some(slot), Some(meaning)) = (printed.get_mut(index), plan.meanings.get(index)) {
            *slot = Some(value.map_or_else(|| meaning.beyond(), |value| meaning.of(value)));
        }
    }
    printed.into_iter().flatten().collect()
}

impl Meaning {
    /// What a value of the kernel's table means.
    fn of(self, value: &HistValue) -> KeyValue {
        match value {
            HistValue::Number(number) if self == Self::Signed => KeyValue::Signed(number.cast_signed()),
            HistValue::Number(number) => KeyValue::Unsigned(*number),
            HistValue::Log2(exponent) => self.bucket(log2(*exponent)),
            // The bucket around -1 wraps around; what is above 0 in it has another one.
            HistValue::Bucket(first, last) if last < first => self.bucket((*first, u64::MAX)),
            HistValue::Bucket(first, last) => self.bucket((*first, *last)),
            HistValue::Symbol(symbol) => KeyValue::Symbol(symbol.clone()),
            HistValue::Thread { comm, .. } if self == Self::Comm => KeyValue::Text(comm.clone()),
            HistValue::Thread { tid, comm } => KeyValue::Thread(*tid, comm.clone()),
            HistValue::Text(text) => KeyValue::Text(text.clone()),
            HistValue::Stack(frames) => KeyValue::Stack(without_probing(frames)),
        }
    }

    fn bucket(self, (first, last): (u64, u64)) -> KeyValue {
        match self {
            Self::Signed => {
                let (first, last) = (first.cast_signed(), last.cast_signed());
                // The last range of powers of two ends beyond the largest number.
                KeyValue::SignedBucket(first, if last < first { i64::MAX } else { last })
            }
            _ => KeyValue::UnsignedBucket(first, last),
        }
    }

    /// The one row of the values that have no power of two of their own.
    fn beyond(self) -> KeyValue {
        match self {
            Self::Signed => KeyValue::SignedBucket(i64::MIN, -1),
            _ => KeyValue::UnsignedBucket((1 << 63) + 1, u64::MAX),
        }
    }
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
    let probing = |frame: &&String| {
        let function = frame.split('+').next().unwrap_or_default();
        PROBING.contains(&function) || frame.starts_with("0x")
    };
    let inner = frames.iter().take_while(probing).count();
    frames.get(inner..).filter(|rest| !rest.is_empty()).unwrap_or(frames).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(Meaning::Signed.of(&bucket), KeyValue::SignedBucket(-6, -1));
        let bucket = HistValue::Bucket(10, 19);
        assert_eq!(Meaning::Signed.of(&bucket), KeyValue::SignedBucket(10, 19));
    }

    #[test]
    fn the_largest_bucket_ends_with_the_largest_number() {
        let bucket = |meaning: Meaning| meaning.bucket(log2(63));
        assert_eq!(bucket(Meaning::Signed), KeyValue::SignedBucket((1 << 62) + 1, i64::MAX));
        assert_eq!(bucket(Meaning::Unsigned), KeyValue::UnsignedBucket((1 << 62) + 1, 1 << 63));
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
