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
mod kept;
mod kernel;
mod labels;
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

pub use access::Access;
pub use events::EventServer;
pub use frames::EventRoutes;
pub use host::HostInfo;
pub use kept::KeptBytes;
pub use leases::ConnectionId;
pub use services::{Services, routes};
