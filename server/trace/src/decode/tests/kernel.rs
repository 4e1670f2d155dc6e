//! Model of how the kernel stores arguments, and the test that decoding gives the values that it
//! stored.
//!
//! The model follows kernel/trace/trace_probe_tmpl.h as of 6.6 (store_trace_args,
//! process_fetch_insn_bottom) on memory of which the test decides what can be read. The record
//! begins as stale bytes, as the ring buffer does.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

/// Outcome of fetching a string.
#[derive(Clone, Debug)]
enum Text {
    Read(Vec<u8>),
    /// The pointer was read, the text was not.
    Unreadable,
    /// The pointer was not read.
    Unreached,
}

/// One argument of the user. Numbers that could not be read are `None`.
#[derive(Clone, Debug)]
enum Argument {
    Numbers { bytes: usize, is_array: bool, values: Option<Vec<u64>>, guard: Text },
    String(Text),
    Symbol(Vec<u8>),
    Strings(Vec<Text>),
}

/// Data that the kernel stores for one dynamic argument.
enum Fetch<'a> {
    Strings(Vec<&'a Text>),
    Symbol(&'a [u8]),
}

impl Fetch<'_> {
    /// Room that it asks for (__get_data_size).
    fn measure(&self) -> usize {
        match self {
            Self::Symbol(text) => text.len() + 1,
            Self::Strings(texts) => {
                let lengths: Option<Vec<usize>> = texts
                    .iter()
                    .map(|text| match text {
                        Text::Read(text) => Some(text.len() + 1),
                        Text::Unreadable => Some(0),
                        Text::Unreached => None,
                    })
                    .collect();
                lengths.map_or(0, |lengths| lengths.iter().sum())
            }
        }
    }

    /// Stores the data and returns the bytes that it took.
    fn store(&self, record: &mut [u8], at: usize, data: usize, room: usize) -> usize {
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(at, &descriptor(data, room));
        match self {
            Self::Symbol(text) => {
                put(data, text);
                put(data + text.len(), &[0]);
                text.len()
            }
            Self::Strings(texts) => {
                let mut total = 0;
                for (element, text) in texts.iter().enumerate() {
                    let (at, data, room) = (at + 4 * element, data + total, room - total);
                    put(at, &descriptor(data, room));
                    let taken = match text {
                        Text::Unreached => return 0,
                        // Without room, the descriptor is not touched.
                        _ if room == 0 => 0,
                        Text::Unreadable => {
                            put(at, &descriptor(data, 0));
                            0
                        }
                        Text::Read(text) => {
                            let taken = room.min(text.len() + 1);
                            put(data, &text[..taken - 1]);
                            put(data + taken - 1, &[0]);
                            put(at, &descriptor(data, taken));
                            taken
                        }
                    };
                    total += taken;
                }
                total
            }
        }
    }
}

