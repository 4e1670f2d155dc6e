//! Tests of event lines and objects.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kprobed_client::api;
use kprobed_client::event::format::{LocationForm, Origin, TextColours};
use kprobed_client::event::{Batch, LossCause, PauseReason, RecordingPause};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::quantity::moment;

/// Nanoseconds since 1970 in RFC 3339, with all nine digits.
fn rfc3339_ns(ns: u64) -> String {
    format!("{:.9}", Timestamp::from_nanosecond(i128::from(ns)).unwrap())
}

fn le<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> bytes::Bytes {
    values.into_iter().flatten().collect()
}

fn field(name: &str, kind: api::FieldType, width: u32, array_length: u32) -> api::EventField {
    api::EventField {
        name: name.to_owned(),
        r#type: kind.into(),
        width,
        array_length,
        // Nothing proves what the flags are.
        fault_detected: name != "flags",
        ..Default::default()
    }
}

/// A return probe that sees files being opened.
fn schema() -> api::EventSchema {
    api::EventSchema {
        schema_id: 1,
        probe: "kprobes/open".to_owned(),
        is_return: true,
        fields: vec![
            api::EventField {
                notation: api::FieldNotation::Errno.into(),
                ..field("fd", api::FieldType::Signed, 4, 0)
            },
            field("flags", api::FieldType::Unsigned, 8, 0),
            field("filename", api::FieldType::String, 0, 0),
            field("pair", api::FieldType::Unsigned, 1, 2),
        ],
        ..Default::default()
    }
}

/// Every third file name is not text, and every fifth value could not be read.
fn batch(rows: u32) -> Batch {
    let names = (0..rows).map(|row| if row % 3 == 1 { &b"/tmp/\xff\x1b"[..] } else { b"/etc/ld.so.cache" });
    let mut data = Vec::new();
    let mut offsets = vec![0_u32];
    for name in names {
        data.extend_from_slice(name);
        offsets.push(u32::try_from(data.len()).unwrap());
    }
    let mut faults = vec![0_u8; rows.div_ceil(8) as usize];
    for row in (0..rows).filter(|row| row % 5 == 2) {
        faults[row as usize / 8] |= 1 << (row % 8);
    }
    let group = api::EventGroup {
        schema_id: 1,
        rows,
        base_ns: 0,
        offsets_ns: le((0..rows).map(|row| (row * 1_000_500).to_le_bytes())),
        tids: le((0..rows).map(|row| (131 + row % 2).to_le_bytes())),
        flags: vec![1; rows as usize].into(),
        preempt_counts: vec![0x10; rows as usize].into(),
        ips: le([0x1000_u64.to_le_bytes()]),
        return_ips: le((0..rows).map(|_| 0x2010_u64.to_le_bytes())),
        columns: vec![
            api::Column {
                values: le((0..rows).map(|row| (i32::try_from(row).unwrap() - 2).to_le_bytes())),
                faults: faults.into(),
                ..Default::default()
            },
            api::Column { values: le((0..rows).map(|_| u64::MAX.to_le_bytes())), ..Default::default() },
            api::Column {
                offsets: le(offsets.into_iter().map(u32::to_le_bytes)),
                data: data.into(),
                ..Default::default()
            },
            api::Column {
                values: le((0..2 * rows).map(|value| [value.to_le_bytes()[0]])),
                ..Default::default()
            },
        ],
    };
    let batch = api::EventBatch {
        cpu: 1,
        groups: vec![group],
        tasks: vec![api::Task { tid: 131, comm: b"cat".to_vec(), tgid: 130 }],
        symbols: vec![
            api::Symbol { address: 0x1000, text: "do_sys_openat2+0x0/0x170".to_owned() },
            api::Symbol { address: 0x2010, text: "do_sys_open+0x10/0x20".to_owned() },
        ],
        clock: Some(api::ClockMapping { wall_offset_ns: 1_769_860_800_123_000_000, ..Default::default() }),
        ..Default::default()
    };
    Batch::from_parts(vec![schema()], batch).unwrap()
}

