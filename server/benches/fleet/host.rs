//! One host of the fleet: the daemon's services behind its real front end, without the threads that
//! talk to a kernel.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::Context as _;
use kprobed::auth::LiveTls;
use kprobed::config::{Listen, tls_settings};
use kprobed::doctor::{Doctor, SkippedRuns};
use kprobed::export::Exporters;
use kprobed::front::{self, Gate};
use kprobed::health::Storage;
use kprobed::rpc::{Access, AggregationServer, EventRoutes, EventServer, HostInfo, HostServer, ProbeServer};
use kprobed::shutdown::Tasks;
use kprobed_control::ProbeStates;
use kprobed_control::auth::Rights;
use kprobed_control::store::{ProbeSpec, Record, Store};
use kprobed_control::{Controller, Observer, Probe, ProbeState, Registry};
use kprobed_host::kernel::HostIdentity;
use kprobed_host::tracefs::{CurrentInstance, HitCounts, Instance, Tracefs};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::ProbeUid;
use kprobed_proto::v1::aggregation_service_server::AggregationServiceServer;
use kprobed_proto::v1::host_service_server::HostServiceServer;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_trace::feed::Log;
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::pipeline::{Binder, Hub};
use kprobed_trace::spool::{BootId, Cursor};
use kprobed_verdict::checker::DefinitionText;
use tokio::runtime::Handle;
use tonic::service::Routes;

use crate::recorded;
use crate::stored_kernel::StoredKernel;
use crate::tracefs::INSTANCE;

/// Probes of each host.
pub(crate) const PROBES: usize = 16;

/// Parts that all hosts share, because a client cannot tell.
pub(crate) struct Shared<'a> {
    pub(crate) store: Store,
    pub(crate) directory: &'a Path,
    pub(crate) threads: &'a Handle,
    pub(crate) rights: Arc<Rights>,
}

/// A daemon that answers.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) hub: Arc<Hub>,
}

/// A probe that is durable, and that the kernel does not have: there is none.
fn probe(number: usize) -> anyhow::Result<Probe> {
    let name: kprobed_lang::model::ProbeName = format!("kprobes/open_{number:02}").parse()?;
    let line = format!("p:{name} do_sys_openat2 dfd=%di path=+0(%si):string");
    let definition = Arc::new(DefinitionText::new(line.clone()));
    let spec = ProbeSpec { definition, enabled: true, ..ProbeSpec::default() };
    let mut record = Record::new(name, spec, line, SystemTime::UNIX_EPOCH);
    record.uid = ProbeUid(i64::try_from(number)? + 1);
    let probe = Probe::unresolved(record, ProbeKind::Entry, ProbeState::Pending);
    Ok(Probe { location: "do_sys_openat2+0x0".to_owned(), ..probe })
}

impl Shared<'_> {
    /// With the certificates of one host.
    pub(crate) fn gate(&self, listen: &Listen) -> anyhow::Result<Gate> {
        let tls = listen.tls.as_ref().map(tls_settings).transpose()?.map(|tls| Arc::new(LiveTls::new(tls)));
        Ok(Gate { rights: Arc::clone(&self.rights), procfs: "/proc".into(), tls })
    }
}

impl Host {
    pub(crate) async fn start(
        (number, name): (usize, String),
        listen: &Listen,
        kernel: &StoredKernel,
        shared: &Shared<'_>,
    ) -> anyhow::Result<Self> {
        let boot_id = format!("00000000-0000-4000-8000-{number:012x}");
        let identity = HostIdentity {
            hostname: name.clone(),
            kernel_release: kernel.release.clone(),
            kernel_version: "#1 SMP".to_owned(),
            machine: "x86_64".to_owned(),
            boot_id: boot_id.clone(),
        };
        let hub = Arc::new(Hub::new(Binder::new(name.clone(), None)));
        let routes = routes(identity, boot_id.parse()?, kernel, shared, Arc::clone(&hub))?;
        let gate = shared.gate(listen)?;
        let sockets = front::bind(listen, front::Inherited::default()).await?;
        front::serve(sockets, listen, routes, &Tasks::default(), shared.threads, gate);
        Ok(Self { name, hub })
    }
}

fn routes(
    host: HostIdentity,
    boot_id: BootId,
    kernel: &StoredKernel,
    shared: &Shared<'_>,
    hub: Arc<Hub>,
) -> anyhow::Result<Routes> {
    let registry = Arc::new((0..PROBES).map(probe).collect::<anyhow::Result<Registry>>()?);
    let (control, queue) = Controller::channel();
    shared.threads.spawn(recorded::answers(&registry, &host)?.run(queue));
    let tracefs = Tracefs::new(shared.directory, "/nonexistent");
    let instance = Instance::find(&tracefs, INSTANCE).context("no instance")?;
    let instance = Arc::new(CurrentInstance::new(instance));
    let nowhere = PathBuf::from("/nonexistent");
    let observer = Observer::new(tracefs.clone(), Arc::clone(&instance), nowhere.clone(), nowhere.clone());
    let states = ProbeStates { observer, control: control.clone(), registry: Arc::clone(&registry) };
    let doctor = Doctor {
        tracefs,
        instance,
        facts: Arc::clone(&kernel.facts),
        registry: Arc::clone(&registry),
        procfs: nowhere.clone(),
        lockdown: nowhere,
        had_kprobe_events: true,
        skipped: SkippedRuns::since(SystemTime::UNIX_EPOCH, HitCounts::default()),
    };
    let storage = Storage {
        store: shared.store.clone(),
        state_directory: shared.directory.to_owned(),
        history: None,
        unknown_uids: 0,
    };
    let info = HostInfo {
        host: host.clone(),
        cpus: 2,
        start: SystemTime::now(),
        started: Instant::now(),
        tracefs: shared.directory.to_owned(),
        build_ids: Arc::default(),
    };
    let probes = ProbeServer {
        control: control.clone(),
        registry: Arc::clone(&registry),
        states: states.clone(),
        checker: Arc::clone(&kernel.checker),
        store: shared.store.clone(),
        declarations: Arc::default(),
        costs: Arc::default(),
        rights: Arc::clone(&shared.rights),
    };
    let hosts = HostServer {
        info,
        doctor: Arc::new(doctor),
        states,
        storage,
        checker: Arc::clone(&kernel.checker),
        declarations: Arc::default(),
        exporters: Exporters::default(),
        tls: None,
        labels: Arc::default(),
        rights: Arc::clone(&shared.rights),
    };
    let access = Access { rights: Arc::clone(&shared.rights), registry: Arc::clone(&registry) };
    let aggregations = AggregationServer { control: control.clone(), access: access.clone() };
    let events = EventServer {
        hub,
        control,
        registry,
        host,
        filter_features: KernelFilterFeatures::default(),
        log: Log { history: None, now: Cursor { boot_id, epoch: 1, sequence: 0 } },
        exporters: Exporters::default(),
        access,
    };
    Ok(Routes::new(ProbeServiceServer::new(probes))
        .add_service(AggregationServiceServer::new(aggregations))
        .add_service(HostServiceServer::new(hosts))
        .add_service(EventRoutes::new(events)))
}
