//! The OTLP/gRPC exporter: log records, spans and metrics.
//!
//! Owns what an event becomes in OTLP, and what an answer of the receiver means. A request without
//! an answer is made again from the log. OTLP cannot recognise repeats, so each record has its
//! position in the log (`kprobed.sequence`, with `kprobed.boot_id` and `kprobed.epoch` of its
//! scope), and spans have the same ids each time. There is no queue here.
//!
//! ```text
//! chunk --logs--> requests of limited size --connection--> receiver: taken, taken in part, refused, not answered
//!       --calls--> spans
//! figures of the ledger, at an interval --metrics-->
//! ```

mod answer;
mod calls;
mod connection;
mod log_record;
mod metrics;
mod records;
mod request;
mod resource;
mod sink;
mod span;
mod value;

pub use connection::Connection;
pub use metrics::report;
pub use resource::Host;
pub use sink::{OtlpSink, Signals};
