//! Stored form of history entries: the payloads of batches, losses and schemas.
//!
//! Owns their encoding: a batch is stored in the form of the wire, a loss as its message, and a
//! schema together with the facts of its probe that a selection needs. Another version of the
//! daemon may have written a payload, or it may be damaged in a way that no checksum shows, so that
//! decoding checks everything. Never reads or writes a file.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kprobed_proto::v1;
use prost::Message;

use super::left_out::LeftOut;
use crate::pipeline::{ColumnBatch, Delivery, Group, Loss, LossCause, Origin};
use crate::spool::{EntryKind, SpoolEntry};
use crate::wire::{
    Symbol, Task, loss_from_message, read_batch, read_group, schema_from_message, schema_message,
};
use kprobed_host::kernel::ClockMapping;
use kprobed_lang::model::{Labels, ProbeName, ProbeUid};

/// A schema, and the facts of its probe that a selection needs.
#[derive(Clone, PartialEq, Message)]
struct StoredOrigin {
    #[prost(message, optional, tag = "1")]
    schema: Option<v1::EventSchema>,
    /// `common_type`.
    #[prost(uint32, tag = "2")]
    type_id: u32,
    /// The labels at the time at which the event was stored.
    #[prost(btree_map = "string, string", tag = "3")]
    labels: std::collections::BTreeMap<String, String>,
    /// The account of who made the probe; empty for none.
    #[prost(string, tag = "4")]
    account: String,
}

pub(super) fn schema_entry(origin: &Origin, labels: &Labels, sequence: u64) -> SpoolEntry {
    let maker = origin.maker();
    let stored = StoredOrigin {
        schema: Some(schema_message(origin.schema_id, &origin.name, origin.uid, &origin.schema, None)),
        type_id: origin.type_id.into(),
        labels: labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        account: maker.map(|maker| maker.account().to_string()).unwrap_or_default(),
    };
    SpoolEntry {
        kind: EntryKind::Schema,
        sequence,
        events: 0,
        first_ns: 0,
        last_ns: 0,
        wall_offset_ns: 0,
        key: origin.schema_id,
        payload: stored.encode_to_vec().into(),
    }
}

/// The account of who made the probe of a stored origin. `None` if there is none, or if the bytes are not an origin.
pub(super) fn account(payload: &[u8]) -> Option<String> {
    StoredOrigin::decode(payload).ok().map(|stored| stored.account).filter(|account| !account.is_empty())
}

/// Decodes an origin. `None` if the bytes are not an origin.
pub(super) fn origin(payload: &[u8]) -> Option<Origin> {
    let stored = StoredOrigin::decode(payload).ok()?;
    let message = stored.schema?;
    let schema = schema_from_message(&message).ok()?;
    let name: ProbeName = message.probe.parse().ok()?;
    let type_id = u16::try_from(stored.type_id).ok()?;
    let origin = Origin::new(message.schema_id, ProbeUid(message.probe_uid), name, type_id, Arc::new(schema));
    origin.set_labels(Labels::new(stored.labels).ok()?);
    Some(origin)
}

/// A loss, as it is stored.
#[derive(Clone, PartialEq, Message)]
struct StoredLoss {
    #[prost(message, optional, tag = "1")]
    loss: Option<v1::Loss>,
    /// Whose events were left out. None for a loss of anything else, and if they are of too many.
    #[prost(message, repeated, tag = "2")]
    left_out: Vec<StoredLeftOut>,
}

/// Events of one schema that were left out.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct StoredLeftOut {
    #[prost(uint32, tag = "1")]
    schema_id: u32,
    #[prost(uint64, tag = "2")]
    events: u64,
}

