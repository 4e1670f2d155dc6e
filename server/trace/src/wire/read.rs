//! Decoder of stored batch messages: a message becomes columns again.
//!
//! Owns the checks of a message that was read from disk. Never trusts a length or a number of rows
//! in it.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::Arc;

use kprobed_proto::v1;
use prost::Message as _;

use crate::decode::{Columns, Schema};

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
    Columns::from_message(Arc::clone(schema), group).ok_or(ReadError::Group(id))
}
