//! The daemon, with every service and its control thread, behind its real front end: over a kernel in memory
//! whose functions have the code of a stored one. There are no ring buffers: events are published to the hub.

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
use kprobed::rpc::{self, Access, EventServer, HostInfo, Services};
use kprobed::shutdown::Tasks;
use kprobed_client::{Client, ConnectOptions, Target};
use kprobed_control::auth::{AuditInbox, AuditQueue, Rights};
use kprobed_control::store::{Edit, HitRetention, ProbeSpec, Record, Store};
use kprobed_control::{
    BudgetSettings, Controller, ControllerParts, Costs, Foreign, Holds, Names, Observer, OnExit, ProbeStates,
    Registry,
};
use kprobed_fake::{FakeKernel, Series};
use kprobed_host::kernel::{FactsCache, HostIdentity, KernelPaths, SymbolTable, TRACE_CLOCK};
use kprobed_host::tracefs::{CurrentInstance, HitCounts, Instance, InstanceOptions, Mounted};
use kprobed_lang::definition::Features;
use kprobed_lang::model::{KernelChange, Metadata};
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

use crate::world::{self, World};

/// Nothing in these tests takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A probe that the daemon has.
pub(crate) const PROBE: &str = "kprobes/open";

/// Functions of the kernel.
const FUNCTIONS: [&str; 4] = ["do_sys_openat2", "vfs_read", "vfs_iocb_iter_write", "noop_direct_IO"];

/// A running server.
pub(crate) struct Server {
    pub(crate) listen: Listen,
    pub(crate) tcp: SocketAddr,
    pub(crate) hub: Arc<Hub>,
    /// The roles in force.
    pub(crate) rights: Arc<Rights>,
    /// What is refused.
    pub(crate) audit: Mutex<AuditInbox>,
    /// The certificate of a client, and its key.
    pub(crate) client: (String, String),
    /// The certificate of the authority of both sides.
    pub(crate) authority: String,
    _tasks: Tasks,
    _world: World,
    kernel: FakeKernel,
    directory: tempfile::TempDir,
}

/// What the host of a server has.
#[derive(Default)]
pub(crate) struct Setup {
    /// Probes that were made before the daemon was started.
    pub(crate) probes: Vec<Record>,
    /// Lines that another program has written to `kprobe_events`.
    pub(crate) foreign: &'static [&'static str],
    /// The types of its kernel (BTF); none if empty.
    pub(crate) types: Vec<u8>,
}

impl Server {
    /// Opens it on this runtime. The user of this process and the owner of the client's certificate may do
    /// everything, within limits of their role: lines of a role file.
    pub(crate) async fn open(listen: Listen, limits: &str) -> Self {
        let rules =
            format!("[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n[role.limits]\n{limits}");
        Self::open_with(listen, &rules, Setup { probes: vec![probe()], ..Setup::default() }).await
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
        if !setup.types.is_empty() {
            let directory = world.paths.sysfs.join("kernel/btf");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("vmlinux"), &setup.types).unwrap();
        }
        let binder = Binder::new("here".to_owned(), None);
        let hub = Arc::new(Hub::with_queue_memory(binder, listen.queue_memory_mib << 20));
        let kernel = kernel("6.12");
        for line in setup.foreign {
            kernel.neighbour().add("kprobe_events", line).unwrap();
        }
        let host = HostIdentity {
            hostname: "here".to_owned(),
            kernel_release: "6.12.0-stored-amd64".to_owned(),
            kernel_version: "#1 SMP".to_owned(),
            machine: "x86_64".to_owned(),
            boot_id: "00000000-0000-4000-8000-000000000001".to_owned(),
        };
        let daemon = Daemon {
            directory: directory.path(),
            host,
            facts: Arc::new(FactsCache::new(world.paths.clone())),
            paths: &world.paths,
            kernel: &kernel,
            rights: &rights,
            hub: &hub,
            probes: &setup.probes,
        };
        let routes = routes(daemon).await;
        let tasks = Tasks::default();
        let live = LiveTls::new(tls_settings(listen.tls.as_ref().unwrap()).unwrap());
        let gate = Gate { rights: Arc::clone(&rights), procfs: "/proc".into(), tls: Some(Arc::new(live)) };
        let sockets = front::bind(&listen, front::Inherited::default()).await.unwrap();
        front::serve(sockets, &listen, routes, &tasks, &Handle::current(), gate);
        let (client, authority) = (signed(&issuer, "client.test"), issuer.pem());
        let audit = Mutex::new(inbox);
        Self {
            listen,
            tcp,
            hub,
            rights,
            audit,
            client,
            authority,
            _tasks: tasks,
            _world: world,
            kernel,
            directory,
        }
    }

    /// Another program on its host.
    pub(crate) fn neighbour(&self) -> FakeKernel {
        self.kernel.neighbour()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("k.sock")
    }

    /// A client on the unix socket.
    pub(crate) async fn local(&self) -> Result<Channel, tonic::transport::Error> {
        local(self.socket()).await
    }

    /// The client of this project on the unix socket.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(Target::Unix(self.socket()), ConnectOptions::default()).await.unwrap()
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

