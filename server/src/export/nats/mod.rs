//! The NATS JetStream exporter: one message for each probe and some 256 KiB of its events.
//!
//! Owns how a part of the log is published (the form is that of [`kprobed_event::published`]), and
//! where the exporter continues: after the last part whose end is in the stream, however the
//! connection was lost. An acknowledgement of JetStream is not durable by default, so no
//! acknowledgement advances the cursor permanently. The end of a part is published when all of its
//! messages are acknowledged. A part without an end is published again, in messages with the same
//! ids if they are the same, and readers leave out what no end lists.
//!
//! States of probes and hit counts are published too, over a connection of their own and outside of
//! the account ([`StatePublisher`]). The server keeps the last state of each probe.
//!
//! ```text
//! chunk --messages--> by probe, gaps --publish, all acknowledged--> end of the part --acknowledged--> account
//! open --last message of PREFIX.HOST.ledger--> cursor in the log
//! watch of probes, hits --state_publisher--> messages by probe, and one with all names
//! ```

mod connection;
mod messages;
mod profiles;
mod sink;
mod state_publisher;

pub(super) use state_publisher::StatePublisher;

pub use connection::{Connection, ConnectionError};
pub use sink::NatsSink;
