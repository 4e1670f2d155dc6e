//! Events from the kernel's ring buffers to subscribers.
//!
//! Owns the reader threads, the batches they make, the queues of the subscribers and the counters of the ledger. Never waits for a
//! subscriber: a reader that is behind leaves events in the kernel's buffer, which counts what it then loses, and a queue that is full
//! drops its oldest batch and counts that.
//!
//! ```text
//! trace_pipe_raw --read--> page --records--> decode --columns--> batch --> hub --> queue of each subscriber
//! ```

mod batch;
mod counters;
mod hub;
mod names;
mod reader;
mod source;
mod subscriber;
#[cfg(test)]
mod tests;
mod turn;

pub use batch::{Batch, Group, Loss, LossCause};
pub use counters::{BufferCounts, ProbeCounts};
pub use hub::{Hub, SubscriberCounts};
pub use names::{AddressNames, TaskNames};
pub use reader::{ReaderContext, Readers, ReadersError};
pub use source::{EventSource, SourceTable};
pub use subscriber::{Item, Subscription};
