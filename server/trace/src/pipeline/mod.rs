//! Event pipeline: from the kernel's ring buffers to the queues of subscribers.
//!
//! Owns the reader threads, the batches they make, the numbering of the log, what each subscriber
//! selects, their queues, and the counters of the ledger. Never waits for a subscriber: a reader
//! that is late leaves events in the kernel's buffer, which counts what it then loses, and a full
//! queue applies the policy that its subscriber chose, and counts what it drops.
//!
//! ```text
//! ring --page--> decoding --columns--> hub --message--> sequencer --> queue of each subscriber
//! ```
//!
//! Readers can switch from one trace instance to another without losing or doubling an event: see
//! `handover`.

mod activity;
mod collector;
mod commands;
mod counters;
mod cpu;
mod decoding;
mod demand;
mod encodings;
mod handover;
mod hidden;
mod hub;
mod item;
mod known;
mod names;
mod pace;
mod queue;
mod reader;
mod readers;
mod replay;
mod ring;
#[doc(hidden)]
pub mod samples;
mod selection;
mod sequencer;
mod source;
mod stacks;
mod subscriber;
#[cfg(test)]
mod tests;
mod view;

pub use activity::Activity;
pub use commands::{ReaderEnded, ReaderPulse};
pub use counters::{BufferCounts, ProbeCounts, Span};
pub use demand::BufferDemand;
pub use handover::HandoverWindow;
pub use hidden::{hidden, hidden_in};
pub use hub::{Hub, SubscriberCounts};
pub use item::{Delivery, Draft, Group, Item};
pub use kprobed_event::LossCause;
pub use names::{AddressNames, TaskNames};
pub use pace::Pace;
pub use queue::QueueCounts;
pub use reader::WATERMARK_SLACK;
pub use readers::{ReaderContext, Readers, ReadersError};
pub use replay::{Replay, ReplayStart, Since};
pub use selection::Binder;
pub use source::{EventSource, Origin, SourceTable};
pub use subscriber::{End, Subscription};
pub use view::{Order, Overflow, Permits, QueueLimits, View};

pub use crate::wire::Loss;
