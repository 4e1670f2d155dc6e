//! The composition root: builds everything, starts it, and takes it down in order.

mod lock;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use kprobed_proto::FILE_DESCRIPTOR_SET;
use kprobed_proto::v1::aggregation_service_server::AggregationServiceServer;
use kprobed_proto::v1::code_service_server::CodeServiceServer;
use kprobed_proto::v1::host_service_server::HostServiceServer;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_proto::v1::source_service_server::SourceServiceServer;
use kprobed_proto::v1::type_service_server::TypeServiceServer;
use nix::sys::sysinfo::sysinfo;
use nix::unistd::{Group, SysconfVar, sysconf};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic_health::server::HealthReporter;

pub use self::lock::Holder;
use self::lock::{LockError, StateLock};
use crate::config::{Config, Listen, Tls};
use crate::control::{
    Checker, ControlHandle, Controller, ControllerParts, Doctor, Names, Observer, ProbeStates, Registry,
};
use crate::definition::Features;
use crate::filter::KernelFilterFeatures;
use crate::history::History;
use crate::kernel::btf::KernelTypes;
use crate::kernel::{FactsCache, HostIdentity, KernelPaths, ReadError, TRACE_CLOCK, threads_of_this_process};
use crate::pipeline::{Binder, Hub};
use crate::rpc::{
    AggregationServer, CodeServer, EventRoutes, EventServer, HostInfo, HostServer, Log, ProbeServer,
    SourceServer, TypeServer,
};
use crate::shutdown::Tasks;
use crate::spool::{BootId, BootIdError, Cursor, SpoolError};
use crate::store::{Store, StoreError};
use crate::tracefs::{
    ClaimError, CurrentInstance, Instance, InstanceOptions, MountError, Mounts, TracefsError,
};

