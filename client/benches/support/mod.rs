//! A message of events as the daemon sends it, for benchmarks.

use bytes::Bytes;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::{
    ClockMapping, Column, EventBatch, EventField, EventGroup, EventSchema, FieldBase, FieldType,
    StreamEventsResponse, Symbol, Task,
};
use kprobed_client::event::Batch;
use prost::Message as _;

/// What 64 KiB of the kernel's pages hold of events of 52 bytes.
pub(crate) const EVENTS: usize = 1_260;

/// Names and numbers of the tasks.
const TASKS: usize = 8;

/// An encoded message of `EVENTS` events of one CPU with four arguments of 64 bits each, and the
/// schemas it refers to.
///
/// The arguments are what `vfs_read` has: two pointers, a size, and a position. Probes take turns
/// event by event, which is the hardest for whoever merges them.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) schemas: Vec<EventSchema>,
    pub(crate) message: Bytes,
}

impl Sample {
    pub(crate) fn new(probes: usize, cpu: u32) -> Self {
        let groups = (0..probes).map(|probe| group(probe, probes)).collect();
        let tasks = (0..TASKS).map(|task| Task {
            tid: tid(task),
            comm: format!("kworker/{task}:1").into_bytes(),
            tgid: tid(task),
        });
        let batch = EventBatch {
            cpu,
            sequence: 7_000_000,
            log_events: u32::try_from(EVENTS).unwrap(),
            groups,
            tasks: tasks.collect(),
            symbols: (0..probes)
                .map(|probe| Symbol { address: address(probe), text: format!("vfs_read{probe}+0x0/0x2b0") })
                .collect(),
            clock: Some(ClockMapping {
                wall_offset_ns: 1_769_860_800_000_000_000,
                error_bound_ns: 100,
                sampled_at_ns: 5_000_000_000_000,
            }),
        };
        let message = StreamEventsResponse { message: Some(Message::Batch(batch)) };
        Self { schemas: (0..probes).map(schema).collect(), message: message.encode_to_vec().into() }
    }

    /// From bytes to a checked batch, as the stream does it; the schemas are read too, which a
    /// stream does only once.
    pub(crate) fn decode(&self) -> Batch {
        let message = StreamEventsResponse::decode(self.message.clone()).unwrap().message;
        let Some(Message::Batch(batch)) = message else { panic!("no batch") };
        Batch::from_parts(self.schemas.clone(), batch).unwrap()
    }
}

fn schema(probe: usize) -> EventSchema {
    let field = |name: &str, base: FieldBase| EventField {
        name: name.to_owned(),
        r#type: FieldType::Unsigned.into(),
        fault_detected: true,
        width: 8,
        base: base.into(),
        ..Default::default()
    };
    EventSchema {
        schema_id: id(probe),
        probe: format!("kprobes/read{probe}"),
        probe_uid: 1,
        is_return: false,
        fields: vec![
            field("file", FieldBase::Hex),
            field("buf", FieldBase::Hex),
            field("count", FieldBase::Decimal),
            field("pos", FieldBase::Decimal),
        ],
    }
}

fn group(probe: usize, probes: usize) -> EventGroup {
    let events: Vec<usize> = (probe..EVENTS).step_by(probes).collect();
    let values = |value: fn(u64) -> u64| Column {
        values: events.iter().flat_map(|event| value(*event as u64).to_le_bytes()).collect(),
        ..Default::default()
    };
    EventGroup {
        schema_id: id(probe),
        rows: u32::try_from(events.len()).unwrap(),
        base_ns: 5_000_000_000_000,
        offsets_ns: events
            .iter()
            .flat_map(|event| u32::try_from(*event * 730).unwrap().to_le_bytes())
            .collect(),
        tids: events.iter().flat_map(|event| tid(event / 16 % TASKS).to_le_bytes()).collect(),
        flags: Bytes::from_static(&[0]),
        preempt_counts: Bytes::from_static(&[1]),
        ips: Bytes::copy_from_slice(&address(probe).to_le_bytes()),
        return_ips: Bytes::new(),
        columns: vec![
            values(|event| 0xffff_8881_0234_5600 + event % 64 * 256),
            values(|event| 0x7ffd_3a61_9000 + event * 16),
            values(|event| 4096 + event % 3 * 61),
            values(|event| event * 131_072),
        ],
    }
}

fn id(probe: usize) -> u32 {
    u32::try_from(probe).unwrap() + 1
}

fn tid(task: usize) -> i32 {
    i32::try_from(1_300 + task * 17).unwrap()
}

fn address(probe: usize) -> u64 {
    0xffff_ffff_8130_0000 + 0x1000 * probe as u64
}
