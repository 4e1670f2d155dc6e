//! Events for a stream of NATS JetStream: one message for each probe and some 256 KiB of its events.
//!
//! Owns how a part of the log is published (the form is that of [`kprobed_event::published`]), and where the exporter goes on: behind the last
//! part whose end the stream has, however it was lost. An acknowledgement of JetStream is not durable by default, so none of them
//! moves the place for good. The end of a part is published when all of its messages are acknowledged; what was published of a part without an
//! end is published again, in messages with the same ids where they are the same, and readers leave out what no end lists.
//!
//! What is no event goes beside them, over a connection of its own and in no account ([`Beside`]): states of probes, of which the server keeps the last of
//! each, and how often probes were hit.
//!
//! ```text
//! chunk --parts--> messages by probe, gaps --publish, all acknowledged--> end of the part --acknowledged--> account
//! open --last message of PREFIX.HOST.ledger--> place in the log
//! watch of probes, hits --beside--> messages by probe, and one with all names
//! ```

mod beside;
mod connection;
mod parts;
mod profiles;
mod sink;

pub(super) use beside::Beside;

pub use connection::{Connection, ConnectionError};
pub use sink::NatsSink;
