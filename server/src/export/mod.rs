//! Events and figures on their way into the systems that people already run.
//!
//! Owns the exporters of `[export.*]`: what each sends where, in which form, and the account of it. An exporter is a cursor into the log of
//! events: it reads on when the other side has taken what it was sent, and a break is a cursor that does not move. Whatever happens to one of
//! them, the readers, the clients and the other exporters notice nothing. Never judges the configuration, and never decides what is recorded.
//!
//! ```text
//! feed (history, present) --items--> pump --chunks--> sink (file, pipe, socket) --acknowledged--> account, place in the database
//! ```

mod account;
mod backoff;
mod checks;
mod chunk;
mod exporter;
pub mod figures;
pub mod jsonl;
#[cfg(feature = "nats")]
pub mod nats;
mod open;
pub mod otlp;
pub mod prometheus;
mod pump;
mod read;
mod sink;
mod status;
mod taken;
#[cfg(test)]
pub(crate) mod tests;

pub use account::{Account, Terms};
pub use checks::check;
pub use chunk::{Chunk, ChunkItem};
pub use exporter::{Exporter, Policy};
pub use open::{ExportParts, OpenError, open, serve};
pub use sink::{Sent, Sink, SinkError};
pub use status::{Beside, ExporterStatus, Exporters, Phase};
