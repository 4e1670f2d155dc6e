//! Events of many hosts from NATS JetStream, to which their daemons publish (`[export.nats]`).
//!
//! Owns the connection ([`NatsSource`]), one for all hosts, and the stream of one host
//! ([`NatsStream`]), which has the items of a connection to its daemon: the same events with the
//! same values, gaps and losses. Messages that were published twice are left out, and what the
//! stream lacks is reported as a loss.
//! [`MergedStream::from_nats`](crate::merge::MergedStream::from_nats) merges several hosts in one
//! order of time.
//!
//! ```no_run
//! use kprobed_client::event::StreamItem;
//! use kprobed_client::nats::{NatsOptions, NatsRequest, NatsSource};
//!
//! # async fn example() -> Result<(), kprobed_client::nats::NatsError> {
//! let source = NatsSource::connect(NatsOptions::new("nats://127.0.0.1:4222")).await?;
//! for host in source.hosts().await? {
//!     let mut events = source.open(&host, NatsRequest::default()).await?;
//!     while let Some(item) = events.next().await? {
//!         if let StreamItem::Batch(batch) = item {
//!             println!("{host}: {} events", batch.len());
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod source;
mod stream;

pub use source::{NatsCredentials, NatsError, NatsOptions, NatsSource};
pub use stream::{NatsRequest, NatsStart, NatsStream, ProbePredicate};