/// Why the daemon could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// No tracefs.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Tracefs does not do what is needed.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// Procfs.
    #[error(transparent)]
    Procfs(#[from] ReadError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Probes or readers.
    #[error(transparent)]
    Control(#[from] crate::control::StartError),
    /// A socket.
    #[error("cannot listen on `{address}`: {source}")]
    Listen {
        /// Its address.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// A certificate.
    #[error("cannot use `{path}`: {source}", path = path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// TLS.
    #[error("tls: {0}")]
    Tls(#[source] tonic::transport::Error),
    /// Reflection.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The history.
    #[error("the history cannot be kept: {0}; `enabled = false` in `[spool]` does without it")]
    History(#[from] SpoolError),
    /// The boot id.
    #[error(transparent)]
    BootId(BootIdError),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The size of the host.
    #[error("cannot look at the host: {0}")]
    Memory(#[source] nix::Error),
    /// The state directory belongs to another daemon.
    #[error("another kprobed has locked `{path}`: {holder}", path = path.display())]
    AlreadyRunning {
        /// The lock.
        path: PathBuf,
        /// The other one.
        holder: Holder,
    },
    /// The tracing instance belongs to another daemon.
    #[error("another kprobed uses the tracing instance `{path}`: {holder}", path = path.display())]
    InstanceInUse {
        /// The instance.
        path: PathBuf,
        /// The other one.
        holder: Holder,
    },
}

/// All buffers together never grow beyond this part of the memory of the host.
const MEMORY_SHARE: u64 = 16;

/// How long putting the kernel in order may take: each probe costs it a grace period.
const KERNEL_GRACE: Duration = Duration::from_secs(45);

/// How long the disk may take for the last of the history.
const HISTORY_GRACE: Duration = Duration::from_secs(15);

/// How long connections may take to close once their streams have ended. A client that says nothing would never close its own.
const CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// A running daemon.
#[derive(Debug)]
pub struct App {
    engine: Engine,
    front: Front,
}

/// What clients talk to.
#[derive(Debug)]
struct Front {
    tasks: Tasks,
    health: HealthReporter,
    socket: PathBuf,
    /// Held as long as the daemon runs.
    _lock: StateLock,
}

/// What has to be taken down in order, as far as it was started.
#[derive(Debug, Default)]
struct Engine {
    hub: Option<Arc<Hub>>,
    history: Option<Arc<History>>,
    control: Option<ControlHandle>,
}

impl Engine {
    /// Leaves the kernel as configured, ends every stream, and writes the rest of the history. Answers whether the kernel is as it should be.
    async fn stop(self) -> bool {
        let done = match self.control {
            // Ends the hub too, and with it every stream.
            Some(control) => tokio::time::timeout(KERNEL_GRACE, control.stop()).await.is_ok(),
            None => true,
        };
        if let Some(hub) = self.hub {
            hub.close();
        }
        if let Some(history) = self.history
            && tokio::time::timeout(HISTORY_GRACE, history.stop()).await.is_err()
        {
            tracing::error!("the disk does not take the last of the history: it may be missing");
        }
        done
    }
}

impl App {
    /// Starts everything. When this returns, clients can connect, and every acknowledged probe is back. When it fails, the kernel is left as
    /// it is when the daemon stops.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let mut engine = Engine::default();
        match Self::build(config, &mut engine).await {
            Ok(front) => Ok(Self { engine, front }),
            Err(error) => {
                engine.stop().await;
                Err(error)
            }
        }
    }

    async fn build(config: &Config, engine: &mut Engine) -> Result<Front, StartError> {
        let start = SystemTime::now();
        let store = Store::open(&config.state.directory).await?;
        let lock = StateLock::take(&config.state.directory, &config.listen.unix)?;
        let mounts = Mounts::default();
        let procfs = PathBuf::from("/proc");
        let host = HostIdentity::read(&procfs)?;
        let mounted = mounts.find_or_mount()?;
        let tracefs = mounted.tracefs.clone();
        let sysfs = PathBuf::from("/sys");
        let own_types = KernelTypes::new(&sysfs).available();
        let features = Features::from_readme(&tracefs.readme()?)
            .with_types(own_types)
            .with_version(&host.kernel_release, &host.kernel_version);
        let instance_options = InstanceOptions {
            name: config.tracing.instance.clone(),
            buffer_kib: config.tracing.buffer_kib,
            buffer_max_kib: config.tracing.buffer_max_kib.min(memory_share_kib()?),
            sub_buffer_kib: config.tracing.sub_buffer_kib,
            clock: TRACE_CLOCK,
        };
        let (instance, claim) =
            Instance::open_or_create(&tracefs, &instance_options).map_err(|error| in_use(error, &procfs))?;
        let instance_options = instance_options.grown_to(instance.buffer_kib()?);
        let cpus = instance.cpus()?.len();
        let current_instance = Arc::new(CurrentInstance::new(instance.clone()));
        // A probe on a function that reading events takes would otherwise feed itself for ever. Later threads are children of these.
        instance.exclude_tasks(&threads_of_this_process(&procfs)?)?;
        let paths = KernelPaths {
            procfs: procfs.clone(),
            sysfs,
            debugfs: mounts.debugfs.clone(),
            tracefs: tracefs.root().to_owned(),
        };
        let facts = Arc::new(FactsCache::new(paths));
        let registry = Arc::<Registry>::default();
        let checker = Checker::new(features, Arc::clone(&facts))
            .with_names(Names::new(tracefs.clone(), Arc::clone(&registry)));
        let checker = Arc::new(if tracefs.has_kprobe_events() {
            checker
        } else {
            tracing::warn!("this kernel has no kprobe events: only its own events can be recorded");
            checker.without_kprobe_events()
        });
        let hub = Arc::new(Hub::new(Binder::new(host.hostname.clone(), Some(Arc::clone(&facts)))));
        engine.hub = Some(Arc::clone(&hub));
        let boot_id = BootId::from_str(&host.boot_id).map_err(StartError::BootId)?;
        let history = match config.spool.options(&config.state) {
            // Before anything is published, so that everything goes there.
            Some(options) => Some(Arc::new(History::start(options, boot_id, &hub)?)),
            None => None,
        };
        engine.history.clone_from(&history);
        let epoch = start.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let epoch =
            history.as_ref().map_or(u64::try_from(epoch).unwrap_or(u64::MAX), |history| history.epoch());
        let controller = Controller::start(ControllerParts {
            mounted,
            instance,
            claim,
            instance_options,
            current_instance: Arc::clone(&current_instance),
            store: store.clone(),
            facts: Arc::clone(&facts),
            checker: Arc::clone(&checker),
            registry: Arc::clone(&registry),
            hub: Arc::clone(&hub),
            host: host.clone(),
            procfs: procfs.clone(),
            on_exit: config.tracing.on_exit,
            sample_interval: config.state.sample_interval(),
            sample_retention: config.state.sample_retention(),
        })
        .await?;
        let info = HostInfo { host: host.clone(), cpus, start, tracefs: tracefs.root().to_owned() };
        let (control, queue) = Controller::channel();
        let runtime = tokio::runtime::Handle::current();
        // Writing to the kernel blocks for up to a tenth of a second: not on the async runtime.
        thread::Builder::new()
            .name("kprobed-control".to_owned())
            .spawn(move || runtime.block_on(controller.run(queue)))
            .map_err(StartError::Thread)?;
        engine.control = Some(control.clone());

        let observer = Observer {
            tracefs: tracefs.clone(),
            instance: Arc::clone(&current_instance),
            procfs: procfs.clone(),
        };
        let states = ProbeStates { observer, control: control.clone() };
        let doctor = Doctor {
            tracefs,
            instance: current_instance,
            facts: Arc::clone(&facts),
            registry: Arc::clone(&registry),
            procfs,
            lockdown: "/sys/kernel/security/lockdown".into(),
        };
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let code = CodeServer { checker: Arc::clone(&checker), registry: Arc::clone(&registry) };
        let events_registry = Arc::clone(&registry);
        let probes = ProbeServer {
            control: control.clone(),
            registry,
            states: states.clone(),
            checker: Arc::clone(&checker),
            store,
        };
        let filter_features = filter_features(&host);
        let log = Log { history: history.clone(), now: Cursor { boot_id, epoch, sequence: 0 } };
        let events = EventServer {
            hub,
            control: control.clone(),
            registry: events_registry,
            host,
            filter_features,
            log,
        };
        let services = Routes::new(ProbeServiceServer::new(probes))
            .add_service(AggregationServiceServer::new(AggregationServer { control: control.clone() }))
            .add_service(CodeServiceServer::new(code))
            .add_service(EventRoutes::new(events))
            .add_service(SourceServiceServer::new(SourceServer { control: control.clone() }))
            .add_service(TypeServiceServer::new(TypeServer { facts }))
            .add_service(HostServiceServer::new(HostServer {
                info,
                doctor: Arc::new(doctor),
                states,
                checker,
            }))
            .add_service(health_service)
            .add_service(reflection);
        health.set_service_status("", tonic_health::ServingStatus::Serving).await;

        let tasks = Tasks::default();
        listen(&config.listen, &services, &tasks).await?;
        Ok(Front { tasks, health, socket: config.listen.unix.clone(), _lock: lock })
    }

    /// Takes everything down: no new work, then the kernel as configured, then streams end and connections close. Answers whether the
    /// kernel is as it should be.
    pub async fn stop(self) -> bool {
        self.front.health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        let done = self.engine.stop().await;
        if !self.front.tasks.stop(CONNECTION_GRACE).await {
            tracing::info!("cutting connections that their clients did not close");
        }
        if let Err(error) = std::fs::remove_file(&self.front.socket) {
            tracing::debug!(%error, "the socket is gone already");
        }
        done
    }
}

/// What the buffer of one CPU may grow to, in KiB, going by the memory of the host.
fn memory_share_kib() -> Result<u64, StartError> {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).map_err(StartError::Memory)?.unwrap_or(1);
    let share_kib = sysinfo().map_err(StartError::Memory)?.ram_total() / MEMORY_SHARE / 1024;
    Ok(share_kib / u64::try_from(cpus).unwrap_or(1).max(1))
}

/// What the kernel's own filters know (kernel/trace/trace_events_filter.c). Names of tasks are left to the daemon, which compares those
/// that clients see.
fn filter_features(host: &HostIdentity) -> KernelFilterFeatures {
    let since = |release| host.kernel_numbers().is_some_and(|numbers| numbers >= release);
    KernelFilterFeatures { functions: since((6, 4)), cpu_lists: since((6, 6)), task_names: false }
}

impl From<LockError> for StartError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { path, holder } => Self::AlreadyRunning { path, holder },
            LockError::Io { path, source } => Self::Listen { address: path.display().to_string(), source },
        }
    }
}

