//! gRPC services of the daemon.
//!
//! Owns conversion between the wire and the domain. Never decides anything.

mod access;
mod access_service;
mod aggregations;
mod audit;
pub(crate) mod changes;
mod checks;
mod events;
mod frames;
mod hidden;
mod hits;
mod host;
mod kernel;
mod leases;
mod ledger;
mod meaning;
pub(crate) mod messages;
mod metadata;
mod probes;
mod reconcile;
mod rows;
mod selected;
mod services;
pub(crate) mod spec;
mod start;
pub(crate) mod verdict;
mod view;
mod watch;

pub use access::{Access, ConnectionId, KeptBytes};
pub use events::EventServer;
pub use frames::EventRoutes;
pub use host::HostInfo;
pub use services::{Services, routes};
