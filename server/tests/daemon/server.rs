//! A server with every service of the daemon, behind its real front end, on a stored kernel.
//!
//! There is no control thread: what would be asked of it fails with STOPPING. Everything before and after
//! that is the daemon's own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use kprobed::auth::LiveTls;
use kprobed::config::{Listen, Tls, tls_settings};
use kprobed::doctor::{Doctor, SkippedRuns};
use kprobed::export::Exporters;
use kprobed::front::{self, Gate};
use kprobed::health::Storage;
use kprobed::rpc::{
    Access, AccessServer, AggregationServer, AuditServer, EventRoutes, EventServer, HostInfo, HostServer,
    KernelServer, LeaseServer, ProbeServer, ReconcileServer,
};
use kprobed::shutdown::Tasks;
use kprobed_control::ProbeStates;
use kprobed_control::auth::{AuditInbox, AuditQueue, Rights};
use kprobed_control::store::{ProbeSpec, Record, Store};
use kprobed_control::{
    Controller, Costs, Foreign, Holds, Ledger, LookOutcome, Names, Observer, PlannedStep, Probe, ProbeLedger,
    ProbeState, Reconciled, Reconciliation, Recorded, RecordingProblem, Registry, Step, Terms,
};
use kprobed_host::kernel::{FactsCache, HostIdentity};
use kprobed_host::tracefs::{CurrentInstance, HitCounts, Instance, Tracefs};
use kprobed_lang::definition::{Features, ProbeKind};
use kprobed_lang::model::{HitProfile, Hits, ProbeUid};
use kprobed_proto::FILE_DESCRIPTOR_SET;
use kprobed_proto::v1::AggregationSnapshot;
use kprobed_proto::v1::access_service_server::AccessServiceServer;
use kprobed_proto::v1::aggregation_service_server::AggregationServiceServer;
use kprobed_proto::v1::audit_service_server::AuditServiceServer;
use kprobed_proto::v1::host_service_server::HostServiceServer;
use kprobed_proto::v1::kernel_service_server::KernelServiceServer;
use kprobed_proto::v1::lease_service_server::LeaseServiceServer;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_proto::v1::reconcile_service_server::ReconcileServiceServer;
use kprobed_rights::Roles;
use kprobed_trace::feed::Log;
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::pipeline::{Binder, Hub};
use kprobed_trace::spool::{BootId, Cursor};
use kprobed_verdict::checker::{Checker, DefinitionText};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::runtime::Handle;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::attacks::events;
use crate::world::{self, World};

/// Nothing in these tests takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A probe that the registry has.
pub(crate) const PROBE: &str = "kprobes/open";

/// The `header_page` of 6.1 and 6.12.
const HEADER_PAGE: &str = include_str!("../../fixtures/ring/small-mix/header_page");

/// A running server.
pub(crate) struct Server {
    pub(crate) listen: Listen,
    pub(crate) tcp: SocketAddr,
    pub(crate) hub: Arc<Hub>,
    /// The roles in force.
    pub(crate) rights: Arc<Rights>,
    /// What is refused.
    pub(crate) audit: Mutex<AuditInbox>,
    client: (String, String),
    authority: String,
    _tasks: Tasks,
    _world: World,
    directory: tempfile::TempDir,
}

/// What the host of a server has.
pub(crate) struct Setup {
    pub(crate) probes: Vec<Probe>,
    /// Lines of `kprobe_events`.
    pub(crate) events: &'static str,
    /// Whether recorded answers stand in for the control thread: hits and a ledger of all probes.
    pub(crate) answers: bool,
}

impl Server {
    /// Opens it on this runtime. The user of this process and the owner of the client's certificate may do
    /// everything, within limits of their role: lines of a role file.
    pub(crate) async fn open(listen: Listen, limits: &str) -> Self {
        let rules =
            format!("[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n[role.limits]\n{limits}");
        Self::open_with(listen, &rules, Setup { probes: vec![probe()], events: "", answers: false }).await
    }

