//! The NATS JetStream exporter: one message for each probe of each batch.
//!
//! Owns how the log is published (the form is that of [`kprobed_event::published`]), and where the
//! exporter continues: after the last chunk whose end is in the stream, however the connection was
//! lost. An acknowledgement of JetStream is not durable by default, so no acknowledgement advances
//! the cursor permanently. The end of a chunk, with its account, is published when all of its
//! messages are acknowledged. A chunk without an end is published again, in messages with the same
//! ids, which the server drops as long as it knows them, and readers by their place in the log.
//!
//! ```text
//! chunk --messages--> events by probe, gaps --publish, all acknowledged--> account --acknowledged--> cursor
//! open --last message of PREFIX.HOST.ledger--> cursor in the log
//! ```

mod connection;
mod messages;
mod sink;

pub use connection::Connection;
pub use sink::NatsSink;