/// A format for the arguments and the record of one hit.
fn record(arguments: &[Argument], stale: &[u8]) -> (Format, Vec<u8>) {
    let end = Text::Read(b"k".to_vec());
    let (mut fields, mut dynamic, mut numbers, mut at) = (Vec::new(), Vec::new(), Vec::new(), 16);
    let mut field = |declaration: String, size: usize| {
        fields.push((declaration, at, size));
        at += size;
        at - size
    };
    for (number, argument) in arguments.iter().enumerate() {
        match argument {
            Argument::Numbers { bytes, is_array, values, .. } => {
                let count = values.as_ref().map_or(if *is_array { 3 } else { 1 }, Vec::len);
                let brackets = if *is_array { "[]" } else { "" };
                let at = field(format!("u{} f{number}{brackets}", bytes * 8), bytes * count);
                numbers.push((at, *bytes, values.iter().flatten()));
            }
            Argument::String(text) => {
                let at = field(format!("__data_loc char[] f{number}"), 4);
                dynamic.push((at, Fetch::Strings(vec![text])));
            }
            Argument::Symbol(text) => {
                dynamic.push((field(format!("__data_loc char[] f{number}"), 4), Fetch::Symbol(text)));
            }
            Argument::Strings(texts) => {
                let at = field(format!("__data_loc char[][{}] f{number}", texts.len()), 4 * texts.len());
                dynamic.push((at, Fetch::Strings(texts.iter().collect())));
            }
        }
    }
    for (number, argument) in arguments.iter().enumerate() {
        let Argument::Numbers { values, guard, .. } = argument else { continue };
        let reached = if values.is_none() { &Text::Unreached } else { guard };
        let at = field(format!("__data_loc char[] __kpd_g{number}"), 4);
        dynamic.push((at, Fetch::Strings(vec![reached])));
    }
    dynamic.push((field("__data_loc char[] __kpd_end".to_owned(), 4), Fetch::Strings(vec![&end])));

    let mut data = at;
    let mut room: usize = dynamic.iter().map(|(_, fetch)| fetch.measure()).sum();
    let mut record: Vec<u8> = stale.iter().copied().cycle().take((data + room).next_multiple_of(4)).collect();
    record[..16].copy_from_slice(HEAD);
    for (at, bytes, values) in numbers {
        for (index, value) in values.enumerate() {
            let at = at + index * bytes;
            record[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }
    for (at, fetch) in dynamic {
        let taken = fetch.store(&mut record, at, data, room);
        data += taken;
        room -= taken;
    }
    let fields: Vec<_> = fields.iter().map(|(text, at, size)| (text.as_str(), *at, *size)).collect();
    (format(&[PROBE, &fields].concat(), ""), record)
}

/// The values that decoding must give.
fn meant(argument: &Argument) -> Vec<Value<'_>> {
    match argument {
        Argument::Numbers { values: Some(values), bytes, .. } => {
            values.iter().map(|value| Value::Unsigned(value & (u64::MAX >> (64 - bytes * 8)))).collect()
        }
        Argument::Numbers { is_array, .. } => vec![Value::Fault; if *is_array { 3 } else { 1 }],
        Argument::String(string) => vec![meant_by(string)],
        Argument::Symbol(symbol) => vec![Value::Bytes(symbol)],
        Argument::Strings(texts) if texts.iter().any(|text| matches!(text, Text::Unreached)) => {
            vec![Value::Fault; texts.len()]
        }
        Argument::Strings(texts) => texts.iter().map(meant_by).collect(),
    }
}

fn meant_by(text: &Text) -> Value<'_> {
    match text {
        Text::Read(text) => Value::Bytes(text),
        Text::Unreadable | Text::Unreached => Value::Fault,
    }
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![
        4 => vec(1..=255_u8, 0..12).prop_map(Text::Read),
        1 => Just(Text::Unreadable),
        1 => Just(Text::Unreached),
    ]
}

fn argument() -> impl Strategy<Value = Argument> {
    let bytes = prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)];
    let guard = prop_oneof![vec(1..=255_u8, 0..5).prop_map(Text::Read), Just(Text::Unreadable)];
    prop_oneof![
        3 => (bytes, any::<bool>(), option::of(vec(any::<u64>(), 3)), guard).prop_map(
            |(bytes, is_array, mut values, guard)| {
                if let (false, Some(values)) = (is_array, &mut values) {
                    values.truncate(1);
                }
                Argument::Numbers { bytes, is_array, values, guard }
            }
        ),
        3 => text().prop_map(Argument::String),
        1 => "[a-z_]{1,9}\\+0x[0-9]".prop_map(|symbol| Argument::Symbol(symbol.into_bytes())),
        2 => vec(text(), 1..5).prop_map(Argument::Strings),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_the_kernel_meant_is_decoded(arguments in vec(argument(), 0..8), stale in vec(any::<u8>(), 1..40)) {
        let (format, record) = record(&arguments, &stale);
        let plan = plan(&format);
        let mut columns = plan.columns();
        // More rows than one, so that offsets and bitmaps do not begin at zero.
        for row in 0..3 {
            prop_assert_eq!(plan.decode(&record, row, &mut columns), Ok(()));
        }
        prop_assert_eq!(columns.fields.len(), arguments.len());
        for (argument, column) in arguments.iter().zip(&columns.fields) {
            let expected = meant(argument);
            for row in 0..3 {
                let decoded: Vec<_> = (0..expected.len()).filter_map(|element| column.value(row, element)).collect();
                prop_assert_eq!(&decoded, &expected);
                prop_assert_eq!(column.value(row, expected.len()), None);
            }
            prop_assert_eq!(column.faults.is_empty(), !expected.contains(&Value::Fault));
        }
    }
}
