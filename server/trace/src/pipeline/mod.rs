//! Events from the kernel's ring buffers to subscribers.
//!
//! Owns the reader threads, the batches they make, the numbering of the log, what each subscriber selects, their queues, and the counters of
//! the ledger. Never waits for a subscriber: a reader that is behind leaves events in the kernel's buffer, which counts what it then loses,
//! and a queue that is full does what its subscriber chose, and counts that.
//!
//! ```text
//! trace_pipe_raw --read--> page --records--> decode --columns--> draft --> hub --message--> queue of each subscriber
//! ```
//!
//! Readers can go from one instance to another without losing or doubling an event: while both record, what is read is `held`, and a `cut` says
//! which event is taken from where.

mod batch;
mod binder;
mod collector;
mod counters;
mod cpu;
mod cut;
mod demand;
mod held;
mod hub;
mod loss;
mod names;
mod pace;
mod queue;
mod reader;
mod readers;
mod replay;
#[doc(hidden)]
pub mod samples;
mod seen;
mod selection;
mod source;
mod subscriber;
#[cfg(test)]
mod tests;
mod turn;
mod view;
mod waiting;

pub use batch::{Draft, Group};
pub use binder::Binder;
pub use counters::{BufferCounts, ProbeCounts, Span};
pub use demand::BufferDemand;
pub use held::Wanted;
pub use hub::{Hub, SubscriberCounts};
pub use loss::{Loss, LossCause, PauseReason, RecordingPause};
pub use names::{AddressNames, TaskNames};
pub use queue::{Delivery, Item, QueueCounts};
pub use reader::WATERMARK_SLACK;
pub use readers::{ReaderContext, Readers, ReadersError};
pub use replay::{Begin, Replay, Replayed, Since};
pub use source::{EventSource, Origin, SourceTable};
pub use subscriber::{End, Subscription};
pub use view::{Order, Overflow, Pace, QueueLimits, View};
