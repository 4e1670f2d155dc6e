//! `HostService`: the host, the daemon, and the checks of `kprobectl doctor`.
//!
//! Owns which view costs what: the basics are answered from memory. Never changes anything.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kprobed_proto::v1;
use kprobed_proto::v1::host_service_server::HostService;
use tonic::{Request, Response, Status};

use super::messages::known;
use super::probes::states_of;
use super::services::Services;
use super::{audit, messages, selected};
use crate::doctor::RESTART;
use crate::export;
use crate::health::{certificate_check, failed, files_check, sandbox_check};
use crate::turns;
use kprobed_control::error::{Error, Reason};
use kprobed_control::place;
use kprobed_host::kernel::{
    BuildIds, ClockMapping, HostIdentity, TRACE_CLOCK, processor_time, trace_clock_ns,
};
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::Instance;
use kprobed_lang::definition::Features;
use kprobed_trace::pipeline::View;
use kprobed_verdict::message::length;

/// How long the checks wait for the control thread: one that hangs is what they are asked about.
const CONTROL_PATIENCE: Duration = Duration::from_secs(5);

/// Modules whose builds one request asks for, at most.
const MODULES_MAX: usize = 1000;

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
    /// The builds of the kernel and of its modules.
    pub build_ids: Arc<BuildIds>,
}

impl Services {
    /// Facts in memory. Reads nothing of the host.
    fn basics(&self) -> v1::GetHostResponse {
        let info = &self.info;
        v1::GetHostResponse {
            hostname: info.host.hostname.clone(),
            kernel_release: info.host.kernel_release.clone(),
            kernel_version: info.host.kernel_version.clone(),
            machine: info.host.machine.clone(),
            boot_id: info.host.boot_id.clone(),
            cpus: length(info.cpus),
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            daemon_start_time: Some(info.start.into()),
            tracefs: self.doctor.tracefs.root().display().to_string(),
            instance: self.doctor.instance.get().root().display().to_string(),
            trace_clock: TRACE_CLOCK.to_owned(),
            processor_time: processor_time().and_then(|time| time.try_into().ok()),
            uptime: info.started.elapsed().try_into().ok(),
            kernel_build: Some(v1::KernelBuild {
                name: info.host.kernel_release.clone(),
                build_id: info.build_ids.kernel().unwrap_or_default().to_owned(),
            }),
            ..v1::GetHostResponse::default()
        }
    }

    /// The builds of those modules that are loaded.
    fn module_builds(&self, names: Vec<String>) -> Result<Vec<v1::KernelBuild>, Error> {
        if names.len() > MODULES_MAX {
            let message =
                format!("the builds of {} modules are requested, and {MODULES_MAX} is the most", names.len());
            return Err(Error::bad_argument("modules", message));
        }
        let build = |name: String| {
            let build_id = self.info.build_ids.module(&name)?;
            Some(v1::KernelBuild { name, build_id })
        };
        Ok(if names.is_empty() {
            Vec::new()
        } else {
            turns::blocking(|| names.into_iter().filter_map(build).collect())
        })
    }

    /// Whether a filter of an exporter leaves out all events, since it fits none of the probes.
    fn filter_check(&self, (exporter, view): &(&'static str, View)) -> Option<v1::HostCheck> {
        let text = view.filter.as_ref()?.to_string();
        let why = selected::judge(&self.access.registry, &self.hub, view, &text, None).err()?;
        Some(export::filter_check(exporter, &why))
    }

    /// Sizes of the ring buffer of a CPU, in KiB, and of a sub-buffer, in bytes, or why they cannot be read.
    fn buffers(&self) -> Result<(u64, u32), String> {
        let read =
            |instance: &Instance| Ok((instance.buffer_kib()?, instance.header_page(&self.doctor.tracefs)?));
        let (buffer_kib, header_page) = self.doctor.instance.look(read).map_err(|error| error.to_string())?;
        let layout = PageLayout::parse(&header_page).map_err(|error| error.to_string())?;
        Ok((buffer_kib, length(layout.sub_buffer_bytes())))
    }
}

#[tonic::async_trait]
impl HostService for Services {
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
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let module_builds = self.module_builds(request.modules)?;
        match known(v1::HostView::try_from(request.view), "view")? {
            v1::HostView::Basic => {
                return Ok(Response::new(v1::GetHostResponse { module_builds, ..self.basics() }));
            }
            v1::HostView::Unspecified | v1::HostView::Full => {}
        }
        // Every part stands alone: what cannot be read now is a check that failed, and the others are answered.
        // Reads a dozen small kernel files, and the symbol table when modules have changed.
        let known = self.access.registry.all();
        let (mut probes, no_states) =
            match tokio::time::timeout(CONTROL_PATIENCE, states_of(&self.states, &known)).await {
                Ok(Ok(probes)) => (probes, None),
                Ok(Err(error)) if error.reason == Reason::STOPPING => return Err(error.into()),
                Ok(Err(error)) => (known, Some(error.message)),
                Err(_elapsed) => (known, Some(format!("no answer within {CONTROL_PATIENCE:?}"))),
            };
        probes.retain(|probe| sight.shows(probe));
        let (mut checks, mut foreign) =
            turns::blocking(|| (self.doctor.checks(&probes), self.doctor.foreign()));
        foreign.retain(|one| sight.shows_foreign(&one.name, place(&one.kernel_definition)));
        checks.extend(no_states.map(|why| {
            let finding =
                format!("states of probes are not of this moment: the control thread does not answer: {why}");
            let fix =
                "look at the kernel's log and at `journalctl -u kprobed`: a change may hang in the kernel";
            failed("control", finding, fix)
        }));
        checks.push(sandbox_check(&self.doctor.procfs));
        checks.push(files_check());
        checks.push(self.declarations.check(|problem| self.shows_declaration(&sight, problem)));
        checks.extend(self.reloads.check(sight.is_everything()));
        checks.extend(self.storage.checks(sight.is_everything()).await);
        let now = SystemTime::now();
        checks.extend(export::check(&self.exporters.statuses(), now));
        // The reason names a probe.
        if sight.is_everything() {
            checks.extend(self.export_filters.iter().filter_map(|one| self.filter_check(one)));
        }
        checks.extend(self.labels.check());
        let labels = self.labels.labels();
        // A failing database is one of the checks.
        let audit_head = self.storage.store.audit_head().await.ok().map(audit::head);
        checks.extend(self.tls.as_ref().and_then(|tls| Some(certificate_check(tls.certificate_end()?, now))));
        let (buffer_kib, sub_buffer_bytes) = self.buffers().unwrap_or_else(|why| {
            checks.push(failed("ring_buffer", why, RESTART));
            (0, 0)
        });
        // A daemon that ends takes its instance away: that is no fault of the host.
        self.control.require_running()?;
        Ok(Response::new(v1::GetHostResponse {
            audit_head,
            module_builds,
            buffer_kib,
            sub_buffer_bytes,
            features: features(self.checker.features()),
            checks,
            labels: labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            foreign_probes: foreign,
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
