//! Event history: the recorder that writes all events to the spool, and the readers that select
//! from it.
//!
//! Owns the thread that writes, the encoding of the spool's entries, and reading them for a
//! subscription up to exactly the event at which its live stream continues. Never knows of requests
//! or connections.
//!
//! ```text
//! hub --own subscription--> recorder --entries--> spool
//! spool --entries--> HistoryReader --selection of a subscriber--> deliveries
//! ```

mod handle;
mod reader;
mod recorder;
mod stored;
#[cfg(test)]
mod tests;

pub use handle::{History, HistoryCounts, HistoryError};
pub use reader::HistoryReader;

pub use crate::spool::HistoryStart;
