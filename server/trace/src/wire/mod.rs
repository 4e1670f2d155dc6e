//! Wire form of events: decoded columns as one serialised `kprobed.v1.StreamEventsResponse`, for
//! streams and for the history.
//!
//! Owns the layout of a batch message. It is written by hand, straight from the columns, once for
//! all subscribers that want the same columns; the generated code would build, measure and copy a
//! message of its own for each of them. The generated reader reads it back ([`read_batch`]), and
//! tests hold the two together. The message of a schema is a generated one. Never decides which
//! subscriber gets which events.

mod batch;
mod loss;
mod pool;
mod protobuf;
#[cfg(test)]
mod tests;

use kprobed_event::field_message;
use kprobed_proto::v1;

use crate::decode::Schema;
use kprobed_lang::model::{ProbeName, ProbeUid};

pub use kprobed_event::{COMMON_FIELDS, Projected, Projection};

pub use batch::{Envelope, GroupRows, Symbol, Task, encode, read_batch};
pub use loss::{Loss, loss_from_message};
pub use pool::MessagePool;

/// The message of a schema, with the fields that a projection keeps. Number 0 is for schemas
/// outside of streams.
pub fn schema_message(
    schema_id: u32,
    name: &ProbeName,
    uid: ProbeUid,
    schema: &Schema,
    projected: Option<&Projected>,
) -> v1::EventSchema {
    let wanted = |index: usize| projected.is_none_or(|projected| projected.fields.contains(&index));
    v1::EventSchema {
        schema_id,
        probe: name.to_string(),
        probe_uid: uid.0,
        is_return: schema.is_return,
        fields: (0..)
            .zip(&schema.fields)
            .filter(|(index, _)| wanted(*index))
            .map(|(_, field)| field_message(field))
            .collect(),
    }
}
