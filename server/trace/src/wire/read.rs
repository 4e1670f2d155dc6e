//! Decoder of stored batch messages: a message becomes columns again.
//!
//! Owns the checks of a message that was read from disk. Never trusts a length or a number of rows
//! in it.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use kprobed_proto::v1;
use prost::Message as _;

use crate::decode::{ColumnParts, Columns, ColumnsParts, FieldKind, Schema};

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
    let fits = schema.fields.iter().zip(&group.columns).all(|(field, column)| has_only(field.kind, column));
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

fn parts(group: v1::EventGroup) -> Option<ColumnsParts> {
    let rows = group.rows as usize;
    if group.offsets_ns.len() != rows.checked_mul(4)? {
        return None;
    }
    let offsets = group.offsets_ns.as_chunks().0.iter().map(|offset| u32::from_le_bytes(*offset));
    Some(ColumnsParts {
        timestamps_ns: offsets.map(|offset| group.base_ns.wrapping_add(offset.into())).collect(),
        tids: group.tids.into(),
        flags: group.flags.into(),
        preempt_counts: group.preempt_counts.into(),
        ips: group.ips.into(),
        return_ips: group.return_ips.into(),
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
