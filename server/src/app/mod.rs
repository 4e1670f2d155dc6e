//! The composition root: builds every part of the daemon, starts them, and stops them in order.
//!
//! Owns the order and the time that each part has to stop. Never does the work of a part. If a part
//! does not start, the ones before it are stopped as they are at the end of the daemon.

mod lock;
mod opened;
#[cfg(test)]
#[cfg(feature = "nats")]
mod tests;
mod watchdog;

pub use crate::start_error::StartError;
pub use watchdog::Watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;
use tonic_health::server::HealthReporter;

use crate::auditor::Auditor;
use crate::auth::LiveTls;
use crate::config::{CheckedConfig, Config, HostSize, Problem, SettingChange, changes, tls_settings};
use crate::declared::Keeper;
use crate::doctor::{Doctor, LOCKDOWN, SkippedRuns};
use crate::export::metrics::Sources;
use crate::export::{self, ExportParts};
use crate::front::{self, Gate, Inherited};
use crate::health::{Declarations, LabelsFile, Reloads, Storage};
use crate::rpc::{self, Access, EventServer, HostInfo, Services};
use crate::sandbox;
use crate::shutdown::Tasks;
use kprobed_audit::{Action, Entry};
use kprobed_control::ProbeStates;
use kprobed_control::auth::{AuditQueue, Caller, Rights};
use kprobed_control::store::Store;
use kprobed_control::{
    ControlHandle, Controller, ControllerParts, Costs, Foreign, Holds, Names, Observer, Registry,
};
use kprobed_host::kernel::btf::KernelTypes;
use kprobed_host::kernel::{BuildIds, FactsCache, HostIdentity, KernelPaths, TRACE_CLOCK};
use kprobed_host::tracefs::{
    Claim, ClaimError, CurrentInstance, Instance, InstanceOptions, Mounted, Mounts, Tracefs,
};
use kprobed_lang::definition::Features;
use kprobed_rights::Roles;
use kprobed_trace::feed::Log;
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::history::History;
use kprobed_trace::pipeline::{Binder, Hub};
use kprobed_trace::spool::{BootId, Cursor};
use kprobed_verdict::checker::Checker;

use self::lock::{Holder, StateLock};

/// How long putting the kernel in order may take: each probe costs it a grace period.
const KERNEL_GRACE: Duration = Duration::from_secs(45);

/// How long the disk may take for the last of the history.
const HISTORY_GRACE: Duration = Duration::from_secs(15);

/// How long exporters may take to send what they have read, and how long those that have not may take to end.
const EXPORT_GRACE: Duration = Duration::from_secs(1);

/// How long the database may take for the last entries of the audit log, and to close.
const DATABASE_GRACE: Duration = Duration::from_secs(5);

/// How long connections may take to close once their streams have ended. A client that says nothing
/// would never close its own.
const CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// What was made before the first thread.
#[derive(Debug)]
pub struct Prepared {
    mounted: Mounted,
    inherited: Inherited,
    /// Other daemons of the host.
    others: Vec<Holder>,
}

/// A running daemon.
#[derive(Debug)]
pub struct App {
    engine: Engine,
    /// Those of the parts that serve clients.
    tasks: Tasks,
    health: HealthReporter,
    /// The socket that the daemon has made.
    socket: Option<PathBuf>,
    rights: Arc<Rights>,
    tls: Option<Arc<LiveTls>>,
    reloads: Arc<Reloads>,
    watched: Watched,
    /// Held as long as the daemon runs.
    _lock: StateLock,
}

/// The parts that must be stopped in order, as far as they were started.
#[derive(Debug, Default)]
struct Engine {
    hub: Option<Arc<Hub>>,
    history: Option<Arc<History>>,
    control: Option<ControlHandle>,
    /// The exporters of events. Each ends with the hub, and stores how far it has come.
    exporting: Tasks,
    /// Writes the audit log.
    auditing: Tasks,
    /// Is closed last: all others write to it.
    store: Option<Store>,
}