fn lines(time: TimeForm, wide: bool) -> String {
    let local_time = LocalTime::in_zone(TimeZone::UTC, wide);
    let parts = TextParts { context: wide, task: true, location: LocationForm::Telling };
    let mut form = TextLines::new(local_time.time(time), parts, TextColours::default());
    let mut text = format!("{}\n", form.header()).into_bytes();
    for row in batch(3).rows() {
        form.push(&mut text, &row);
    }
    String::from_utf8(text).unwrap()
}

/// What a program reads of a line.
fn object(push: impl FnOnce(&mut JsonLines, &mut Vec<u8>)) -> Value {
    let mut line = Vec::new();
    push(&mut JsonLines::new(), &mut line);
    serde_json::from_slice(&line).unwrap()
}

#[test]
fn objects_of_several_hosts_say_whose_they_are() {
    for row in batch(20).rows() {
        let origin = Origin {
            host: "a\"b",
            corrected_ns: row.wall_ns() + 1_500_000_000,
            late: row.tid() == Some(131),
        };
        let of_one = object(|json, line| json.push(line, &row));
        let mut of_several = object(|json, line| json.push_merged(line, &row, origin));
        let keys = of_several.as_object_mut().unwrap();
        let of_origin = ["host", "corrected_time", "late"].map(|key| keys.shift_remove(key).unwrap());
        assert_eq!(of_several, of_one);
        let expected: [Value; 3] =
            [origin.host.into(), rfc3339_ns(origin.corrected_ns).into(), origin.late.into()];
        assert_eq!(of_origin, expected);
    }
}

