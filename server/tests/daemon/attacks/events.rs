//! Events for readers that do not read.

use std::ops::Range;
use std::sync::Arc;

use kprobed_host::kernel::ClockMapping;
use kprobed_host::tracefs::format::Format;
use kprobed_lang::model::{ProbeName, ProbeUid};
use kprobed_trace::decode::{CompileOptions, CompiledFormat};
use kprobed_trace::pipeline::{Draft, EventSource, Group, Hub};
use tokio_util::sync::CancellationToken;

const FORMAT: &str = "name: values\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
\tfield:u64 large;\toffset:16;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx) large=%Lu\", REC->__probe_ip, REC->large\n";

/// Events in a batch, and batches: more than all queues of the test can hold.
const BATCH: u64 = 4000;
const BATCHES: u64 = 1500;

/// Bytes of an event, at least.
const EVENT_BYTES: u64 = 24;

/// An event of the host.
pub(crate) fn source() -> EventSource {
    let plan = CompiledFormat::compile(&Format::parse(FORMAT).unwrap(), &CompileOptions::default()).unwrap();
    let name = ProbeName::new("kprobes", "open").unwrap();
    EventSource::new(1, ProbeUid(1), name, plan)
}

/// Publishes events with these times as one batch.
pub(crate) fn publish_batch(hub: &Hub, source: &EventSource, times: Range<u64>) {
    let mut columns = source.plan.columns();
    for number in times {
        let mut record = [0_u8; 24];
        record[0] = 7;
        record[16..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        source.plan.decode(&record, number, &mut columns).unwrap();
    }
    let groups = vec![Group { origin: Arc::clone(&source.origin), columns }];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    hub.publish(&Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock });
}

/// Publishes events of an event of the host. Returns how many bytes there were.
pub(crate) async fn publish(hub: &Arc<Hub>, stop: &CancellationToken) -> u64 {
    let source = source();
    let mut published = 0;
    for batch in 0..BATCHES {
        if stop.is_cancelled() {
            break;
        }
        publish_batch(hub, &source, batch * BATCH..(batch + 1) * BATCH);
        published += BATCH * EVENT_BYTES;
        tokio::task::yield_now().await;
    }
    published
}
