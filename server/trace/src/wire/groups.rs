//! Groups of an encoded batch: where they are in its bytes, and the batch without some of them.
//!
//! Owns taking a message apart without reading its columns, for a reader that wants to know whose events it has, or to
//! leave some out. Trusts no byte of it. Never decodes a group: `read` does.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::field;
use super::protobuf::{Writer, fields};

/// A group of an encoded batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlace {
    /// Its schema.
    pub schema_id: u32,
    /// How many events it has.
    pub events: u64,
    /// Where it is in the message, with its key and length.
    pub bytes: Range<usize>,
}

/// The batch in a message that has nothing else.
fn batch_of(message: &[u8]) -> Option<Range<usize>> {
    let mut all = fields(message, 0..message.len());
    let batch = all.next()??;
    (batch.number == field::RESPONSE_BATCH && all.next().is_none()).then_some(batch.content)
}

/// The groups of a message that [`encode`](super::encode) wrote, in their order. `None` if the bytes are not such a
/// message.
pub fn groups_of(message: &[u8]) -> Option<Vec<GroupPlace>> {
    let mut groups = Vec::new();
    for found in fields(message, batch_of(message)?) {
        let found = found?;
        if found.number != field::BATCH_GROUPS {
            continue;
        }
        let mut group = GroupPlace { schema_id: 0, events: 0, bytes: found.whole };
        // Both come first.
        for part in fields(message, found.content).take(2) {
            let part = part?;
            match part.number {
                field::GROUP_SCHEMA_ID => group.schema_id = u32::try_from(part.varint).ok()?,
                field::GROUP_ROWS => group.events = part.varint,
                _ => {}
            }
        }
        groups.push(group);
    }
    Some(groups)
}

/// A message that [`encode`](super::encode) wrote, without the groups of which `is_left_out` says
/// so. Its place in the log is the same. `None` if the bytes are not such a message.
pub fn without_groups(message: &[u8], is_left_out: impl Fn(&GroupPlace) -> bool) -> Option<Bytes> {
    let batch = batch_of(message)?;
    let mut buffer = BytesMut::with_capacity(message.len());
    let mut out = Writer(&mut buffer);
    let nested = out.begin(field::RESPONSE_BATCH);
    let mut from = batch.start;
    for group in groups_of(message)?.iter().filter(|group| is_left_out(group)) {
        out.0.extend_from_slice(message.get(from..group.bytes.start)?);
        from = group.bytes.end;
    }
    out.0.extend_from_slice(message.get(from..batch.end)?);
    out.end(nested);
    Some(buffer.freeze())
}