/// Says who has the instance.
fn in_use(error: ClaimError, procfs: &Path) -> StartError {
    match error {
        ClaimError::Held { path, pid } => {
            StartError::InstanceInUse { path, holder: Holder::of_process(procfs, pid) }
        }
        ClaimError::Tracefs(error) => error.into(),
    }
}

async fn listen(listen: &Listen, services: &Routes, tasks: &Tasks) -> Result<(), StartError> {
    let unix = bind_unix(&listen.unix, &listen.group)?;
    tracing::info!(socket = %listen.unix.display(), "listening");
    let stopping = tasks.stopping().clone();
    let router = server().add_routes(services.clone());
    tasks.spawn("unix", async move {
        let incoming = UnixListenerStream::new(unix);
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, stopping.cancelled_owned()).await {
            tracing::error!(%error, "the unix socket has failed");
        }
    });
    let Some(address) = listen.tcp else { return Ok(()) };
    let tcp = TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address: address.to_string(), source })?;
    let mut server = server();
    if let Some(tls) = &listen.tls {
        server = server.tls_config(tls_config(tls)?).map_err(StartError::Tls)?;
    }
    let local: SocketAddr = tcp.local_addr().unwrap_or(address);
    tracing::info!(address = %local, tls = listen.tls.is_some(), "listening");
    let stopping = tasks.stopping().clone();
    let server: Router = server.add_routes(services.clone());
    tasks.spawn("tcp", async move {
        let incoming = TcpListenerStream::new(tcp);
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stopping.cancelled_owned()).await {
            tracing::error!(%error, "the tcp socket has failed");
        }
    });
    Ok(())
}

