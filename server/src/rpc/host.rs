//! `HostService`: the host, the daemon, and the checks of `kprobectl doctor`.
//!
//! Owns which view costs what: the basics are answered from memory. Never changes anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use kprobed_proto::v1;
use kprobed_proto::v1::host_service_server::HostService;
use tonic::{Code, Request, Response, Status};

use super::messages::known;
use super::{audit, messages};
use crate::auth::LiveTls;
use crate::control::{Declarations, ProbeStates};
use crate::doctor::Doctor;
use crate::error::{self, Error, Reason};
use crate::export::{self, Exporters};
use crate::health::{LabelsFile, Storage, certificate_check, files_check, sandbox_check};
use crate::turns;
use kprobed_host::kernel::{ClockMapping, HostIdentity, TRACE_CLOCK, processor_time, trace_clock_ns};
use kprobed_host::ring::PageLayout;
use kprobed_lang::definition::Features;
use kprobed_verdict::checker::Checker;

/// Facts that do not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct HostInfo {
    /// This host.
    pub host: HostIdentity,
    /// CPUs with a ring buffer.
    pub cpus: usize,
    /// When the daemon was started.
    pub start: SystemTime,
    /// The same moment by the monotonic clock, for the uptime.
    pub started: Instant,
    /// Mount point of tracefs.
    pub tracefs: PathBuf,
}

/// The service.
#[derive(Debug)]
pub struct HostServer {
    /// Constants.
    pub info: HostInfo,
    /// Checks the host.
    pub doctor: Arc<Doctor>,
    /// Reads the states of the probes.
    pub states: ProbeStates,
    /// Checks the database and the disks.
    pub storage: Storage,
    /// Knows the kernel's probe language.
    pub checker: Arc<Checker>,
    /// The state of the files that declare probes.
    pub declarations: Arc<Declarations>,
    /// The exporters.
    pub exporters: Exporters,
    /// The certificates for clients.
    pub tls: Option<Arc<LiveTls>>,
    /// The labels of the host.
    pub labels: Arc<LabelsFile>,
}

impl HostServer {
    /// Facts in memory. Reads nothing of the host.
    fn basics(&self) -> v1::GetHostResponse {
        let info = &self.info;
        v1::GetHostResponse {
            hostname: info.host.hostname.clone(),
            kernel_release: info.host.kernel_release.clone(),
            kernel_version: info.host.kernel_version.clone(),
            machine: info.host.machine.clone(),
            boot_id: info.host.boot_id.clone(),
            cpus: error::length(info.cpus),
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            daemon_start_time: Some(messages::timestamp(info.start)),
            tracefs: info.tracefs.display().to_string(),
            instance: self.doctor.instance.get().root().display().to_string(),
            trace_clock: TRACE_CLOCK.to_owned(),
            processor_time: processor_time().and_then(messages::duration),
            uptime: messages::duration(info.started.elapsed()),
            ..v1::GetHostResponse::default()
        }
    }
}

#[tonic::async_trait]
impl HostService for HostServer {
    async fn read_clock(
        &self,
        _request: Request<v1::ReadClockRequest>,
    ) -> Result<Response<v1::ReadClockResponse>, Status> {
        let received_ns = trace_clock_ns();
        let clock = Some(messages::clock(ClockMapping::sample()));
        let boot_id = self.info.host.boot_id.clone();
        let clock_name = TRACE_CLOCK.to_owned();
        // Read last: time that passes after it counts as time on the way.
        let sent_ns = trace_clock_ns();
        Ok(Response::new(v1::ReadClockResponse { boot_id, clock_name, received_ns, sent_ns, clock }))
    }

    async fn get_host(
        &self,
        request: Request<v1::GetHostRequest>,
    ) -> Result<Response<v1::GetHostResponse>, Status> {
        match known(v1::HostView::try_from(request.into_inner().view), "view")? {
            v1::HostView::Basic => return Ok(Response::new(self.basics())),
            v1::HostView::Unspecified | v1::HostView::Full => {}
        }
        // Reads a dozen small kernel files, and the symbol table when modules have changed.
        let probes = self.states.of(self.doctor.registry.all()).await?;
        let (mut checks, foreign) = turns::blocking(|| (self.doctor.checks(&probes), self.doctor.foreign()));
        checks.push(sandbox_check(&self.doctor.procfs));
        checks.push(files_check());
        checks.push(self.declarations.check());
        checks.extend(self.storage.checks().await);
        let now = SystemTime::now();
        checks.extend(export::check(&self.exporters.statuses(), now));
        checks.extend(self.labels.check());
        let labels = self.labels.labels();
        // A failing database is one of the checks.
        let audit_head = self.storage.store.audit_head().await.ok().map(audit::head);
        checks.extend(self.tls.as_ref().and_then(|tls| Some(certificate_check(tls.certificate_end()?, now))));
        let (buffer_kib, header_page) = self
            .doctor
            .instance
            .look(|instance| Ok((instance.buffer_kib()?, instance.header_page(&self.doctor.tracefs)?)))
            .map_err(|error| {
                // A control file of the trace instance that cannot be read now.
                let error = Error::from(error);
                Error { reason: Reason { code: Code::Unavailable, ..error.reason }, ..error }
            })?;
        let layout = PageLayout::parse(&header_page).map_err(Error::internal)?;
        Ok(Response::new(v1::GetHostResponse {
            audit_head,
            buffer_kib,
            sub_buffer_bytes: error::length(layout.sub_buffer_bytes()),
            features: features(self.checker.features()),
            checks,
            labels: labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            foreign_probes: foreign
                .into_iter()
                .map(|(name, listed)| v1::ForeignProbe {
                    name: name.to_string(),
                    kernel_definition: listed.line,
                })
                .collect(),
            ..self.basics()
        }))
    }
}

fn features(features: &Features) -> Vec<v1::KernelFeature> {
    [
        ("ustring", features.ustring, "strings in user memory"),
        ("symstr", features.symstr, "symbol names, which the daemon finds when it reads an event"),
        ("char", features.char_type, "the type `char`"),
        ("percent_pd", features.percent_pd, "names of dentries and files (`%pd`, `%pD`)"),
        ("anonymous_group", features.anonymous_group, "a group without an event name (`GRP/`)"),
        ("btf_args", features.btf_args, "arguments by name, from BTF"),
        ("btf_members", features.btf_members, "members of structures (`NAME->member`), from BTF"),
        ("own_types", features.own_types, "names of arguments and members, resolved by the daemon from BTF"),
        ("retprobe_args", features.retprobe_args, "`$argN` in return probes"),
        ("typecasts", features.typecasts, "casts and per-CPU access"),
    ]
    .into_iter()
    .map(|(id, available, description)| v1::KernelFeature {
        id: id.to_owned(),
        available,
        description: description.to_owned(),
    })
    .collect()
}

#[cfg(test)]
mod tests;
