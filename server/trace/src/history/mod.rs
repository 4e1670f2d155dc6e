//! The history: everything that is read goes into the spool, and comes out again for those who ask
//! for what was.
//!
//! Owns the thread that writes, what the bytes of an entry of the spool are, and reading them for a
//! subscription, up to the very event with which the present goes on. Never knows of requests or
//! streams.
//!
//! ```text
//! hub --own subscription--> recorder --entries--> spool --> HistoryReader --selection of a subscriber--> deliveries
//! ```

mod counters;
mod error;
mod handle;
mod reader;
mod recorder;
mod stored;
#[cfg(test)]
mod tests;

pub use counters::HistoryCounts;
pub use error::HistoryError;
pub use handle::History;
pub use reader::{HistoryItems, HistoryReader, HistoryStart};