/// Keep-alive finds peers that have vanished: a stream to such a peer would otherwise hold its queue for ever.
fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
}

fn tls_config(tls: &Tls) -> Result<ServerTlsConfig, StartError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| StartError::Certificate { path: path.to_owned(), source })
    };
    let identity = Identity::from_pem(read(&tls.certificate)?, read(&tls.key)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(read(&tls.client_ca)?)))
}

/// Binds the socket so that nobody but root and the group can ever open it: it gets its name only after its rights.
fn bind_unix(path: &Path, group: &str) -> Result<UnixListener, StartError> {
    let failed = |source| StartError::Listen { address: path.display().to_string(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let unnamed = path.with_extension("new");
    for stale in [path, unnamed.as_path()] {
        match std::fs::remove_file(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&unnamed).map_err(failed)?;
    let gid = Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    if gid.is_none() {
        tracing::info!(group, "no such group: the socket is root's alone");
    }
    std::fs::set_permissions(
        &unnamed,
        std::fs::Permissions::from_mode(if gid.is_some() { 0o660 } else { 0o600 }),
    )
    .map_err(failed)?;
    if gid.is_some() {
        chown(&unnamed, None, gid).map_err(failed)?;
    }
    std::fs::rename(&unnamed, path).map_err(failed)?;
    Ok(listener)
}