impl Engine {
    /// Leaves the kernel as configured, ends every stream, writes the rest of the audit log and of the history, and
    /// closes the database. Returns whether the kernel is as it should be.
    async fn stop(self) -> bool {
        let done = match self.control {
            // Ends the hub too, and with it every stream.
            Some(control) => tokio::time::timeout(KERNEL_GRACE, control.stop()).await.is_ok(),
            None => true,
        };
        if let Some(hub) = self.hub {
            hub.close();
        }
        // Those whose receiver does not answer would not end by themselves.
        if !self.exporting.ended(EXPORT_GRACE).await && !self.exporting.stop(EXPORT_GRACE).await {
            tracing::error!("an exporter does not end: its last events may be sent again");
        }
        if !self.auditing.stop(DATABASE_GRACE).await {
            tracing::error!("cannot write the end of the audit log: its last refusals may be missing");
        }
        if let Some(history) = self.history
            && tokio::time::timeout(HISTORY_GRACE, history.stop()).await.is_err()
        {
            tracing::error!("cannot write the end of the history: its last events may be missing");
        }
        if let Some(store) = self.store
            && tokio::time::timeout(DATABASE_GRACE, store.close()).await.is_err()
        {
            tracing::error!("cannot close the database: the next start has more to read");
        }
        done
    }
}

