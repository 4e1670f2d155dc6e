//! Typed async client of kprobed.
//!
//! Owns the way from a program to the daemon: its address ([`Target`]), the connection
//! ([`Client`]), errors ([`Error`]), and events as rows and columns ([`event`]) and as bytes
//! ([`event::format`](mod@event::format)). It never repeats a decision of the daemon, and it never
//! prints.
//!
//! ```no_run
//! use kprobed_client::event::{StreamItem, StreamRequest};
//! use kprobed_client::{Client, ConnectOptions, Target};
//!
//! # async fn example() -> Result<(), kprobed_client::Error> {
//! let client = Client::connect(Target::default(), ConnectOptions::default()).await?;
//! let mut events = client.stream_events(StreamRequest::new().probe("kprobes/*")).await?;
//! while let Some(item) = events.next().await? {
//!     if let StreamItem::Batch(batch) = item {
//!         for row in batch.rows() {
//!             for (name, value) in row.fields() {
//!                 println!("{} {name}={value}", row.probe());
//!             }
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod aggregation;
mod audit;
mod builder;
mod calls;
mod changes;
mod client;
mod connect;
mod error;
pub mod event;
pub mod fleet;
pub mod merge;
#[cfg(feature = "nats")]
pub mod nats;
mod pages;
mod target;
mod watch;

pub use aggregation::{AggregationStream, add_marks, add_snapshots};
pub use audit::AuditStream;
pub use builder::{FetchArg, PartError, ProbeBuilder};
pub use changes::{Outcomes, PlannedChanges};
pub use client::{CheckStream, Client, Hold};
pub use connect::{ConnectOptions, Identity, TlsOptions};
pub use error::{ConnectError, Error, RpcError};
pub use pages::HitRates;
pub use target::{DEFAULT_SOCKET, Target, TargetError};
pub use watch::{ProbeWatch, WatchItem};

/// A field of a request that cannot be accepted, and why.
pub use tonic_types::FieldViolation;

/// The messages of the API, as generated from its protos.
pub use kprobed_proto::v1 as api;
