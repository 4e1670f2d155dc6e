//! Encoder of batch messages: columns become one `StreamEventsResponse`.
//!
//! Owns the order of its fields, and which rows of a column are sent: one if all are equal. Stored
//! messages are read with the generated code.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kprobed_event::Projected;
use kprobed_proto::v1;
use prost::Message as _;

use super::pool::MessagePool;
use super::protobuf::Writer;
use crate::decode::{Column, Columns, FieldSchema, Packed};
use kprobed_host::kernel::ClockMapping;

/// Name and process of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: i32,
    /// Its name; empty if it is unknown.
    pub comm: Arc<[u8]>,
    /// Id of its process; 0 if it is unknown.
    pub tgid: i32,
}

/// The name of a kernel address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The address.
    pub address: u64,
    /// `SYMBOL+0xOFFSET/0xSIZE`.
    pub text: Arc<str>,
}

/// Fields of a batch other than its groups.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// The CPU.
    pub cpu: u32,
    /// The log position at which its entry begins.
    pub sequence: u64,
    /// How many events that entry has.
    pub log_events: u32,
    /// Clock mapping at the time of reading.
    pub clock: ClockMapping,
    /// Tasks that occur.
    pub tasks: &'a [Task],
    /// Names of addresses that occur.
    pub symbols: &'a [Symbol],
}

/// A group of a batch.
#[derive(Clone, Copy, Debug)]
pub struct GroupRows<'a> {
    /// Schema in the stream.
    pub schema_id: u32,
    /// The events.
    pub columns: &'a Columns,
    /// The rows to encode, by their indices, ascending. `None`: all.
    pub rows: Option<&'a [u32]>,
    /// The fields to encode.
    pub projected: &'a Projected,
}

/// Fields of the messages, as in `event.proto` and `event_service.proto`.
mod field {
    pub(super) const RESPONSE_BATCH: u32 = 3;
    pub(super) const BATCH_CPU: u32 = 1;
    pub(super) const BATCH_SEQUENCE: u32 = 2;
    pub(super) const BATCH_LOG_EVENTS: u32 = 3;
    pub(super) const BATCH_GROUPS: u32 = 4;
    pub(super) const BATCH_TASKS: u32 = 5;
    pub(super) const BATCH_SYMBOLS: u32 = 6;
    pub(super) const BATCH_CLOCK: u32 = 7;
    pub(super) const GROUP_SCHEMA_ID: u32 = 1;
    pub(super) const GROUP_ROWS: u32 = 2;
    pub(super) const GROUP_BASE_NS: u32 = 3;
    pub(super) const GROUP_OFFSETS_NS: u32 = 4;
    pub(super) const GROUP_TIDS: u32 = 5;
    pub(super) const GROUP_FLAGS: u32 = 6;
    pub(super) const GROUP_PREEMPT_COUNTS: u32 = 7;
    pub(super) const GROUP_IPS: u32 = 8;
    pub(super) const GROUP_RETURN_IPS: u32 = 9;
    pub(super) const GROUP_COLUMNS: u32 = 10;
    pub(super) const COLUMN_VALUES: u32 = 1;
    pub(super) const COLUMN_OFFSETS: u32 = 2;
    pub(super) const COLUMN_DATA: u32 = 3;
    pub(super) const COLUMN_FAULTS: u32 = 4;
    pub(super) const TASK_TID: u32 = 1;
    pub(super) const TASK_COMM: u32 = 2;
    pub(super) const TASK_TGID: u32 = 3;
    pub(super) const SYMBOL_ADDRESS: u32 = 1;
    pub(super) const SYMBOL_TEXT: u32 = 2;
    pub(super) const CLOCK_WALL_OFFSET: u32 = 1;
    pub(super) const CLOCK_ERROR_BOUND: u32 = 2;
    pub(super) const CLOCK_SAMPLED_AT: u32 = 3;
}

