//! Events and figures over OTLP/gRPC: log records, spans and metrics.
//!
//! Owns what an event becomes there, and what an answer of the receiver means. A request that was not answered is made again from the log:
//! OTLP has no way to tell repeats apart, so each record says where it is in the log (`kprobed.sequence`, with `kprobed.boot_id` and
//! `kprobed.epoch` of its scope), and spans have the same ids each time. Nothing waits here in a queue of its own.
//!
//! ```text
//! chunk --logs--> requests of limited size --connection--> receiver: taken, taken in part, refused, not answered
//!       --pairs--> spans
//! figures of the ledger, now and then --metrics-->
//! ```

mod answer;
mod attribute;
mod connection;
mod log_record;
mod metrics;
mod pairs;
mod protobuf;
mod records;
mod request;
mod resource;
mod sink;
mod span;
mod value;

pub use connection::{Connection, ConnectionError};
pub use metrics::report;
pub use resource::Host;
pub use sink::{OtlpSink, Signals};
