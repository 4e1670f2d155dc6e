//! Audit log: its entries as text, and the chain of digests over them.
//!
//! Owns what the daemon writes and what an auditor verifies, so that both sides compute the same.
//! Never stores an entry, and never decides what is worth one.

mod chain;
mod record;

pub use chain::{BadDigest, Broken, Chain, Digest, Head};
pub use record::{Action, Entry, Record, Unreadable};
