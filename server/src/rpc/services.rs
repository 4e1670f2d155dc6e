//! The services of `kprobed.v1`: the parts of the daemon that they use, and the routes to them.
//!
//! Owns which services there are. Never answers a call.

use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::FILE_DESCRIPTOR_SET;
use kprobed_proto::v1::access_service_server::AccessServiceServer;
use kprobed_proto::v1::aggregation_service_server::AggregationServiceServer;
use kprobed_proto::v1::audit_service_server::AuditServiceServer;
use kprobed_proto::v1::host_service_server::HostServiceServer;
use kprobed_proto::v1::kernel_service_server::KernelServiceServer;
use kprobed_proto::v1::lease_service_server::LeaseServiceServer;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_proto::v1::reconcile_service_server::ReconcileServiceServer;
use tonic::Request;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use super::access::{self, Access};
use super::audit::AuditServer;
use super::events::EventServer;
use super::frames::EventRoutes;
use super::host::HostInfo;
use super::leases::LeaseServer;
use crate::auth::LiveTls;
use crate::doctor::Doctor;
use crate::export::Exporters;
use crate::health::{Declarations, LabelsFile, Reloads, Storage};
use kprobed_control::error::Error;
use kprobed_control::{ControlHandle, Costs, Foreign, Holds, ProbeStates, Sight};
use kprobed_trace::pipeline::{Hub, View};
use kprobed_verdict::checker::Checker;

/// What the services use, apart from that of events.
#[derive(Debug)]
pub struct Services {
    /// Carries out changes.
    pub control: ControlHandle,
    /// Who may see what, and the probes in memory.
    pub access: Access,
    /// Reads the states of the probes.
    pub states: ProbeStates,
    /// Judges definitions, and knows the kernel.
    pub checker: Arc<Checker>,
    /// What a hit takes.
    pub costs: Arc<Costs>,
    /// Finds events of others.
    pub foreign: Foreign,
    /// All holds.
    pub holds: Arc<Holds>,
    /// Time after which a client that does not answer counts as gone.
    pub vanished_after: Duration,
    /// Constants.
    pub info: HostInfo,
    /// Checks the host.
    pub doctor: Doctor,
    /// The database, and checks of it and of the disks.
    pub storage: Storage,
    /// The state of the files that declare probes.
    pub declarations: Arc<Declarations>,
    /// Reloads of the configuration.
    pub reloads: Arc<Reloads>,
    /// The exporters.
    pub exporters: Exporters,
    /// Their filters.
    pub export_filters: Vec<(&'static str, View)>,
    /// Knows what a filter means.
    pub hub: Arc<Hub>,
    /// The certificates for clients.
    pub tls: Option<Arc<LiveTls>>,
    /// The labels of the host.
    pub labels: Arc<LabelsFile>,
}

impl Services {
    /// What the caller of a request may look at.
    pub(super) fn sight<T>(&self, request: &Request<T>) -> Result<Sight, Error> {
        Ok(Sight::new(&self.access.rights, access::caller(request)?))
    }
}

/// The routes to all services, and what says whether the daemon serves.
///
/// # Errors
/// When the descriptions of the services cannot be read.
pub fn routes(
    services: Services,
    events: EventServer,
) -> Result<(Routes, HealthReporter), tonic_reflection::server::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let audit = AuditServer { store: services.storage.store.clone() };
    let leases = LeaseServer { holds: Arc::clone(&services.holds), vanished_after: services.vanished_after };
    let services = Arc::new(services);
    let routes = Routes::new(ProbeServiceServer::from_arc(Arc::clone(&services)))
        .add_service(AccessServiceServer::from_arc(Arc::clone(&services)))
        .add_service(KernelServiceServer::from_arc(Arc::clone(&services)))
        .add_service(ReconcileServiceServer::from_arc(Arc::clone(&services)))
        .add_service(AggregationServiceServer::from_arc(Arc::clone(&services)))
        .add_service(HostServiceServer::from_arc(services))
        .add_service(AuditServiceServer::new(audit))
        .add_service(LeaseServiceServer::new(leases))
        .add_service(EventRoutes::new(events))
        .add_service(health_service)
        .add_service(reflection);
    Ok((routes.prepare(), health))
}