/// An authority that no program trusts yet.
pub(crate) fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority.test");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for a name, and its key, in PEM.
pub(crate) fn signed(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// A kernel of this version with the functions.
pub(crate) fn kernel(version: &str) -> FakeKernel {
    let symbols = SymbolTable::parse(&world::stored(&format!("kallsyms-{version}.txt.gz")));
    let functions = FUNCTIONS.map(|name| (name, symbols.lookup(name, None).unwrap().address));
    let series = if version == "6.1" { Series::V6_1 } else { Series::V6_12 };
    FakeKernel::new(series, &functions, &["sched/sched_switch"]).process()
}

/// The probe that a daemon has.
pub(crate) fn probe() -> Record {
    let line = format!("p:{PROBE} do_sys_openat2 large=%di:u64");
    let definition = Arc::new(DefinitionText::new(line.clone()));
    // Nothing is known of what it meant.
    let metadata = Metadata { on_kernel_change: KernelChange::ArmAnyway, ..Metadata::default() };
    let spec = ProbeSpec { definition, enabled: true, metadata, ..ProbeSpec::default() };
    Record::new(PROBE.parse().unwrap(), spec, line, SystemTime::UNIX_EPOCH)
}

/// A daemon, as far as tests and benchmarks differ in it.
pub(crate) struct Daemon<'a> {
    /// Of its state.
    pub(crate) directory: &'a Path,
    pub(crate) host: HostIdentity,
    pub(crate) facts: Arc<FactsCache>,
    pub(crate) paths: &'a KernelPaths,
    pub(crate) kernel: &'a FakeKernel,
    pub(crate) rights: &'a Arc<Rights>,
    pub(crate) hub: &'a Arc<Hub>,
    /// Probes that were made before it was started.
    pub(crate) probes: &'a [Record],
}