    /// The same with these rules for them, and this host.
    pub(crate) async fn open_with(listen: Listen, rules: &str, setup: Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let issuer = authority();
        let (certificate, key) = signed(&issuer, "daemon.test");
        let write = |name: &str, text: &str| -> PathBuf {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let tls = Tls {
            certificate: write("server.pem", &certificate),
            key: write("server.key", &key),
            client_ca: write("ca.pem", &issuer.pem()),
        };
        // Another program may take the port in between; then the test fails as such, and says so.
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let unix = directory.path().join("k.sock");
        let listen = Listen { unix, tcp: Some(tcp), tls: Some(tls), ..listen };
        let uid = nix::unistd::getuid();
        let roles = format!(
            "[[role]]\nname = \"one\"\nprincipals = [\"uid:{uid}\", \"dns:client.test\"]\n\
             {rules}"
        );
        let (queue, inbox) = AuditQueue::new();
        let rights = Arc::new(Rights::new(Roles::parse(&roles).unwrap(), queue));
        let sites = fs::read_to_string(world::fixture("patch-sites-6.12.tsv")).unwrap();
        let world = world::world("6.12", &sites);
        let binder = Binder::new("here".to_owned(), None);
        let hub = Arc::new(Hub::with_queue_memory(binder, listen.queue_memory_mib << 20));
        let routes = routes(directory.path(), &world, &rights, &hub, setup).await;
        let tasks = Tasks::default();
        let live = LiveTls::new(tls_settings(listen.tls.as_ref().unwrap()).unwrap());
        let gate = Gate { rights: Arc::clone(&rights), procfs: "/proc".into(), tls: Some(Arc::new(live)) };
        let sockets = front::bind(&listen, front::Inherited::default()).await.unwrap();
        front::serve(sockets, &listen, routes, &tasks, &Handle::current(), gate);
        let (client, authority) = (signed(&issuer, "client.test"), issuer.pem());
        let audit = Mutex::new(inbox);
        Self { listen, tcp, hub, rights, audit, client, authority, _tasks: tasks, _world: world, directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    /// A client on the unix socket.
    pub(crate) async fn local(&self) -> Result<Channel, tonic::transport::Error> {
        local(self.socket()).await
    }

    /// A client over TLS, with its certificate.
    pub(crate) async fn remote(&self) -> Channel {
        let (certificate, key) = self.client.clone();
        let tls = ClientTlsConfig::new()
            .domain_name("daemon.test")
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Identity::from_pem(certificate, key));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.tcp)).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await.unwrap()
    }
}

