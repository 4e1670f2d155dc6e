//! JSON lines: events, gaps and positions as objects for programs, one a line.
//!
//! Owns the names in them, which are a promise. A value that could not be read is `null`, and its
//! field is listed in `faults`; fields whose faults the daemon cannot detect are listed in
//! `unproven`; what people write for a number is in `names`, if there is any; bytes that are not UTF-8 are
//! `{"hex": "…"}`; a call stack is an array of texts. An integer beyond 2^53 is a text of its
//! decimal digits: many readers of JSON take every number for a double, which would change it.

use prost_types::Timestamp;

use super::digits::{hex_digit, push_decimal, push_padded, push_signed};
use super::value::{push_address, push_name};
use super::{Call, Origin};
use crate::{Address, Context, Cursor, FieldSchema, Loss, Notation, Row, Value, cause_name, reason_name};

/// All integers up to this one are exact as doubles.
pub const EXACT: u64 = 1 << 53;

/// Writer of JSON lines, with its state from one line to the next.
#[derive(Clone, Debug, Default)]
pub struct JsonLines {
    /// The last second that was shown, and its text.
    second: Option<(u64, Vec<u8>)>,
    /// `"host":"NAME",`, or nothing.
    host: Vec<u8>,
    /// What people write for the numbers of one event.
    names: Vec<u8>,
}

/// Account of a part of the lines of a host: read = events + `not_selected` + `expired`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Log positions that the part covers.
    pub read: u64,
    /// Events in the lines since the last report.
    pub events: u64,
    /// Events that the request did not select.
    pub not_selected: u64,
    /// Events that are missing.
    pub expired: u64,
}

impl JsonLines {
    /// A writer at its first line.
    pub fn new() -> Self {
        Self::default()
    }

    /// A writer that adds the name of the host to each object.
    pub fn of_host(host: &str) -> Self {
        let mut text = br#""host":"#.to_vec();
        push_string(&mut text, host);
        text.push(b',');
        Self { host: text, ..Self::default() }
    }