/// The message, ready to be sent. Groups without rows are left out.
pub fn encode(envelope: &Envelope<'_>, groups: &[GroupRows<'_>], pool: &MessagePool) -> Bytes {
    let columns_bytes = groups.iter().map(bytes_about);
    let names_bytes = envelope.tasks.len().saturating_add(envelope.symbols.len()).saturating_mul(64);
    let bytes = columns_bytes.fold(names_bytes.saturating_add(256), usize::saturating_add);
    pool.message(bytes, |buffer| write(envelope, groups, buffer))
}

/// Reads a message that [`encode`] wrote, of which [`Columns::from_message`] reads the groups. `None` if it is not a
/// batch.
pub fn read_batch(message: &[u8]) -> Option<v1::EventBatch> {
    match v1::StreamEventsResponse::decode(message).ok()?.message? {
        v1::stream_events_response::Message::Batch(batch) => Some(batch),
        _ => None,
    }
}

/// The most bytes that a group takes, unless most of its bytes are in a few of its rows.
fn bytes_about(group: &GroupRows<'_>) -> usize {
    let bytes = group.columns.bytes();
    match group.rows {
        None => bytes,
        Some(rows) => {
            let each = bytes.checked_div(group.columns.len()).unwrap_or(0).saturating_add(1);
            each.saturating_mul(rows.len())
        }
    }
}

fn write(envelope: &Envelope<'_>, groups: &[GroupRows<'_>], buffer: &mut BytesMut) {
    let mut out = Writer(buffer);
    let batch = out.begin(field::RESPONSE_BATCH);
    out.varint(field::BATCH_CPU, envelope.cpu.into());
    out.varint(field::BATCH_SEQUENCE, envelope.sequence);
    out.varint(field::BATCH_LOG_EVENTS, envelope.log_events.into());
    for group in groups {
        encode_group(&mut out, group);
    }
    for task in envelope.tasks {
        let message = out.begin(field::BATCH_TASKS);
        out.varint(field::TASK_TID, i64::from(task.tid).cast_unsigned());
        out.bytes(field::TASK_COMM, &task.comm);
        out.varint(field::TASK_TGID, i64::from(task.tgid).cast_unsigned());
        out.end(message);
    }
    for symbol in envelope.symbols {
        let message = out.begin(field::BATCH_SYMBOLS);
        out.fixed64(field::SYMBOL_ADDRESS, symbol.address);
        out.bytes(field::SYMBOL_TEXT, symbol.text.as_bytes());
        out.end(message);
    }
    let clock = out.begin(field::BATCH_CLOCK);
    out.zigzag(field::CLOCK_WALL_OFFSET, envelope.clock.wall_offset_ns);
    out.varint(field::CLOCK_ERROR_BOUND, envelope.clock.error_bound_ns);
    out.varint(field::CLOCK_SAMPLED_AT, envelope.clock.sampled_at_ns);
    out.end(clock);
    out.end(batch);
}

fn encode_group(out: &mut Writer<'_>, group: &GroupRows<'_>) {
    let GroupRows { schema_id, columns, rows, projected } = *group;
    let count = rows.map_or(columns.len(), <[u32]>::len);
    if count == 0 {
        return;
    }
    let message = out.begin(field::BATCH_GROUPS);
    out.varint(field::GROUP_SCHEMA_ID, schema_id.into());
    out.varint(field::GROUP_ROWS, count as u64);
    let first = rows.and_then(<[u32]>::first).map_or(0, |row| *row as usize);
    let base_ns = columns.timestamps_ns.get(first).copied().unwrap_or_default();
    out.fixed64(field::GROUP_BASE_NS, base_ns);
    let offset = |time: &u64| u32::try_from(time.saturating_sub(base_ns)).unwrap_or(u32::MAX);
    let (room, _) = out.room(field::GROUP_OFFSETS_NS, count.saturating_mul(4)).as_chunks_mut::<4>();
    match rows {
        None => {
            for (room, time) in room.iter_mut().zip(&columns.timestamps_ns) {
                *room = offset(time).to_le_bytes();
            }
        }
        Some(rows) => {
            for (room, row) in room.iter_mut().zip(rows) {
                if let Some(time) = columns.timestamps_ns.get(*row as usize) {
                    *room = offset(time).to_le_bytes();
                }
            }
        }
    }
    if projected.tid {
        encode_packed(out, field::GROUP_TIDS, &columns.tids, rows);
    }
    if projected.context {
        encode_packed(out, field::GROUP_FLAGS, &columns.flags, rows);
        encode_packed(out, field::GROUP_PREEMPT_COUNTS, &columns.preempt_counts, rows);
    }
    if projected.location {
        encode_packed(out, field::GROUP_IPS, &columns.ips, rows);
        encode_packed(out, field::GROUP_RETURN_IPS, &columns.return_ips, rows);
    }
    for index in &projected.fields {
        let (Some(column), Some(schema)) = (columns.fields.get(*index), columns.schema().fields.get(*index))
        else {
            continue;
        };
        let message = out.begin(field::GROUP_COLUMNS);
        encode_column(out, column, schema, rows);
        out.end(message);
    }
    out.end(message);
}