/// A client on a unix socket.
pub(crate) async fn local(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let uri = format!("unix://{}", socket.display());
    Endpoint::from_shared(uri).unwrap().connect().await
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority.test");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// The tracefs files by which a daemon describes its host.
fn write_tracefs(root: &Path) {
    let instance = root.join("instances/i");
    let files = [
        (root.join("kprobe_events"), ""),
        (root.join("kprobe_profile"), ""),
        (root.join("events/header_page"), HEADER_PAGE),
        (instance.join("buffer_size_kb"), "4096\n"),
        (instance.join("set_event_pid"), ""),
        (instance.join("trace_clock"), "local global counter uptime perf mono mono_raw [boot] x86-tsc\n"),
        (instance.join("tracing_on"), "1\n"),
    ];
    for (path, text) in files {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A probe that is durable, and that the kernel does not have: there is none.
fn probe() -> Probe {
    let line = format!("p:{PROBE} do_sys_openat2 dfd=%di path=+0(%si):string");
    let definition = Arc::new(DefinitionText::new(line.clone()));
    let spec = ProbeSpec { definition, enabled: true, ..ProbeSpec::default() };
    let mut record = Record::new(PROBE.parse().unwrap(), spec, line, SystemTime::UNIX_EPOCH);
    record.uid = ProbeUid(1);
    let probe = Probe::unresolved(record, ProbeKind::Entry, ProbeState::Pending);
    let schema = Some(Arc::clone(&events::source().origin.schema));
    Probe { location: "do_sys_openat2+0x0".to_owned(), schema, ..probe }
}

/// Hits and a ledger of all probes.
fn recorded(registry: &Registry, host: &HostIdentity) -> Recorded {
    let probes = registry.all();
    let hits = Hits { hits: 7, nmissed: 0 };
    let profile = |probe: &Arc<Probe>| HitProfile {
        uid: probe.uid,
        name: probe.name.clone(),
        boot_id: host.boot_id.clone(),
        time: SystemTime::now(),
        hits,
    };
    let problem = |probe: &Arc<Probe>| {
        let trouble = probe.state.trouble()?.clone();
        Some(RecordingProblem { uid: probe.uid, name: probe.name.clone(), trouble })
    };
    let account = |probe: &Arc<Probe>| ProbeLedger {
        uid: probe.uid,
        name: probe.name.clone(),
        has_hits: true,
        terms: Terms { hits, ..Terms::default() },
    };
    let switched_off = |probe: &Arc<Probe>| PlannedStep::Event {
        name: probe.name.clone(),
        instance: "i".to_owned(),
        step: Step::Disable,
    };
    let looks = probes.iter().map(|probe| Reconciled {
        found: Arc::clone(probe),
        outcome: LookOutcome::WouldRepair,
        now: Arc::clone(probe),
    });
    let ledger = Ledger {
        probes: probes.iter().map(account).collect(),
        buffers: Vec::new(),
        subscribers: Vec::new(),
        buffer_bytes: 4 << 20,
        settled: true,
        problems: probes.iter().filter_map(problem).collect(),
        trips: 0,
    };
    Recorded {
        probe: Arc::clone(&probes[0]),
        profiles: probes.iter().map(profile).collect(),
        ledger,
        snapshot: AggregationSnapshot::default(),
        keys: Vec::new(),
        reconciliation: Reconciliation {
            plan: probes.iter().map(switched_off).collect(),
            probes: looks.collect(),
        },
    }
}

#[expect(clippy::disallowed_methods, reason = "tasks of a test end with it")]
async fn routes(
    directory: &Path,
    world: &World,
    rights: &Arc<Rights>,
    hub: &Arc<Hub>,
    setup: Setup,
) -> Routes {
    write_tracefs(directory);
    let Setup { probes, events, answers } = setup;
    fs::write(directory.join("kprobe_events"), events).unwrap();
    for line in events.lines() {
        let name = line.split([':', ' ']).nth(1).unwrap();
        fs::create_dir_all(directory.join("events").join(name)).unwrap();
    }
    let boot_id: BootId = "00000000-0000-4000-8000-000000000001".parse().unwrap();
    let host = HostIdentity {
        hostname: "here".to_owned(),
        kernel_release: "6.12.0-stored-amd64".to_owned(),
        kernel_version: "#1 SMP".to_owned(),
        machine: "x86_64".to_owned(),
        boot_id: boot_id.to_string(),
    };
    let features = Features::from_readme("char, string, ustring kernel return probes support");
    let facts = Arc::new(FactsCache::new(world.paths.clone()));
    let store = Store::open(directory, SystemTime::now()).await.unwrap().store;
    let registry = Arc::new(Registry::from_iter(probes));
    let (control, queue) = Controller::channel();
    if answers {
        tokio::spawn(recorded(&registry, &host).run(queue));
    }
    let tracefs = Tracefs::new(directory, "/nonexistent");
    let names = Names::new(tracefs.clone(), Arc::clone(&registry));
    let checker = Checker::new(features, Arc::clone(&facts)).with_names(Arc::new(names));
    let checker = Arc::new(checker);
    let instance = Arc::new(CurrentInstance::new(Instance::find(&tracefs, "i").unwrap()));
    let nowhere = || PathBuf::from("/nonexistent");
    let observer = Observer::new(tracefs.clone(), Arc::clone(&instance), nowhere(), nowhere());
    let states = ProbeStates { observer, control: control.clone(), registry: Arc::clone(&registry) };
    let access = Access { rights: Arc::clone(rights), registry: Arc::clone(&registry) };
    let doctor = Doctor {
        tracefs: tracefs.clone(),
        instance: Arc::clone(&instance),
        facts: Arc::clone(&facts),
        registry: Arc::clone(&registry),
        procfs: nowhere(),
        lockdown: nowhere(),
        had_kprobe_events: true,
        skipped: SkippedRuns::since(SystemTime::UNIX_EPOCH, HitCounts::default()),
    };
    let info = HostInfo {
        host: host.clone(),
        cpus: 2,
        start: SystemTime::now(),
        started: Instant::now(),
        tracefs: directory.to_owned(),
        build_ids: Arc::default(),
    };
    let hosts = HostServer {
        info,
        doctor: Arc::new(doctor),
        states: states.clone(),
        storage: Storage {
            store: store.clone(),
            state_directory: directory.to_owned(),
            history: None,
            unknown_uids: 0,
        },
        checker: Arc::clone(&checker),
        declarations: Arc::default(),
        exporters: Exporters::default(),
        tls: None,
        labels: Arc::default(),
        rights: Arc::clone(rights),
    };
    let events = EventServer {
        hub: Arc::clone(hub),
        control: control.clone(),
        registry: Arc::clone(&registry),
        host,
        filter_features: KernelFilterFeatures { task_names: true, ..KernelFilterFeatures::default() },
        log: Log { history: None, now: Cursor { boot_id, epoch: 1, sequence: 0 } },
        exporters: Exporters::default(),
        access: access.clone(),
    };
    let costs = Arc::<Costs>::default();
    let probes = ProbeServer {
        control: control.clone(),
        registry: Arc::clone(&registry),
        states,
        checker: Arc::clone(&checker),
        store: store.clone(),
        declarations: Arc::default(),
        costs,
        rights: Arc::clone(rights),
    };
    let audit = AuditServer { store };
    let foreign =
        Foreign { tracefs, registry: Arc::clone(&registry), checker: Arc::clone(&checker), instance };
    let aggregations = AggregationServer { control: control.clone(), access: access.clone() };
    let leases = LeaseServer { holds: Arc::<Holds>::default(), vanished_after: front::VANISHED_AFTER };
    let (_, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .unwrap();
    Routes::new(ProbeServiceServer::new(probes))
        .add_service(AggregationServiceServer::new(aggregations))
        .add_service(AccessServiceServer::new(AccessServer { access, checker: Arc::clone(&checker) }))
        .add_service(AuditServiceServer::new(audit))
        .add_service(KernelServiceServer::new(KernelServer { checker, registry, rights: Arc::clone(rights) }))
        .add_service(LeaseServiceServer::new(leases))
        .add_service(HostServiceServer::new(hosts))
        .add_service(EventRoutes::new(events))
        .add_service(ReconcileServiceServer::new(ReconcileServer {
            control: control.clone(),
            foreign,
            rights: Arc::clone(rights),
        }))
        .add_service(health)
        .add_service(reflection)
}