impl App {
    /// What the thread does that starts all others: taking over the sockets of the service manager, and mounting
    /// tracefs and debugfs where no program has. After that, this thread and those that it starts have the
    /// privileges and the files that the sandbox leaves. `path` is the file of the configuration, which is read again.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn prepare(config: &Config, path: Option<&Path>) -> Result<Prepared, StartError> {
        let inherited = Inherited::take(&config.listen)?;
        let mounted = Mounts::default().find_or_mount()?;
        front::join_group(&config.listen.group);
        sandbox::drop_privileges(config.sandbox.mode)?;
        // A right on a directory is given only while it is there.
        lock::make_directory(&config.state.directory)?;
        if let Some(directory) = config.listen.unix.parent()
            && let Err(error) = std::fs::create_dir_all(directory)
        {
            tracing::debug!(%error, "cannot make the directory of the socket");
        }
        let others = Holder::all(&config.tracing.procfs);
        sandbox::restrict_files(config.sandbox.mode, &opened::files(config, path, &mounted))?;
        Ok(Prepared { mounted, inherited, others })
    }

    /// Starts everything. When this returns, clients can connect, and every acknowledged probe is
    /// back. When it fails, the kernel is left as it is when the daemon stops. `streams` has the threads that serve
    /// event streams.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(
        config: &Config,
        roles: Roles,
        prepared: Prepared,
        streams: &Handle,
    ) -> Result<Self, StartError> {
        let mut engine = Engine::default();
        let built = Self::build(config, roles, prepared, (streams, &mut engine)).await;
        if built.is_err() {
            engine.stop().await;
        }
        built
    }

    async fn build(
        config: &Config,
        roles: Roles,
        Prepared { mounted, inherited, others }: Prepared,
        (streams, engine): (&Handle, &mut Engine),
    ) -> Result<Self, StartError> {
        let (start, started) = (SystemTime::now(), Instant::now());
        let directory = &config.state.directory;
        // First: a database that another daemon works with is not touched.
        let lock = StateLock::take(directory, &config.listen.unix)?;
        let no_database = |error| StartError::database(directory, &error);
        let store = Store::open(directory, start).await.map_err(no_database)?;
        engine.store = Some(store.clone());
        let procfs = config.tracing.procfs.clone();
        let host = HostIdentity::read(&procfs)?;
        let tracefs = mounted.tracefs.clone();
        let sysfs = PathBuf::from("/sys");
        let own_types = KernelTypes::new(&sysfs).available();
        let features = Features::from_readme(&tracefs.readme()?)
            .with_types(own_types)
            .with_version(&host.kernel_release, &host.kernel_version);
        let host_size = HostSize::here()?;
        let instance_options = InstanceOptions {
            name: config.tracing.instance.clone(),
            buffer_kib: config.tracing.buffer_kib,
            buffer_max_kib: config.tracing.buffer_max_kib.min(host_size.most_grown_kib()),
            sub_buffer_kib: config.tracing.sub_buffer_kib,
            clock: TRACE_CLOCK,
        };
        let (instance, claim) =
            open_instance(&tracefs, &instance_options, host_size, (&procfs, directory, &others))?;
        let instance_options = instance_options.grown_to(instance.buffer_kib()?);
        let cpus = instance.cpus()?.len();
        let current_instance = Arc::new(CurrentInstance::new(instance.clone()));
        // A probe on a function that the reader calls would otherwise cause its own events without
        // end. Later threads are children of these.
        instance.exclude_this_process(&procfs)?;
        let paths = KernelPaths {
            procfs: procfs.clone(),
            sysfs: sysfs.clone(),
            debugfs: Mounts::default().debugfs,
            tracefs: tracefs.root().to_owned(),
        };
        let facts = Arc::new(FactsCache::new(paths));
        let registry = Arc::<Registry>::default();
        let checker = Checker::new(features, Arc::clone(&facts))
            .with_names(Arc::new(Names::new(tracefs.clone(), Arc::clone(&registry))));
        let had_kprobe_events = tracefs.has_kprobe_events();
        let checker = Arc::new(if had_kprobe_events {
            checker
        } else {
            tracing::warn!("this kernel has no kprobe events: only its own events can be recorded");
            checker.without_kprobe_events()
        });
        let hub = Arc::new(Hub::with_queue_memory(
            Binder::new(host.hostname.clone(), Some(Arc::clone(&facts))),
            config.listen.queue_memory_mib << 20,
        ));
        engine.hub = Some(Arc::clone(&hub));
        let boot_id = host.boot_id.parse::<BootId>().map_err(|error| StartError::new(error.to_string()))?;
        // Before anything is published, so that everything goes there.
        let history = config.spool.options(&config.state);
        let history = history.map(|spool| History::start(spool, boot_id, &hub)).transpose()?.map(Arc::new);
        engine.history.clone_from(&history);
        // Before a probe is made or brought back.
        let unknown_uids = match &history {
            Some(history) => store.continue_uids_after(history.highest_uid()).await.map_err(no_database)?,
            None => 0,
        };
        if unknown_uids > 0 {
            tracing::error!(
                probes = unknown_uids,
                "the history knows probes that the database has never had: it was removed or emptied, or is an older copy"
            );
        }
        let epoch = start.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let epoch =
            history.as_ref().map_or(u64::try_from(epoch).unwrap_or(u64::MAX), |history| history.epoch());
        let holds = Arc::<Holds>::default();
        let (audit, inbox) = AuditQueue::new();
        let rights = Arc::new(Rights::new(roles, audit));
        let auditor = Auditor { store: store.clone(), inbox, most: config.audit.max_entries };
        engine.auditing.spawn("audit", auditor.run(engine.auditing.stopping().clone()));
        let costs = Arc::<Costs>::default();
        let controller = Controller::start(ControllerParts {
            mounted,
            instance,
            claim,
            instance_options,
            current_instance: Arc::clone(&current_instance),
            store: store.clone(),
            facts: Arc::clone(&facts),
            checker: Arc::clone(&checker),
            rights: Arc::clone(&rights),
            registry: Arc::clone(&registry),
            hub: Arc::clone(&hub),
            host: host.clone(),
            procfs: procfs.clone(),
            sysfs: sysfs.clone(),
            on_exit: config.tracing.on_exit,
            sample_interval: Duration::from_secs(config.state.sample_interval_s),
            hit_retention: config.state.hit_retention(),
            repair_interval: config.reconcile.interval(),
            holds: Arc::clone(&holds),
            lease_keep: Duration::from_secs(config.leases.keep_listed_s),
            budget: config.budget.settings(),
            costs: Arc::clone(&costs),
        })
        .await?;
        let info = HostInfo {
            host: host.clone(),
            cpus,
            start,
            started,
            build_ids: Arc::new(BuildIds::read(&procfs, &sysfs)),
        };
        let (control, queue) = Controller::channel();
        let readers = controller.reader_pulse();
        let runtime = Handle::current();
        // Writing to the kernel blocks for up to a tenth of a second: not on the async runtime.
        thread::Builder::new()
            .name("kprobed-control".to_owned())
            .spawn(move || runtime.block_on(controller.run(queue)))
            .map_err(|error| StartError::thread(&error))?;
        engine.control = Some(control.clone());

        let mut observer =
            Observer::new(tracefs.clone(), Arc::clone(&current_instance), procfs.clone(), sysfs);
        observer.repaired_every = config.reconcile.interval();
        let states = ProbeStates { observer, control: control.clone(), registry: Arc::clone(&registry) };
        let foreign = Foreign {
            tracefs: tracefs.clone(),
            registry: Arc::clone(&registry),
            checker: Arc::clone(&checker),
            own_instances: Instance::both_names(&config.tracing.instance),
        };
        let counts = tracefs.hit_counts().unwrap_or_default();
        let doctor = Doctor {
            skipped: SkippedRuns::since(SystemTime::now(), counts, host.kernel_numbers()),
            tracefs,
            instance: current_instance,
            facts: Arc::clone(&facts),
            registry: Arc::clone(&registry),
            procfs,
            lockdown: LOCKDOWN.into(),
            had_kprobe_events,
        };
        let storage = Storage {
            store: store.clone(),
            state_directory: config.state.directory.clone(),
            history: history
                .clone()
                .zip(config.spool.options(&config.state).map(|options| options.directory)),
            unknown_uids,
        };
        let declarations = Arc::<Declarations>::default();
        let reloads = Arc::<Reloads>::default();
        let keeper = Keeper {
            directory: config.declarations.directory.clone(),
            control: control.clone(),
            registry: Arc::clone(&registry),
            checker: Arc::clone(&checker),
            declarations: Arc::clone(&declarations),
        };
        let access = Access { rights: Arc::clone(&rights), registry: Arc::clone(&registry) };
        let filter_features = filter_features(&host);
        let labels = Arc::new(LabelsFile::new(config.host.labels_file.clone()));
        let log = Log { history: history.clone(), now: Cursor { boot_id, epoch, sequence: 0 } };
        let tasks = Tasks::default();
        let parts = ExportParts {
            hub: Arc::clone(&hub),
            log: log.clone(),
            store: store.clone(),
            host: host.clone(),
            labels: Arc::clone(&labels),
            tasks: engine.exporting.clone(),
            threads: streams.clone(),
        };
        let exporters = export::open(&config.export, &parts)?;
        let tls = config.listen.tls.as_ref().map(tls_settings).transpose()?;
        let tls = tls.map(|settings| Arc::new(LiveTls::new(settings)));
        let figures = Sources {
            control: control.clone(),
            registry,
            history,
            exporters: exporters.clone(),
            store,
            tls: tls.clone(),
            kernel_release: host.kernel_release.clone(),
            procfs: config.tracing.procfs.clone(),
            labels: Arc::clone(&labels),
        };
        export::serve(&config.export, figures, &host, &tasks).await?;
        let events = EventServer {
            hub: Arc::clone(&hub),
            exporters: exporters.clone(),
            control: control.clone(),
            host,
            filter_features,
            log,
            access: access.clone(),
        };
        let services = Services {
            control: control.clone(),
            access,
            states,
            checker,
            costs,
            foreign,
            holds,
            vanished_after: front::VANISHED_AFTER,
            info,
            doctor,
            storage,
            declarations,
            reloads: Arc::clone(&reloads),
            exporters,
            export_filters: export::filters(&config.export),
            hub,
            tls: tls.clone(),
            labels,
        };
        let (routes, health) = rpc::routes(services, events)
            .map_err(|error| StartError::new(format!("cannot describe the API to its clients: {error}")))?;
        health.set_service_status("", tonic_health::ServingStatus::Serving).await;

        tasks.spawn("declarations", keeper.run(tasks.stopping().clone()));
        let procfs = config.tracing.procfs.clone();
        let gate = Gate { rights: Arc::clone(&rights), procfs, tls: tls.clone() };
        let sockets = front::bind(&config.listen, inherited).await?;
        let socket = sockets.path.clone();
        // All sockets are open, and no request was served.
        sandbox::filter_calls(config.sandbox.mode)?;
        front::serve(sockets, &config.listen, routes, &tasks, streams, gate);
        let watched = Watched { control, readers, streams: streams.clone() };
        let engine = std::mem::take(engine);
        Ok(Self { engine, tasks, health, socket, rights, tls, reloads, watched, _lock: lock })
    }

    /// Puts roles and certificates in force that have changed, and says so in the audit log. Returns all
    /// that differs; some of it needs a restart.
    ///
    /// # Errors
    /// [`Problem`] if the certificates cannot be used: then nothing has changed.
    pub fn reload(&self, before: &CheckedConfig, now: &CheckedConfig) -> Result<Vec<SettingChange>, Problem> {
        if let (Some(live), Some(files)) = (&self.tls, &now.config.listen.tls) {
            // The files can have changed behind the same names.
            live.replace(tls_settings(files)?);
        }
        if before.roles != now.roles {
            self.rights.replace(now.roles.clone());
            if let Some(hub) = &self.engine.hub {
                hub.selections_changed();
            }
            let roles: Vec<_> = now.roles.all().iter().map(|role| role.name.as_str()).collect();
            tracing::info!(?roles, "other roles apply");
        }
        let changes = changes(&before.file, &now.file);
        let settings: Vec<_> = changes.iter().map(|change| change.setting.as_str()).collect();
        let waiting = changes.iter().filter(|change| change.needs_restart);
        self.reloads.made(&waiting.map(|change| change.setting.as_str()).collect::<Vec<_>>());
        let reason = match settings.as_slice() {
            [] => "no setting has changed".to_owned(),
            settings => format!("changed settings: {}", settings.join(", ")),
        };
        let caller = Caller::daemon();
        self.rights.audit().note(Entry {
            change: "reload".to_owned(),
            operation: caller.operation.to_string(),
            reason,
            ..Entry::new(Action::Changed, caller.principal.to_string())
        });
        Ok(changes)
    }

    /// Notes for the checks of the host that a reload failed.
    pub fn not_reloaded(&self, error: &str) {
        self.reloads.refused(error);
    }

    /// The threads that the daemon cannot do without, for the watchdog.
    pub fn watched(&self) -> Watched {
        self.watched.clone()
    }

    /// Takes everything down: no new work, then the kernel as configured, then streams end and
    /// connections close. Returns whether the kernel is as it should be.
    pub async fn stop(self) -> bool {
        self.health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        let done = self.engine.stop().await;
        if !self.tasks.stop(CONNECTION_GRACE).await {
            tracing::info!("closing connections that clients left open");
        }
        if let Some(socket) = &self.socket
            && let Err(error) = std::fs::remove_file(socket)
        {
            tracing::debug!(%error, "cannot remove the socket");
        }
        done
    }
}

