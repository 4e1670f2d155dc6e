//! Events of many hosts from a stream of NATS JetStream, to which their daemons publish (`[export.nats]`): one connection for all of them.
//!
//! Owns the connection ([`NatsSource`]) and the stream of one host ([`NatsStream`]), which has the items that a connection to its daemon would
//! have: the same events with the same values, gaps and losses. What was published twice is left out, and what the stream does not have is
//! told as a loss. [`NatsSource::watch`] tells the states of the probes of all hosts, and [`NatsSource::profiles`] how often they were hit. [`MergedStream::from_nats`](crate::merge::MergedStream::from_nats) puts several hosts in one order of time.
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

mod filter;
mod profiles;
mod source;
mod states;
mod stream;

pub use filter::{NatsFilter, NatsFilterError};
pub use profiles::HostProfile;
pub use source::{NatsCredentials, NatsError, NatsOptions, NatsSource};
pub use states::{HostWatched, NatsWatch, NatsWatchRequest};
pub use stream::{NatsRequest, NatsStart, NatsStream};
