//! Decoder of stored batch messages: a message becomes columns again.
//!
//! Owns the checks of a message that was read from disk. Never trusts a length or a number of rows
//! in it.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use kprobed_proto::v1;
use prost::Message as _;

use crate::decode::{ColumnParts, Columns, ColumnsParts, FieldKind, FieldSchema, Schema};

/// Memory that one column may take in a message that has the values of all rows as one row. No
/// reader makes a batch that is nearly as large, but a stored message can claim any number of rows.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// Why bytes are not a batch.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// They are not a message, or not a batch.
    #[error("it is not a batch message")]
    NoBatch,
    /// They are not valid protobuf.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    /// A group does not fit its schema.
    #[error("a group of schema {0} does not fit it")]
    Group(u32),
}

/// Reads a message that [`encode`](super::encode) wrote.
///
/// # Errors
/// [`ReadError::Decode`], [`ReadError::NoBatch`].
pub fn read_batch(message: &[u8]) -> Result<v1::EventBatch, ReadError> {
    match v1::StreamEventsResponse::decode(message)?.message {
        Some(v1::stream_events_response::Message::Batch(batch)) => Ok(batch),
        _ => Err(ReadError::NoBatch),
    }
}

/// The columns of a group whose schema is known.
///
/// # Errors
/// [`ReadError::Group`].
pub fn read_group(group: v1::EventGroup, schema: &Arc<Schema>) -> Result<Columns, ReadError> {
    let id = group.schema_id;
    let mut group = group;
    let rows = group.rows as usize;
    let fits = schema
        .fields
        .iter()
        .zip(&mut group.columns)
        .all(|(field, column)| has_only(field.kind, column) && spread(field, column, rows).is_some());
    let parts = if fits { parts(group) } else { None };
    parts.and_then(|parts| Columns::from_parts(Arc::clone(schema), parts)).ok_or(ReadError::Group(id))
}

/// Whether a column has no part that belongs to columns of another kind.
fn has_only(kind: FieldKind, column: &v1::Column) -> bool {
    match kind {
        FieldKind::String | FieldKind::SymbolName => column.values.is_empty(),
        _ => column.offsets.is_empty() && column.data.is_empty(),
    }
}

/// Gives every row the values of a column that has one row for all. `None` if they do not fit into
/// the memory that a group may take.
fn spread(field: &FieldSchema, column: &mut v1::Column, rows: usize) -> Option<()> {
    let row_bytes = (field.array_len.unwrap_or(1) as usize).checked_mul(field.kind.value_bytes())?;
    if rows > 1 && row_bytes > 0 && column.values.len() == row_bytes {
        row_bytes.checked_mul(rows).filter(|bytes| *bytes <= GROUP_BYTES_MAX)?;
        column.values = column.values.repeat(rows).into();
    }
    Some(())
}

fn parts(group: v1::EventGroup) -> Option<ColumnsParts> {
    let rows = group.rows as usize;
    if group.offsets_ns.len() != rows.checked_mul(4)? {
        return None;
    }
    let offsets = numbers(&group.offsets_ns, rows, u32::from_le_bytes)?;
    Some(ColumnsParts {
        timestamps_ns: offsets.iter().map(|offset| group.base_ns.wrapping_add((*offset).into())).collect(),
        tids: numbers(&group.tids, rows, i32::from_le_bytes)?,
        flags: numbers(&group.flags, rows, u8::from_le_bytes)?,
        preempt_counts: numbers(&group.preempt_counts, rows, u8::from_le_bytes)?,
        ips: numbers(&group.ips, rows, u64::from_le_bytes)?,
        return_ips: numbers(&group.return_ips, rows, u64::from_le_bytes)?,
        fields: group
            .columns
            .into_iter()
            .map(|column| ColumnParts {
                values: column.values.into(),
                offsets: column.offsets.into(),
                bytes: column.data.into(),
                faults: column.faults.into(),
            })
            .collect(),
    })
}

/// Packed numbers of all rows; a single one is the value of all of them.
fn numbers<T: Clone, const N: usize>(bytes: &[u8], rows: usize, of: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let (values, rest) = bytes.as_chunks::<N>();
    match values {
        _ if !rest.is_empty() => None,
        [] => Some(Vec::new()),
        // A message can claim any number of rows; the caller has checked that each of them has a
        // time.
        [only] => Some(vec![of(*only); rows]),
        values if values.len() == rows => Some(values.iter().map(|value| of(*value)).collect()),
        _ => None,
    }
}
