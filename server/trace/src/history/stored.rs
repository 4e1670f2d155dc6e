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

use crate::decode::{Columns, FieldKind, Schema};
use crate::pipeline::{Delivery, Draft, Group, Loss, Origin};
use crate::spool::{EntryKind, SpoolEntry};
use crate::wire::{Symbol, Task, loss_from_message, read_batch, schema_message};
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
    /// The places of the fields with texts of symbols, which are plain texts in the schema.
    #[prost(uint32, repeated, tag = "4")]
    named: Vec<u32>,
}

pub(super) fn schema_entry(origin: &Origin, labels: &Labels, sequence: u64) -> SpoolEntry {
    let named = (0..).zip(&origin.schema.fields).filter(|(_, field)| field.names_addresses());
    let stored = StoredOrigin {
        schema: Some(schema_message(origin.schema_id, &origin.name, origin.uid, &origin.schema, None)),
        type_id: origin.type_id.into(),
        labels: labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        named: named.map(|(index, _)| index).collect(),
    };
    SpoolEntry {
        kind: EntryKind::Schema,
        sequence,
        events: 0,
        first_ns: u64::try_from(origin.uid.0).unwrap_or_default(),
        last_ns: 0,
        wall_offset_ns: 0,
        key: origin.schema_id,
        payload: stored.encode_to_vec().into(),
    }
}

/// Decodes an origin. `None` if the bytes are not an origin.
pub(super) fn origin(payload: &[u8]) -> Option<Origin> {
    let stored = StoredOrigin::decode(payload).ok()?;
    let read = kprobed_event::Schema::try_from(stored.schema?).ok()?;
    let mut schema = Schema { fields: read.fields().to_vec(), is_return: read.is_return() };
    for index in stored.named {
        let field = schema.fields.get_mut(usize::try_from(index).ok()?)?;
        field.kind = Some(FieldKind::SymbolName).filter(|_| field.kind == FieldKind::String)?;
    }
    let name: ProbeName = read.probe().parse().ok()?;
    let type_id = u16::try_from(stored.type_id).ok()?;
    let origin = Origin::new(read.id(), ProbeUid(read.probe_uid()), name, type_id, Arc::new(schema));
    origin.set_labels(Labels::new(stored.labels).ok()?);
    Some(origin)
}

/// The entry of a batch. `None` if the batch has more events than an entry can count, which no
/// reader makes.
pub(super) fn events_entry(delivery: &Delivery) -> Option<SpoolEntry> {
    Some(SpoolEntry {
        kind: EntryKind::Events,
        sequence: delivery.sequence,
        events: u32::try_from(delivery.log_events).ok()?,
        first_ns: delivery.span.first_ns,
        last_ns: delivery.span.last_ns,
        wall_offset_ns: delivery.wall_offset_ns,
        key: delivery.cpu,
        payload: delivery.message.clone(),
    })
}

/// The columns of a stored batch. `None` if the bytes are not a batch, or name unknown schemas.
pub(super) fn batch(payload: &Bytes, origins: &HashMap<u32, Arc<Origin>>) -> Option<Draft> {
    let message = read_batch(payload)?;
    let mut groups = Vec::with_capacity(message.groups.len());
    for group in message.groups {
        let origin = Arc::clone(origins.get(&group.schema_id)?);
        let columns = Columns::from_message(Arc::clone(&origin.schema), group)?;
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
    Some(Draft {
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
        payload: v1::Loss::from(loss).encode_to_vec().into(),
    }
}

/// Decodes a loss. `None` if the bytes are not a loss.
pub(super) fn loss(payload: &[u8]) -> Option<Loss> {
    loss_from_message(&v1::Loss::decode(payload).ok()?)
}