/// Values of the selected rows; those of one row if all are equal, and nothing if there are none.
fn encode_packed(out: &mut Writer<'_>, field: u32, values: &Packed, rows: Option<&[u32]>) {
    match (values.once(), rows) {
        (Some(values), _) => out.bytes(field, values),
        (None, None) => out.bytes(field, values.held()),
        (None, Some(_)) if values.is_empty() => {}
        (None, Some(rows)) => {
            let row_bytes = values.row(0).map_or(0, <[u8]>::len);
            let room = out.room(field, rows.len().saturating_mul(row_bytes));
            for (room, row) in room.chunks_exact_mut(row_bytes.max(1)).zip(rows) {
                if let Some(values) = values.row(*row as usize) {
                    room.copy_from_slice(values);
                }
            }
        }
    }
}

fn encode_column(out: &mut Writer<'_>, column: &Column, schema: &FieldSchema, rows: Option<&[u32]>) {
    encode_packed(out, field::COLUMN_VALUES, &column.values, rows);
    match rows {
        None => {
            out.bytes(field::COLUMN_OFFSETS, &column.offsets);
            out.bytes(field::COLUMN_DATA, &column.bytes);
            out.bytes(field::COLUMN_FAULTS, &column.faults);
        }
        Some(rows) => {
            let per_row = schema.values_per_row();
            if schema.kind.is_text() {
                encode_texts(out, column, per_row, rows);
            }
            encode_faults(out, column, per_row, rows);
        }
    }
}

/// The indices of the values of some rows.
fn values_of(rows: &[u32], per_row: usize) -> impl Iterator<Item = usize> {
    rows.iter().flat_map(move |row| {
        let first = (*row as usize).saturating_mul(per_row);
        first..first.saturating_add(per_row)
    })
}

fn encode_texts(out: &mut Writer<'_>, column: &Column, per_row: usize, rows: &[u32]) {
    let text = |index: usize| column.text(index).unwrap_or_default();
    let count = rows.len().saturating_mul(per_row);
    let (room, _) =
        out.room(field::COLUMN_OFFSETS, count.saturating_add(1).saturating_mul(4)).as_chunks_mut::<4>();
    let mut end = 0_usize;
    for (room, index) in room.iter_mut().skip(1).zip(values_of(rows, per_row)) {
        end = end.saturating_add(text(index).len());
        *room = u32::try_from(end).unwrap_or(u32::MAX).to_le_bytes();
    }
    if end == 0 {
        return;
    }
    let mut room = out.room(field::COLUMN_DATA, end);
    for index in values_of(rows, per_row) {
        let text = text(index);
        let Some((place, rest)) = room.split_at_mut_checked(text.len()) else { return };
        place.copy_from_slice(text);
        room = rest;
    }
}

fn encode_faults(out: &mut Writer<'_>, column: &Column, per_row: usize, rows: &[u32]) {
    if !values_of(rows, per_row).any(|index| column.is_fault(index)) {
        return;
    }
    let count = rows.len().saturating_mul(per_row);
    let room = out.room(field::COLUMN_FAULTS, count.div_ceil(8));
    for (place, index) in values_of(rows, per_row).enumerate() {
        if column.is_fault(index)
            && let Some(byte) = room.get_mut(place / 8)
        {
            *byte |= 1 << (place % 8);
        }
    }
}
