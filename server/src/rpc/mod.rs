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
pub(crate) mod spec;
mod start;
pub(crate) mod verdict;
mod view;
mod watch;

pub use access::Access;
pub use access_service::AccessServer;
pub use aggregations::AggregationServer;
pub use audit::AuditServer;
pub use events::EventServer;
pub use frames::EventRoutes;
pub use host::{HostInfo, HostServer};
pub use kept::KeptBytes;
pub use kernel::KernelServer;
pub use leases::{ConnectionId, LeaseServer};
pub use probes::ProbeServer;
pub use reconcile::ReconcileServer;
