//! Exporters: events and metrics for Prometheus, OTLP, NATS and files of JSON Lines.
//!
//! Owns the exporters of `[export.*]`: what each sends, in which form, and the account of it. An
//! exporter is a cursor into the log of events: it advances when the receiver has acknowledged what
//! was sent, and stays during an outage. A failing exporter never delays the readers, the clients
//! or another exporter. Never validates the configuration, and never decides what is recorded.
//!
//! ```text
//! feed (history, present) --items--> pump --chunks--> sink (file, pipe, socket)
//! sink --acknowledged--> account, cursor in the database
//! ```

mod account;
mod checks;
mod exporter;
pub mod jsonl;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod nats;
mod open;
pub mod otlp;
pub mod prometheus;
mod pump;
mod read;
mod sink;
mod status;
#[cfg(test)]
pub(crate) mod tests;

pub use checks::{check, filter_check};
pub use exporter::{Exporter, Policy};
pub use open::{ExportParts, filters, open, serve};
pub use pump::Chunk;
pub(crate) use read::{KEPT_SCHEMAS, Reader, cursor_of, started};
pub use sink::{Sent, Sink, SinkError};
pub use status::Exporters;