/// Starts its control thread, and returns its services.
pub(crate) async fn routes(daemon: Daemon<'_>) -> Routes {
    let Daemon { directory, host, facts, paths, kernel, rights, hub, probes } = daemon;
    let boot_id: BootId = host.boot_id.parse().unwrap();
    let store = Store::open(directory, SystemTime::now()).await.unwrap();
    let mut edits: Vec<_> = probes.iter().map(|record| Edit::new(None, Some(record))).collect();
    store.begin(&mut edits.iter_mut().collect::<Vec<_>>()).await.unwrap();
    store.settle(&edits.iter().collect::<Vec<_>>()).await.unwrap();
    let registry = Arc::<Registry>::default();
    let tracefs = kernel.tracefs();
    let features = Features::from_readme(&tracefs.readme().unwrap());
    let names = Names::new(tracefs.clone(), Arc::clone(&registry));
    let checker = Arc::new(Checker::new(features, Arc::clone(&facts)).with_names(Arc::new(names)));
    let instance_options = InstanceOptions {
        name: "i".to_owned(),
        buffer_kib: 64,
        buffer_max_kib: 0,
        sub_buffer_kib: 0,
        clock: TRACE_CLOCK,
    };
    let (made, claim) = Instance::open_or_create(&tracefs, &instance_options).unwrap();
    for thread in ["self/task/1", "1"] {
        fs::create_dir_all(paths.procfs.join(thread)).unwrap();
    }
    made.exclude_this_process(&paths.procfs).unwrap();
    let instance = Arc::new(CurrentInstance::new(made.clone()));
    let (procfs, sysfs) = (paths.procfs.clone(), paths.sysfs.clone());
    let (holds, costs) = (Arc::<Holds>::default(), Arc::<Costs>::default());
    let controller = Controller::start(ControllerParts {
        mounted: Mounted { tracefs: tracefs.clone() },
        instance: made,
        claim,
        instance_options,
        current_instance: Arc::clone(&instance),
        store: store.clone(),
        facts: Arc::clone(&facts),
        checker: Arc::clone(&checker),
        rights: Arc::clone(rights),
        registry: Arc::clone(&registry),
        hub: Arc::clone(hub),
        host: host.clone(),
        procfs: procfs.clone(),
        sysfs: sysfs.clone(),
        on_exit: OnExit::Restore,
        sample_interval: Duration::from_hours(1),
        hit_retention: HitRetention { minutes: Duration::from_hours(24), hours: Duration::from_hours(24) },
        repair_interval: None,
        holds: Arc::clone(&holds),
        lease_keep: Duration::from_hours(1),
        budget: BudgetSettings { probe_ns_per_s: None, host_ns_per_s: None, calibrate: false },
        costs: Arc::clone(&costs),
    })
    .await
    .unwrap();
    let (control, queue) = Controller::channel();
    // It ends when all services have ended, which can be after the runtime of the test.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(controller.run(queue));
    });
    let observer = Observer::new(tracefs.clone(), Arc::clone(&instance), procfs.clone(), sysfs);
    let states = ProbeStates { observer, control: control.clone(), registry: Arc::clone(&registry) };
    let access = Access { rights: Arc::clone(rights), registry: Arc::clone(&registry) };
    let doctor = Doctor {
        tracefs: tracefs.clone(),
        instance,
        facts: Arc::clone(&facts),
        registry: Arc::clone(&registry),
        procfs,
        lockdown: PathBuf::from("/nonexistent"),
        had_kprobe_events: true,
        skipped: SkippedRuns::since(SystemTime::UNIX_EPOCH, HitCounts::default(), None),
    };
    let info = HostInfo {
        host: host.clone(),
        cpus: 2,
        start: SystemTime::now(),
        started: Instant::now(),
        build_ids: Arc::default(),
    };
    let events = EventServer {
        hub: Arc::clone(hub),
        control: control.clone(),
        host,
        filter_features: KernelFilterFeatures::default(),
        log: Log { history: None, now: Cursor { boot_id, epoch: 1, sequence: 0 } },
        exporters: Exporters::default(),
        access: access.clone(),
    };
    let services = Services {
        control,
        access,
        states,
        foreign: Foreign {
            tracefs,
            registry,
            checker: Arc::clone(&checker),
            own_instances: Instance::both_names("i"),
        },
        checker,
        costs,
        holds,
        vanished_after: front::VANISHED_AFTER,
        info,
        doctor,
        storage: Storage { store, state_directory: directory.to_owned(), history: None, unknown_uids: 0 },
        declarations: Arc::default(),
        reloads: Arc::default(),
        exporters: Exporters::default(),
        export_filters: Vec::new(),
        hub: Arc::clone(hub),
        tls: None,
        labels: Arc::default(),
    };
    rpc::routes(services, events).unwrap().0
}
