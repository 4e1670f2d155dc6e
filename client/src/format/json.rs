//! Events as objects for programs, one a line.
//!
//! Owns the names in them, which are a promise. A value that could not be read is `null`, and its field is listed in `faults`; fields of
//! which nothing tells whether their memory could be read are listed in `unproven`; bytes that are not UTF-8 are `{"hex": "…"}`.

use super::digits::{hex_digit, push_decimal, push_padded, push_signed};
use super::value::push_address;
use crate::event::{Address, Context, Row, Value};

const DAY_SECONDS: u64 = 86_400;

/// Objects for programs, and what is remembered from one to the next.
#[derive(Clone, Debug, Default)]
pub struct JsonLines {
    /// The last second that was shown, and its text.
    second: Option<(u64, Vec<u8>)>,
}

impl JsonLines {
    /// Nothing is remembered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the object of an event, and the end of its line.
    pub fn push(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        buffer.extend_from_slice(br#"{"type":"event","time":""#);
        self.push_time(buffer, row.wall_ns());
        buffer.extend_from_slice(br#"","timestamp_ns":"#);
        push_decimal(buffer, row.timestamp_ns());
        buffer.extend_from_slice(br#","probe":"#);
        push_string(buffer, row.probe());
        buffer.extend_from_slice(br#","cpu":"#);
        push_decimal(buffer, row.cpu().into());
        buffer.extend_from_slice(br#","tid":"#);
        push_or_null(buffer, row.tid(), |buffer, tid| push_signed(buffer, tid.into()));
        buffer.extend_from_slice(br#","tgid":"#);
        push_or_null(buffer, row.tgid(), |buffer, tgid| push_signed(buffer, tgid.into()));
        buffer.extend_from_slice(br#","comm":"#);
        push_or_null(buffer, row.comm(), push_text);
        buffer.extend_from_slice(br#","context":"#);
        push_or_null(buffer, row.context(), push_context);
        buffer.extend_from_slice(br#","location":"#);
        push_or_null(buffer, row.location(), push_symbol);
        buffer.extend_from_slice(br#","return_location":"#);
        push_or_null(buffer, row.return_location(), push_symbol);
        buffer.extend_from_slice(br#","fields":{"#);
        let mut faults = false;
        for (index, (name, value)) in row.fields().enumerate() {
            if index > 0 {
                buffer.push(b',');
            }
            push_string(buffer, name);
            buffer.push(b':');
            push_value(buffer, &value);
            faults |= value.has_fault();
        }
        buffer.extend_from_slice(br#"},"faults":["#);
        if faults {
            let names = row.fields().filter(|(_, value)| value.has_fault());
            for (index, (name, _)) in names.enumerate() {
                if index > 0 {
                    buffer.push(b',');
                }
                push_string(buffer, name);
            }
        }
        buffer.extend_from_slice(br#"],"unproven":["#);
        for (index, name) in row.schema().unproven().enumerate() {
            if index > 0 {
                buffer.push(b',');
            }
            push_string(buffer, name);
        }
        buffer.extend_from_slice(b"]}\n");
    }

    /// RFC 3339 in UTC, with all nine digits.
    #[inline]
    fn push_time(&mut self, buffer: &mut Vec<u8>, wall_ns: u64) {
        let now = wall_ns / 1_000_000_000;
        match &self.second {
            Some((known, text)) if *known == now => buffer.extend_from_slice(text),
            _ => {
                let mut text = Vec::with_capacity(20);
                push_second(&mut text, now);
                buffer.extend_from_slice(&text);
                self.second = Some((now, text));
            }
        }
        push_padded::<9>(buffer, wall_ns % 1_000_000_000);
        buffer.push(b'Z');
    }
}

/// A second since 1970 as date and time, with the point behind.
fn push_second(buffer: &mut Vec<u8>, second: u64) {
    let (year, month, day) = date(second / DAY_SECONDS);
    let of_day = second % DAY_SECONDS;
    push_padded::<4>(buffer, year);
    for (before, part) in
        [(b'-', month), (b'-', day), (b'T', of_day / 3600), (b':', of_day / 60 % 60), (b':', of_day % 60)]
    {
        buffer.push(before);
        push_padded::<2>(buffer, part);
    }
    buffer.push(b'.');
}

/// Year, month and day of a number of days since 1970. Years are counted from March here, so that the leap day is the last of its year, and
/// in eras of 400 years, which all have the same number of days.
fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

#[inline]
fn push_or_null<T>(buffer: &mut Vec<u8>, value: Option<T>, push: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => push(buffer, value),
        None => buffer.extend_from_slice(b"null"),
    }
}

#[inline]
fn push_symbol(buffer: &mut Vec<u8>, address: Address<'_>) {
    if let Some(text) = address.text {
        return push_string(buffer, text);
    }
    buffer.push(b'"');
    push_address(buffer, address);
    buffer.push(b'"');
}

fn push_context(buffer: &mut Vec<u8>, context: Context) {
    let flags: [(&[u8], bool); 6] = [
        (br#"{"irqs_off":"#, context.irqs_off()),
        (br#","hardirq":"#, context.hardirq()),
        (br#","softirq":"#, context.softirq()),
        (br#","nmi":"#, context.nmi()),
        (br#","need_resched":"#, context.need_resched()),
        (br#","bh_off":"#, context.bh_off()),
    ];
    for (name, flag) in flags {
        buffer.extend_from_slice(name);
        buffer.extend_from_slice(if flag { b"true" } else { b"false" });
    }
    buffer.extend_from_slice(br#","preempt_depth":"#);
    push_decimal(buffer, context.preempt_depth().into());
    buffer.extend_from_slice(br#","migrate_disable_depth":"#);
    push_decimal(buffer, context.migrate_disable_depth().into());
    buffer.push(b'}');
}

#[inline]
fn push_value(buffer: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Unsigned { value, .. } => push_decimal(buffer, *value),
        Value::Signed { value, .. } => push_signed(buffer, *value),
        Value::Char(byte) => push_text(buffer, &[*byte]),
        Value::Symbol(address) => push_symbol(buffer, *address),
        Value::Bytes(bytes) => push_text(buffer, bytes),
        Value::List(list) => {
            buffer.push(b'[');
            for (index, value) in list.iter().enumerate() {
                if index > 0 {
                    buffer.push(b',');
                }
                push_value(buffer, &value);
            }
            buffer.push(b']');
        }
        Value::Fault => buffer.extend_from_slice(b"null"),
    }
}

/// Bytes that should be text.
#[inline]
fn push_text(buffer: &mut Vec<u8>, bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return push_string(buffer, text);
    }
    buffer.extend_from_slice(br#"{"hex":""#);
    for byte in bytes {
        buffer.extend_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
    }
    buffer.extend_from_slice(br#""}"#);
}

#[inline]
fn push_string(buffer: &mut Vec<u8>, text: &str) {
    buffer.push(b'"');
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        buffer.extend_from_slice(text.as_bytes());
    } else {
        for byte in text.bytes() {
            push_escaped_byte(buffer, byte);
        }
    }
    buffer.push(b'"');
}

fn push_escaped_byte(buffer: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        0..b' ' => {
            buffer.extend_from_slice(br"\u00");
            buffer.extend_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
            return;
        }
        _ => {
            buffer.push(byte);
            return;
        }
    };
    buffer.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_are_escaped_as_the_library_for_json_does(text: String, controls in "[\\x00-\\x22\\\\]{0,8}") {
            for text in [&text, &controls] {
                let mut buffer = Vec::new();
                push_string(&mut buffer, text);
                prop_assert_eq!(buffer, serde_json::to_vec(text).unwrap());
            }
        }

        #[test]
        fn times_are_those_of_the_standard(ns in 0..i64::MAX as u64) {
            let mut buffer = Vec::new();
            JsonLines::new().push_time(&mut buffer, ns);
            let expected = prost_types::Timestamp::from(UNIX_EPOCH + Duration::from_nanos(ns));
            let text = String::from_utf8(buffer).unwrap();
            prop_assert_eq!(text.parse::<prost_types::Timestamp>().unwrap(), expected);
            prop_assert_eq!(text.len(), "2026-01-31T12:00:00.001000000Z".len());
        }
    }
}
