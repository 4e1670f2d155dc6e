//! Canned answers for calls of `do_sys_openat2`: two probes, and the events of both.

use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::*;

use super::answers::{self, numbers, texts};

/// The probe of the entries.
pub(super) const ENTRY: &str = "kprobes/opening";
/// The probe of the returns.
pub(super) const EXIT: &str = "kprobes/opened";

/// The name of the probe that a definition makes, if it is an end of these calls.
pub(super) fn named(definition: &str) -> Option<&'static str> {
    let line = definition.trim_start_matches(|c: char| c != ' ');
    let is_return = definition.starts_with("r4096 ");
    let of_entry = line.starts_with(" do_sys_openat2 filename:ustring") && definition.starts_with("p ");
    match (is_return, of_entry) {
        (true, _) => Some(EXIT),
        (_, true) => Some(ENTRY),
        _ => None,
    }
}

pub(super) fn probe(name: &str) -> Probe {
    let is_return = name == EXIT;
    let kind = if is_return { ProbeKind::Return } else { ProbeKind::Entry };
    Probe {
        name: name.to_owned(),
        kind: kind.into(),
        schema: Some(schema(is_return)),
        warnings: Vec::new(),
        ..answers::probe("kprobes/open")
    }
}

fn schema(is_return: bool) -> EventSchema {
    let (name, kind, width) =
        if is_return { ("fd", FieldType::Signed, 4) } else { ("filename", FieldType::String, 0) };
    EventSchema {
        schema_id: if is_return { 11 } else { 10 },
        probe: if is_return { EXIT } else { ENTRY }.to_owned(),
        probe_uid: if is_return { 11 } else { 10 },
        is_return,
        fields: vec![answers::field(name, kind, width, FieldBase::Decimal)],
    }
}

/// Events of one probe on a CPU: thread, microseconds, and what the column holds.
fn batch(cpu: u32, sequence: u64, is_return: bool, rows: &[(i32, u32)], column: Column) -> Message {
    let task = |tid, comm: &[u8]| Task { tid, comm: comm.to_vec(), tgid: tid };
    Message::Batch(EventBatch {
        cpu,
        sequence,
        log_events: u32::try_from(rows.len()).unwrap(),
        groups: vec![answers::group(schema(is_return).schema_id, rows, vec![column])],
        tasks: vec![task(131, b"cat"), task(132, b"ls"), task(133, b"sh")],
        ..answers::batch(sequence)
    })
}

/// A call that began before, one that fails, one within another, and one that does not return. Then a gap, over which
/// the last one cannot be followed, and a call after it.
pub(super) fn events() -> Vec<Message> {
    vec![
        Message::Schema(schema(false)),
        Message::Schema(schema(true)),
        batch(
            0,
            0,
            false,
            &[(131, 10), (132, 20), (132, 30), (133, 40)],
            texts(&[b"/etc/nothere", b"/etc/passwd", b"/etc/ld.so", b"/dev/tty"]),
        ),
        // The thread has moved to another CPU.
        batch(1, 4, true, &[(133, 5), (131, 22), (132, 35), (132, 2_045)], numbers(&[9, -2, 4, 3])),
        Message::Watermark(Watermark { watermark_ns: 5_000_000, late_events: 0 }),
        Message::Loss(Loss { cpu: Some(0), count: Some(12), before_ns: 6_000_000, ..answers::loss() }),
        batch(0, 20, false, &[(131, 5_000)], texts(&[b"/etc/hosts"])),
        batch(0, 21, true, &[(131, 5_001)], numbers(&[3])),
        Message::Watermark(Watermark { watermark_ns: 10_000_000, late_events: 0 }),
    ]
}
