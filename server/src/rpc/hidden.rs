//! Answers without kernel addresses, for clients that may not see them.
//!
//! Owns which parts of code and of aggregations are left out or replaced. Events are replaced where they
//! are selected. Never decides who may see addresses: [`kprobed_rights`] does.

use kprobed_proto::v1;
use kprobed_proto::v1::key_value::Value;
use kprobed_trace::pipeline::{hidden, hidden_in};

/// Instructions: their bytes contain addresses, and go.
pub(super) fn code(instructions: &mut [v1::CodeInstruction]) {
    for one in instructions {
        one.code.clear();
        one.text = hidden_in(&one.text);
    }
}

/// The same in the answer to a check.
pub(super) fn listing(instructions: &mut [v1::Instruction]) {
    for one in instructions {
        one.code.clear();
        one.text = hidden_in(&one.text);
    }
}

/// Rows of an aggregation: values that can be addresses, and names that are addresses.
pub(super) fn rows(rows: &mut [v1::AggregationRow]) {
    for row in rows {
        for v1::KeyValue { value, shown } in &mut row.keys {
            let Some(value) = value else { continue };
            let before = value.clone();
            key(value);
            if *value != before {
                *shown = None;
            }
        }
        for value in row.sums.iter_mut().filter_map(|sum| sum.value.as_mut()) {
            match value {
                v1::sum_value::Value::Unsigned(sum) => *sum = hidden(*sum),
                v1::sum_value::Value::Signed(sum) => *sum = hidden_signed(*sum),
            }
        }
    }
}

fn key(value: &mut Value) {
    match value {
        Value::Unsigned(number) => *number = hidden(*number),
        Value::Signed(number) => *number = hidden_signed(*number),
        Value::UnsignedBucket(bucket) if hidden(bucket.first) != bucket.first => {
            bucket.first = hidden(bucket.first);
            bucket.last = bucket.first;
        }
        Value::SignedBucket(bucket) if hidden_signed(bucket.first) != bucket.first => {
            bucket.first = hidden_signed(bucket.first);
            bucket.last = bucket.first;
        }
        Value::Symbol(name) => *name = bare(name),
        Value::Stack(stack) => {
            for frame in &mut stack.frames {
                *frame = bare(frame);
            }
        }
        Value::Text(_) | Value::UnsignedBucket(_) | Value::SignedBucket(_) | Value::Thread(_) => {}
    }
}

/// The same for a number that is shown with a sign.
fn hidden_signed(number: i64) -> i64 {
    hidden(number.cast_unsigned()).cast_signed()
}

/// What stands for a name that is an address. The kernel writes it with `0x` or without.
fn bare(name: &str) -> String {
    match u64::from_str_radix(name, 16) {
        Ok(address) if name.len() == 16 => format!("{:#x}", hidden(address)),
        _ => hidden_in(name),
    }
}

#[cfg(test)]
mod tests {
    use kprobed_proto::v1::sum_value::Value as Sum;

    use super::*;

    #[test]
    fn keys_that_are_addresses_are_hidden() {
        let address = 0xffff_ffff_8123_4567_u64;
        let signed = address.cast_signed();
        let sum = |value| v1::SumValue { value: Some(value) };
        let key = |value| v1::KeyValue { value: Some(value), ..Default::default() };
        let frames = vec!["vfs_read+0x10/0x80".to_owned(), format!("{address:#x}"), format!("{address:x}")];
        let mut row = [v1::AggregationRow {
            keys: vec![
                key(Value::Unsigned(address)),
                key(Value::Unsigned(4096)),
                key(Value::Symbol("vfs_read".to_owned())),
                key(Value::Stack(v1::StackKey { frames, incomplete: false })),
                key(Value::UnsignedBucket(v1::UnsignedBucket { first: address, last: address + 15 })),
                key(Value::Signed(signed)),
                key(Value::Signed(-4095)),
                key(Value::SignedBucket(v1::SignedBucket { first: signed, last: signed + 15 })),
            ],
            count: 1,
            sums: vec![sum(Sum::Unsigned(address)), sum(Sum::Signed(signed))],
        }];
        row[0].keys[0].shown = Some("18446744071581942127".to_owned());
        row[0].keys[1].shown = Some("16".to_owned());
        rows(&mut row);
        assert_eq!(row[0].keys[0].shown, None);
        assert_eq!(row[0].keys[1].shown.take().as_deref(), Some("16"));
        let shown = hidden(address);
        let text = format!("{shown:#x}");
        let frames = vec!["vfs_read+0x10/0x80".to_owned(), text.clone(), text];
        assert_eq!(
            row[0].keys,
            [
                key(Value::Unsigned(shown)),
                key(Value::Unsigned(4096)),
                key(Value::Symbol("vfs_read".to_owned())),
                key(Value::Stack(v1::StackKey { frames, incomplete: false })),
                key(Value::UnsignedBucket(v1::UnsignedBucket { first: shown, last: shown })),
                key(Value::Signed(shown.cast_signed())),
                key(Value::Signed(-4095)),
                key(Value::SignedBucket(v1::SignedBucket {
                    first: shown.cast_signed(),
                    last: shown.cast_signed()
                })),
            ]
        );
        assert_eq!(row[0].sums, [sum(Sum::Unsigned(shown)), sum(Sum::Signed(shown.cast_signed()))]);
    }

    #[test]
    fn code_has_no_bytes() {
        let (code, text) = (vec![0x90], "mov $0xffffffff8240d5c0,%rdi".to_owned());
        let mut shown = [v1::CodeInstruction { code, text, ..Default::default() }];
        super::code(&mut shown);
        assert!(shown[0].code.is_empty() && !shown[0].text.contains("ffffffff8"), "{shown:?}");
    }
}
