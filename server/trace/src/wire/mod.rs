//! Wire form of events: decoded columns as one serialised `kprobed.v1.StreamEventsResponse`, for
//! streams and for the history.
//!
//! Owns the layout of a batch message. It is written by hand, straight from the columns, once for
//! all subscribers that want the same columns; the generated code would build, measure and copy a
//! message of its own for each of them. The generated reader reads it back ([`read_batch`]), and
//! tests hold the two together. Never decides which subscriber gets which events.

mod batch;
mod loss;
mod pool;
mod protobuf;
mod schema;
#[cfg(test)]
mod tests;

pub use kprobed_event::{COMMON_FIELDS, Projected, Projection};

pub use batch::{Envelope, GroupRows, Symbol, Task, encode, read_batch};
pub use loss::{Loss, loss_from_message};
pub use pool::MessagePool;
pub use schema::schema_message;