/// Features of the kernel's own filters (kernel/trace/trace_events_filter.c).
fn filter_features(host: &HostIdentity) -> KernelFilterFeatures {
    let since = |release| host.kernel_numbers().is_some_and(|numbers| numbers >= release);
    KernelFilterFeatures { functions: since((6, 3)), cpu_lists: since((6, 6)) }
}

/// Opens the instance, or makes it. Removes one that could not be made completely.
fn open_instance(
    tracefs: &Tracefs,
    options: &InstanceOptions,
    host: HostSize,
    (procfs, own, others): (&Path, &Path, &[Holder]),
) -> Result<(Instance, Claim), StartError> {
    let is_there = || Instance::find(tracefs, &options.name);
    let was_there = is_there().is_some();
    Instance::open_or_create(tracefs, options).map_err(|error| match error {
        // Not ours to remove, whatever it was made from.
        ClaimError::Held { path, pid } => {
            let holder = Holder::of(procfs, pid, others);
            let message = format!(
                "another kprobed uses the tracing instance `{}`: {holder}; this one has the state directory `{}`",
                path.display(),
                own.display()
            );
            StartError::new(message).fix("stop it, or set `tracing.instance` to another name")
        }
        ClaimError::Tracefs(source) => {
            if let (false, Some(begun)) = (was_there, is_there())
                && let Err(error) = begun.remove()
            {
                tracing::warn!(%error, "cannot remove an incomplete trace instance");
            }
            if source.errno() == nix::errno::Errno::ENOMEM as i32 {
                StartError::buffers(options.buffer_kib, host)
            } else {
                source.into()
            }
        }
    })
}