    /// Appends the object of an event, and the end of its line.
    pub fn push(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        buffer.extend_from_slice(br#"{"type":"event","#);
        buffer.extend_from_slice(&self.host);
        self.push_rest(buffer, row);
    }

    /// Appends the object of an event of one of several hosts, and the end of its line.
    pub fn push_merged(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>, origin: Origin<'_>) {
        buffer.extend_from_slice(br#"{"type":"event","#);
        self.push_origin(buffer, origin);
        self.push_rest(buffer, row);
    }

    /// Appends the object of a call, and the end of its line: `fields` are those of the entry and then those of the
    /// return. `duration_ns` is `null` for a call that lacks an end, and `incomplete` for one that has both.
    pub fn push_call(
        &mut self,
        buffer: &mut Vec<u8>,
        function: &str,
        call: &Call<'_>,
        origin: Option<Origin<'_>>,
    ) {
        buffer.extend_from_slice(br#"{"type":"call","#);
        match origin {
            None => buffer.extend_from_slice(&self.host),
            Some(origin) => self.push_origin(buffer, origin),
        }
        let last = call.last();
        self.push_times(buffer, &last);
        buffer.extend_from_slice(br#","function":"#);
        push_string(buffer, function);
        push_task(buffer, &last);
        buffer.extend_from_slice(br#","duration_ns":"#);
        push_or_null(buffer, call.duration_ns(), push_unsigned);
        buffer.extend_from_slice(br#","incomplete":"#);
        push_or_null(buffer, call.incomplete(), |buffer, why| push_string(buffer, why.name()));
        match call {
            Call::Whole { entry, exit } => self.push_fields(buffer, &[*entry, *exit]),
            Call::Entry(row, _) | Call::Exit(row, _) => self.push_fields(buffer, &[*row]),
        }
    }

    fn push_origin(&mut self, buffer: &mut Vec<u8>, origin: Origin<'_>) {
        buffer.extend_from_slice(br#""host":"#);
        push_string(buffer, origin.host);
        buffer.extend_from_slice(br#","corrected_time":""#);
        self.push_time(buffer, origin.corrected_ns);
        buffer.extend_from_slice(if origin.late { br#"","late":true,"# } else { br#"","late":false,"# });
    }

    fn push_times(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        buffer.extend_from_slice(br#""time":""#);
        self.push_time(buffer, row.wall_ns());
        buffer.extend_from_slice(br#"","timestamp_ns":"#);
        push_unsigned(buffer, row.timestamp_ns());
    }

    fn push_rest(&mut self, buffer: &mut Vec<u8>, row: &Row<'_>) {
        self.push_times(buffer, row);
        buffer.extend_from_slice(br#","probe":"#);
        push_string(buffer, row.probe());
        push_task(buffer, row);
        buffer.extend_from_slice(br#","context":"#);
        push_or_null(buffer, row.context(), push_context);
        buffer.extend_from_slice(br#","location":"#);
        push_or_null(buffer, row.location(), push_symbol);
        buffer.extend_from_slice(br#","return_location":"#);
        push_or_null(buffer, row.return_location(), push_symbol);
        self.push_fields(buffer, &[*row]);
    }

    /// The fields of events, those that could not be read, and those that are unproven; and the end of the line.
    fn push_fields(&mut self, buffer: &mut Vec<u8>, rows: &[Row<'_>]) {
        buffer.extend_from_slice(br#","fields":{"#);
        let mut faults = false;
        self.names.clear();
        let fields = rows.iter().flat_map(|row| row.schema().fields().iter().zip(row.fields()));
        for (index, (field, (name, value))) in fields.enumerate() {
            if index > 0 {
                buffer.push(b',');
            }
            push_string(buffer, name);
            buffer.push(b':');
            if field.notation == Notation::Number {
                push_value(buffer, &value);
            } else {
                self.push_noted(buffer, field, &value);
            }
            faults |= value.has_fault();
        }
        buffer.extend_from_slice(br#"},"faults":["#);
        if faults {
            let all = rows.iter().flat_map(Row::fields);
            push_names(buffer, all.filter(|(_, value)| value.has_fault()).map(|(name, _)| name));
        }
        buffer.extend_from_slice(br#"],"unproven":["#);
        push_names(buffer, rows.iter().flat_map(|row| row.schema().unproven()));
        buffer.push(b']');
        if !self.names.is_empty() {
            buffer.extend_from_slice(br#","names":{"#);
            buffer.extend_from_slice(&self.names);
            buffer.push(b'}');
        }
        buffer.extend_from_slice(b"}\n");
    }

    /// Appends a value of which people write something else, and keeps that. A call stack becomes a list of its frames.
    fn push_noted(&mut self, buffer: &mut Vec<u8>, field: &FieldSchema, value: &Value<'_>) {
        let (Notation::Stack, Value::Bytes(frames)) = (&field.notation, value) else {
            push_value(buffer, value);
            return self.add_name(field, value);
        };
        for (index, frame) in frames.split(|byte| *byte == b'\n').enumerate() {
            buffer.push(if index == 0 { b'[' } else { b',' });
            push_text(buffer, frame);
        }
        buffer.push(b']');
    }

    /// Keeps what people write for a value.
    fn add_name(&mut self, field: &FieldSchema, value: &Value<'_>) {
        let before = self.names.len();
        if before > 0 {
            self.names.push(b',');
        }
        push_string(&mut self.names, &field.name);
        self.names.extend_from_slice(b":\"");
        // None of these texts needs an escape: names are identifiers of C.
        if push_name(&mut self.names, field, value) {
            self.names.push(b'"');
        } else {
            self.names.truncate(before);
        }
    }

    /// Appends the object of a gap, and the end of its line. `cpu` is `null` for any, `count` for
    /// an unknown number, `before` if no event has followed yet.
    pub fn push_loss(&mut self, buffer: &mut Vec<u8>, loss: &Loss) {
        buffer.extend_from_slice(br#"{"type":"loss","#);
        buffer.extend_from_slice(&self.host);
        buffer.extend_from_slice(br#""cause":""#);
        buffer.extend_from_slice(cause_name(loss.cause).as_bytes());
        buffer.extend_from_slice(br#"","cpu":"#);
        push_or_null(buffer, loss.cpu, |buffer, cpu| push_decimal(buffer, cpu.into()));
        buffer.extend_from_slice(br#","count":"#);
        push_or_null(buffer, loss.count, push_unsigned);
        buffer.extend_from_slice(br#","before":"#);
        push_or_null(buffer, loss.before_wall_ns, |buffer, wall_ns| {
            buffer.push(b'"');
            self.push_time(buffer, wall_ns);
            buffer.push(b'"');
        });
        buffer.extend_from_slice(br#","before_ns":"#);
        push_or_null(buffer, loss.before_ns, push_unsigned);
        buffer.extend_from_slice(br#","gaps":"#);
        push_unsigned(buffer, loss.gaps);
        if let Some(pause) = loss.pause {
            buffer.extend_from_slice(br#","pause":{"reason":""#);
            buffer.extend_from_slice(reason_name(pause.reason).as_bytes());
            buffer.extend_from_slice(br#"","duration_ns":"#);
            push_unsigned(buffer, u64::try_from(pause.duration.as_nanos()).unwrap_or(u64::MAX));
            buffer.extend_from_slice(br#","hits":"#);
            push_or_null(buffer, pause.hits, push_unsigned);
            buffer.push(b'}');
        }
        buffer.extend_from_slice(b"}\n");
    }

    /// Appends the object of another run of the daemon, and the end of its line: from the end of the run before until
    /// its start no daemon was there to record. With `may_miss`, an unknown number of events of that run may be missing
    /// too.
    pub fn push_epoch(&self, buffer: &mut Vec<u8>, cursor: &Cursor, may_miss: bool) {
        buffer.extend_from_slice(br#"{"type":"epoch","#);
        buffer.extend_from_slice(&self.host);
        push_cursor(buffer, cursor);
        buffer.extend_from_slice(br#","may_miss":"#);
        buffer.extend_from_slice(if may_miss { b"true" } else { b"false" });
        buffer.extend_from_slice(br#","start_time":""#);
        push_second(buffer, cursor.epoch / 1_000_000_000);
        push_padded::<9>(buffer, cursor.epoch % 1_000_000_000);
        buffer.extend_from_slice(b"Z\"}\n");
    }

    /// Appends the object behind the history, and the end of its line.
    pub fn push_caught_up(&self, buffer: &mut Vec<u8>, cursor: &Cursor) {
        buffer.extend_from_slice(br#"{"type":"caught_up","#);
        buffer.extend_from_slice(&self.host);
        push_cursor(buffer, cursor);
        buffer.extend_from_slice(b"}\n");
    }

    /// Appends the object with the log position that the lines before it reach, and the end of its
    /// line.
    pub fn push_progress(&self, buffer: &mut Vec<u8>, cursor: &Cursor, progress: Progress) {
        buffer.extend_from_slice(br#"{"type":"progress","#);
        buffer.extend_from_slice(&self.host);
        push_cursor(buffer, cursor);
        let Progress { read, events, not_selected, expired } = progress;
        for (name, value) in
            [("read", read), ("events", events), ("not_selected", not_selected), ("expired", expired)]
        {
            buffer.extend_from_slice(b",\"");
            buffer.extend_from_slice(name.as_bytes());
            buffer.extend_from_slice(b"\":");
            push_unsigned(buffer, value);
        }
        buffer.extend_from_slice(b"}\n");
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

/// The CPU and the task of an event.
#[inline]
fn push_task(buffer: &mut Vec<u8>, row: &Row<'_>) {
    buffer.extend_from_slice(br#","cpu":"#);
    push_decimal(buffer, row.cpu().into());
    buffer.extend_from_slice(br#","tid":"#);
    push_or_null(buffer, row.tid(), |buffer, tid| push_signed(buffer, tid.into()));
    buffer.extend_from_slice(br#","tgid":"#);
    push_or_null(buffer, row.tgid(), |buffer, tgid| push_signed(buffer, tgid.into()));
    buffer.extend_from_slice(br#","comm":"#);
    push_or_null(buffer, row.comm(), push_text);
}

#[inline]
fn push_names(buffer: &mut Vec<u8>, names: impl Iterator<Item = impl AsRef<str>>) {
    for (index, name) in names.enumerate() {
        if index > 0 {
            buffer.push(b',');
        }
        push_string(buffer, name.as_ref());
    }
}

fn push_cursor(buffer: &mut Vec<u8>, cursor: &Cursor) {
    buffer.extend_from_slice(br#""cursor":"#);
    push_string(buffer, &cursor.to_string());
}

/// A number, or a text if it would not be exact as a double.
#[inline]
fn push_unsigned(buffer: &mut Vec<u8>, value: u64) {
    if value <= EXACT {
        return push_decimal(buffer, value);
    }
    buffer.push(b'"');
    push_decimal(buffer, value);
    buffer.push(b'"');
}

/// As [`push_unsigned`], with a sign.
#[inline]
fn push_integer(buffer: &mut Vec<u8>, value: i64) {
    if value.unsigned_abs() <= EXACT {
        return push_signed(buffer, value);
    }
    buffer.push(b'"');
    push_signed(buffer, value);
    buffer.push(b'"');
}

/// A second since 1970 as date and time, followed by the decimal point.
fn push_second(buffer: &mut Vec<u8>, second: u64) {
    let time = Timestamp { seconds: second.cast_signed(), nanos: 0 }.to_string();
    buffer.extend_from_slice(time.trim_end_matches('Z').as_bytes());
    buffer.push(b'.');
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
        Value::Unsigned { value, .. } => push_unsigned(buffer, *value),
        Value::Signed { value, .. } => push_integer(buffer, *value),
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

/// A byte string as text, or in hexadecimal if it is not UTF-8.
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
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        buffer.push(b'"');
        buffer.extend_from_slice(text.as_bytes());
        buffer.push(b'"');
    } else {
        // Writing to memory cannot fail.
        serde_json::to_writer(buffer, text).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;
    use crate::{LossCause, PauseReason, RecordingPause};

    #[test]
    fn gaps_runs_and_reports() {
        let mut lines = JsonLines::of_host("a\"b");
        let mut buffer = Vec::new();
        let loss = Loss {
            cause: LossCause::Overrun,
            cpu: Some(3),
            count: Some(1 << 60),
            before_ns: Some(5),
            before_wall_ns: Some(1_500_000_000),
            gaps: 2,
            pause: None,
        };
        lines.push_loss(&mut buffer, &loss);
        let pause =
            RecordingPause { reason: PauseReason::Deletion, duration: Duration::from_millis(2), hits: None };
        let unknown = Loss { cpu: None, count: None, before_ns: None, before_wall_ns: None, ..loss };
        lines.push_loss(&mut buffer, &Loss { cause: LossCause::Paused, pause: Some(pause), ..unknown });
        let cursor = Cursor { boot_id: "boot".to_owned(), epoch: 3, sequence: 7 };
        lines.push_epoch(&mut buffer, &cursor, true);
        let progress = Progress { read: 6, events: 3, not_selected: 2, expired: 1 };
        JsonLines::new().push_progress(&mut buffer, &cursor, progress);
        insta::assert_snapshot!(String::from_utf8(buffer).unwrap(), @r#"
        {"type":"loss","host":"a\"b","cause":"overrun","cpu":3,"count":"1152921504606846976","before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":2}
        {"type":"loss","host":"a\"b","cause":"paused","cpu":null,"count":null,"before":null,"before_ns":null,"gaps":2,"pause":{"reason":"deletion","duration_ns":2000000,"hits":null}}
        {"type":"epoch","host":"a\"b","cursor":"boot:3:7","may_miss":true,"start_time":"1970-01-01T00:00:00.000000003Z"}
        {"type":"progress","cursor":"boot:3:7","read":6,"events":3,"not_selected":2,"expired":1}
        "#);
    }

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
        fn integers_survive_readers_that_know_doubles_only(unsigned: u64, signed: i64) {
            // A reader takes a number for a double, and a text for what it says.
            let read = |buffer: Vec<u8>| -> i128 {
                match serde_json::from_slice(&buffer).unwrap() {
                    serde_json::Value::Number(number) => format!("{:.0}", number.as_f64().unwrap()).parse().unwrap(),
                    serde_json::Value::String(text) => text.parse().unwrap(),
                    other => panic!("{other}"),
                }
            };
            for unsigned in [unsigned, unsigned >> 11, EXACT, EXACT + 1] {
                let mut buffer = Vec::new();
                push_unsigned(&mut buffer, unsigned);
                prop_assert_eq!(read(buffer), i128::from(unsigned));
            }
            for signed in [signed, signed >> 11, -(1 << 53) - 1, i64::MIN] {
                let mut buffer = Vec::new();
                push_integer(&mut buffer, signed);
                prop_assert_eq!(read(buffer), i128::from(signed));
            }
        }

        #[test]
        fn times_are_those_of_the_standard(ns in 0..i64::MAX as u64) {
            let mut buffer = Vec::new();
            JsonLines::new().push_time(&mut buffer, ns);
            let expected = Timestamp::from(UNIX_EPOCH + Duration::from_nanos(ns));
            let text = String::from_utf8(buffer).unwrap();
            prop_assert_eq!(text.parse::<Timestamp>().unwrap(), expected);
            prop_assert_eq!(text.len(), "2026-01-31T12:00:00.001000000Z".len());
        }
    }
}
