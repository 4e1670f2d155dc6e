//! Event path of the daemon: from raw pages of the ring buffer to columns, to subscribers, and to
//! the history on disk.
//!
//! ```text
//! kprobed_host::ring (pages, records) -> decode (columns)
//!     -> pipeline (log, selection, queues), wire (messages) -> feed <- history <- spool
//! ```
//!
//! Owns decoding, numbering, fan-out, the queues of subscribers, and the log. Never changes what is
//! recorded: the daemon's control thread does.

pub mod decode;
pub mod feed;
pub mod filter;
pub mod history;
pub mod pipeline;
pub mod spool;
pub mod wire;