/// The entry of a batch, of which only the last `events` of its places in the log are stored, with
/// this message. `None` if the batch has more events than an entry can count, which no reader
/// makes.
pub(super) fn events_entry(delivery: &Delivery, events: u64, message: Bytes) -> Option<SpoolEntry> {
    Some(SpoolEntry {
        kind: EntryKind::Events,
        sequence: delivery.sequence.saturating_add(delivery.log_events.saturating_sub(events)),
        events: u32::try_from(events).ok()?,
        first_ns: delivery.span.first_ns,
        last_ns: delivery.span.last_ns,
        wall_offset_ns: delivery.wall_offset_ns,
        key: delivery.cpu,
        payload: message,
    })
}

/// The columns of a stored batch. `None` if the bytes are not a batch, or name unknown schemas.
pub(super) fn batch(payload: &Bytes, origins: &HashMap<u32, Arc<Origin>>) -> Option<ColumnBatch> {
    let message = read_batch(payload).ok()?;
    let mut groups = Vec::with_capacity(message.groups.len());
    for group in message.groups {
        let origin = Arc::clone(origins.get(&group.schema_id)?);
        let columns = read_group(group, &origin.schema).ok()?;
        groups.push(Group { origin, columns });
    }
    let clock = message.clock.unwrap_or_default();
    let mut tasks: Vec<_> = message
        .tasks
        .into_iter()
        .map(|task| Task { tid: task.tid, comm: task.comm.into(), tgid: task.tgid })
        .collect();
    tasks.sort_by_key(|task| task.tid);
    let symbol = |symbol: v1::Symbol| Symbol { address: symbol.address, text: symbol.text.into() };
    Some(ColumnBatch {
        cpu: message.cpu,
        groups,
        tasks,
        symbols: message.symbols.into_iter().map(symbol).collect(),
        clock: ClockMapping {
            wall_offset_ns: clock.wall_offset_ns,
            error_bound_ns: clock.error_bound_ns,
            sampled_at_ns: clock.sampled_at_ns,
        },
    })
}

pub(super) fn loss_entry(loss: &Loss, sequence: u64, wall_offset_ns: i64, now_ns: u64) -> SpoolEntry {
    let at_ns = if loss.before_ns == 0 { now_ns } else { loss.before_ns };
    SpoolEntry {
        kind: EntryKind::Loss,
        sequence,
        events: 0,
        first_ns: at_ns,
        last_ns: at_ns,
        wall_offset_ns,
        key: loss.cpu.unwrap_or(u32::MAX),
        payload: StoredLoss { loss: Some(loss.into()), left_out: Vec::new() }.encode_to_vec().into(),
    }
}

/// The entry that stands for events that were left out. `None` if an entry cannot count as many.
pub(super) fn left_out_entry(left_out: &LeftOut) -> Option<SpoolEntry> {
    let loss = Loss::anywhere(LossCause::HistoryLimit, Some(left_out.events));
    let parts = left_out
        .by_schema
        .iter()
        .map(|(schema_id, events)| StoredLeftOut { schema_id: *schema_id, events: *events });
    let stored = StoredLoss { loss: Some((&loss).into()), left_out: parts.collect() };
    Some(SpoolEntry {
        kind: EntryKind::Loss,
        sequence: left_out.sequence,
        events: u32::try_from(left_out.events).ok()?,
        first_ns: left_out.span.first_ns,
        last_ns: left_out.span.last_ns,
        wall_offset_ns: left_out.wall_offset_ns,
        key: u32::MAX,
        payload: stored.encode_to_vec().into(),
    })
}

/// Decodes a loss. Of events that were left out, those count whose schema is `wanted`, as far as it
/// is known whose they are: `None` if that is none of them, and if the bytes are not a loss.
pub(super) fn loss(payload: &[u8], wanted: impl Fn(u32) -> bool) -> Option<Loss> {
    let StoredLoss { loss, left_out } = StoredLoss::decode(payload).ok()?;
    let loss = loss_from_message(&loss?)?;
    if left_out.is_empty() {
        return Some(loss);
    }
    let wanted = left_out.iter().filter(|part| wanted(part.schema_id));
    let count = wanted.map(|part| part.events).fold(0, u64::saturating_add);
    (count > 0).then_some(Loss { count: Some(count), ..loss })
}
