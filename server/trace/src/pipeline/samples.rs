//! Sample events without a kernel, for tests of this crate and of those that depend on it.
//!
//! Owns their form. The daemon itself never uses them.

#![expect(clippy::unwrap_used, reason = "what tests make fits")]

use std::sync::Arc;

use super::{Binder, Draft, EventSource, Group, Hub};
use crate::decode::{CompileOptions, CompiledFormat};
use kprobed_host::kernel::ClockMapping;
use kprobed_host::tracefs::format::Format;
use kprobed_lang::model::{ProbeName, ProbeUid};

const FORMAT: &str = "name: a\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx)\", REC->__probe_ip\n";

/// The same of a return probe.
const RETURN_FORMAT: &str = "name: a\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;\n\
\tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx <- %lx)\", REC->__probe_func, REC->__probe_ret_ip\n";

/// The source of a return probe's events.
pub fn return_source(event: &str, schema_id: u32) -> Arc<EventSource> {
    source_of_format(event, schema_id, &Format::parse(RETURN_FORMAT).unwrap())
}

/// The source of a probe's events, which have only the fields that all events have.
pub fn source(event: &str, schema_id: u32) -> Arc<EventSource> {
    source_of_type(event, schema_id, 7)
}
/// As [`source`], with the event's number in the kernel.
pub fn source_of_type(event: &str, schema_id: u32, type_id: u16) -> Arc<EventSource> {
    source_of_format(event, schema_id, &Format { id: type_id, ..Format::parse(FORMAT).unwrap() })
}

fn source_of_format(event: &str, schema_id: u32, format: &Format) -> Arc<EventSource> {
    let plan = CompiledFormat::compile(format, &CompileOptions::default()).unwrap();
    let name = ProbeName::new("kprobes", event).unwrap();
    Arc::new(EventSource::new(schema_id, ProbeUid(schema_id.into()), name, plan))
}

/// Events of consecutive nanoseconds, whose thread ids count from 0.
pub fn group(source: &Arc<EventSource>, rows: u64, first_ns: u64) -> Group {
    let mut columns = source.plan.columns();
    for row in 0..rows {
        let mut record = [0u8; 24];
        record[0] = 7;
        record[4..8].copy_from_slice(&u32::try_from(row).unwrap().to_le_bytes());
        source.plan.decode(&record, first_ns + row, &mut columns).unwrap();
    }
    Group { origin: Arc::clone(&source.origin), columns }
}

/// Publishes a batch of `rows` events of one probe, the first of them at `first_ns`.
pub fn publish(hub: &Hub, source: &Arc<EventSource>, cpu: u32, rows: u64, first_ns: u64) {
    let groups = vec![group(source, rows, first_ns)];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    hub.publish(&Draft { cpu, groups, tasks: vec![], symbols: vec![], clock });
}

/// Publishes a watermark: no event earlier than this time will follow.
pub fn watermark(hub: &Hub, watermark_ns: u64) {
    hub.publish_watermark(watermark_ns);
}

/// A hub without subscribers.
pub fn hub() -> Arc<Hub> {
    Arc::new(Hub::new(Binder::new("here".to_owned(), None)))
}