#[test]
fn lines_for_people() {
    insta::assert_snapshot!(lines(TimeForm::Wall, false), @r#"
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    12:00:00.123000 [001] cat-131 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-2 (ENOENT) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={0,1}
    12:00:00.124000 [001] <...>-132 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-1 (EPERM) flags=18446744073709551615(?) filename="/tmp/\xff\x1b" pair={2,3}
    12:00:00.125001 [001] cat-131   kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=(fault) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={4,5}
    "#);
    insta::assert_snapshot!(lines(TimeForm::Delta, true), @r#"
    TIME [CPU] CONTEXT COMM-TID PROBE (LOCATION) FIELDS
    +0.000000 [001] d...1 cat-131 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-2 (ENOENT) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={0,1}
    +0.001000 [001] d...1 <...>-132 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-1 (EPERM) flags=18446744073709551615(?) filename="/tmp/\xff\x1b" pair={2,3}
    +0.001000 [001] d...1 cat-131   kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=(fault) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={4,5}
    "#);
    insta::assert_snapshot!(lines(TimeForm::Trace, false), @r#"
    TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS
    0.000000 [001] cat-131 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-2 (ENOENT) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={0,1}
    0.001000 [001] <...>-132 kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=-1 (EPERM) flags=18446744073709551615(?) filename="/tmp/\xff\x1b" pair={2,3}
    0.002001 [001] cat-131   kprobes/open (do_sys_open+0x10/0x20 <- do_sys_openat2+0x0/0x170) fd=(fault) flags=18446744073709551615(?) filename="/etc/ld.so.cache" pair={4,5}
    "#);
}

proptest! {
    /// Every form in which a time is printed can be given to `--since`, and begins with the event
    /// that it was printed for.
    #[test]
    fn printed_times_are_read(
        // Up to the year 2100, in a zone whose clocks go forward and back.
        now_second in 86_400_i64..4_102_444_800,
        ago_ns in 0_i64..79_200_000_000_000,
        zone in select(vec!["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0", "IST-5:30"]),
    ) {
        let zone = TimeZone::posix(zone).unwrap();
        let now = Timestamp::from_second(now_second).unwrap();
        let event_ns = u64::try_from(now.as_nanosecond() - i128::from(ago_ns)).unwrap();
        let event = Timestamp::from_nanosecond(event_ns.into()).unwrap();
        let now = now.to_zoned(zone.clone());
        let read = |text: &str| moment(text, &now).unwrap();
        prop_assert_eq!(read(&rfc3339_ns(event_ns)), event);
        for wide in [false, true] {
            let local_time = LocalTime::in_zone(zone.clone(), wide);
            let printed = |ns: u64| {
                format!("{}.{:06}", local_time.second(ns / 1_000_000_000), ns % 1_000_000_000 / 1_000)
            };
            let text = printed(event_ns);
            let time = read(&text);
            // Of an hour that clocks show twice it is the first one, and a time that they skip was
            // never printed.
            let is_twice = zone.to_ambiguous_timestamp(event.to_zoned(zone.clone()).datetime()).is_ambiguous();
            let off_ns = event.as_nanosecond() - time.as_nanosecond();
            if is_twice {
                prop_assert!((0..3_600_001_000_000).contains(&off_ns), "{} {}", text, time);
            } else {
                prop_assert!((0..1_000).contains(&off_ns), "{} {}", text, time);
            }
            let again = u64::try_from(time.as_nanosecond()).unwrap();
            prop_assert_eq!(printed(again), text);
        }
    }
}

#[test]
fn objects_for_programs() {
    let batch = batch(3);
    let rows: Vec<_> = batch.rows().collect();
    let of = |row: &Row<'_>| object(|json, line| json.push(line, row));
    insta::assert_snapshot!(serde_json::to_string_pretty(&of(&rows[2])).unwrap(), @r#"
    {
      "type": "event",
      "time": "2026-01-31T12:00:00.125001000Z",
      "timestamp_ns": 2001000,
      "probe": "kprobes/open",
      "cpu": 1,
      "tid": 131,
      "tgid": 130,
      "comm": "cat",
      "context": {
        "irqs_off": true,
        "hardirq": false,
        "softirq": false,
        "nmi": false,
        "need_resched": false,
        "bh_off": false,
        "preempt_depth": 0,
        "migrate_disable_depth": 1
      },
      "location": "do_sys_openat2+0x0/0x170",
      "return_location": "do_sys_open+0x10/0x20",
      "fields": {
        "fd": null,
        "flags": "18446744073709551615",
        "filename": "/etc/ld.so.cache",
        "pair": [
          4,
          5
        ]
      },
      "faults": [
        "fd"
      ],
      "unproven": [
        "flags"
      ]
    }
    "#);
    let second = of(&rows[1]);
    assert_eq!(second["fields"]["filename"], serde_json::json!({"hex": "2f746d702fff1b"}));
    assert_eq!(second["comm"], Value::Null, "a name that is not known");
    insta::assert_snapshot!(kprobed_document::yaml(&of(&rows[1])).unwrap(), @r#"
    type: event
    time: "2026-01-31T12:00:00.124000500Z"
    timestamp_ns: 1000500
    probe: kprobes/open
    cpu: 1
    tid: 132
    tgid: null
    comm: null
    context:
      irqs_off: true
      hardirq: false
      softirq: false
      nmi: false
      need_resched: false
      bh_off: false
      preempt_depth: 0
      migrate_disable_depth: 1
    location: do_sys_openat2+0x0/0x170
    return_location: do_sys_open+0x10/0x20
    fields:
      fd: -1
      flags: "18446744073709551615"
      filename:
        hex: 2f746d702fff1b
      pair:
      - 2
      - 3
    faults: []
    unproven:
    - flags
    names:
      fd: EPERM
    "#);
}

#[test]
fn gaps_are_told_and_counted() {
    let gap = |cause, count, gaps| Loss {
        cause,
        cpu: Some(1),
        count,
        before_ns: Some(5),
        before_wall_ns: Some(1_500_000_000),
        gaps,
        pause: None,
    };
    let expired =
        Loss { cpu: None, before_ns: None, before_wall_ns: None, ..gap(LossCause::Expired, Some(2), 1) };
    let told_before = gap(LossCause::Overrun, Some(0), 1);
    let gaps =
        [gap(LossCause::Overrun, Some(7), 1), told_before, gap(LossCause::SubscriberQueue, None, 3), expired];
    let local_time = LocalTime::in_zone(TimeZone::UTC, false);
    let mut summary = Summary::default();
    (summary.delivered, summary.shown, summary.late, summary.reconnects) = (9, 3, 1, 2);
    let mut text = String::new();
    for gap in &gaps {
        summary.lose(gap);
        text.push_str(&local_time.loss(gap));
        text.push('\n');
        let mut line = Vec::new();
        JsonLines::new().push_loss(&mut line, gap);
        text.push_str(&String::from_utf8(line).unwrap());
    }
    text.push_str(&summary.to_string());
    let one = local_time.loss(&gap(LossCause::Overrun, Some(1), 1));
    assert!(one.starts_with("1 event of CPU 1 before "), "{one}");
    insta::assert_snapshot!(text, @r#"
    7 events of CPU 1 before 00:00:01.500000: the kernel's ring buffer was full
    {"type":"loss","cause":"overrun","cpu":1,"count":7,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":1}
    already reported events of CPU 1 before 00:00:01.500000: the kernel's ring buffer was full
    {"type":"loss","cause":"overrun","cpu":1,"count":0,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":1}
    some events of CPU 1 before 00:00:01.500000 in 3 gaps: this command printed too slowly, and its queue was full
    {"type":"loss","cause":"subscriber_queue","cpu":1,"count":null,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":3}
    2 events: they are no longer in the history
    {"type":"loss","cause":"expired","cpu":null,"count":2,"before":null,"before_ns":null,"gaps":1}
    3 shown, 9 lost, 1 late, 2 reconnects
      6 more came, not shown
      7 lost: the kernel's ring buffer was full
      0 lost and 3 gaps of unknown size: this command printed too slowly, and its queue was full
      2 lost: they are no longer in the history
    "#);
}

#[test]
fn pauses_say_what_for_and_what_they_cost() {
    let pause = |reason, ms, hits| Loss {
        cause: LossCause::Paused,
        cpu: None,
        count: None,
        before_ns: Some(5),
        before_wall_ns: Some(1_500_000_000),
        gaps: 1,
        pause: Some(RecordingPause { reason, duration: Duration::from_millis(ms), hits }),
    };
    let pauses = [
        pause(PauseReason::Baseline, 8, None),
        pause(PauseReason::Deletion, 21, Some(412)),
        pause(PauseReason::Resize, 3, Some(1)),
    ];
    let local_time = LocalTime::in_zone(TimeZone::UTC, false);
    let mut summary = Summary::default();
    let mut text = String::new();
    for pause in &pauses {
        summary.lose(pause);
        text.push_str(&local_time.loss(pause));
        text.push('\n');
        let mut line = Vec::new();
        JsonLines::new().push_loss(&mut line, pause);
        text.push_str(&String::from_utf8(line).unwrap());
    }
    text.push_str(&summary.to_string());
    insta::assert_snapshot!(text, @r#"
    some events before 00:00:01.500000: the daemon paused recording for 8.0 ms to take the baseline of its ledger; the kernel did not count the hits
    {"type":"loss","cause":"paused","cpu":null,"count":null,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":1,"pause":{"reason":"baseline","duration_ns":8000000,"hits":null}}
    some events before 00:00:01.500000: the daemon paused recording for 21.0 ms to delete a probe; 412 hits were not recorded
    {"type":"loss","cause":"paused","cpu":null,"count":null,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":1,"pause":{"reason":"deletion","duration_ns":21000000,"hits":412}}
    some events before 00:00:01.500000: the daemon paused recording for 3.0 ms to enlarge the ring buffers; 1 hit was not recorded
    {"type":"loss","cause":"paused","cpu":null,"count":null,"before":"1970-01-01T00:00:01.500000000Z","before_ns":5,"gaps":1,"pause":{"reason":"resize","duration_ns":3000000,"hits":1}}
    0 shown, 0 lost
      0 lost and 3 gaps of unknown size: the daemon paused recording
    "#);
}
