//! A daemon of the crash tests: control and the database, without what serves clients.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kprobed_fake::{FakeKernel, Life};
use kprobed_host::kernel::{FactsCache, HostIdentity, SymbolTable, TRACE_CLOCK};
use kprobed_host::tracefs::{CurrentInstance, Instance, InstanceOptions, Mounted};
use kprobed_lang::definition::Features;
use kprobed_rights::Roles;
use kprobed_trace::pipeline::{Binder, Hub};
use kprobed_verdict::checker::Checker;

use crate::auth::{AuditQueue, Caller, Rights};
use crate::store::tests::disk::{Cut, Disk};
use crate::store::tests::simulated;
use crate::store::{HitRetention, Store};
use crate::{
    BudgetSettings, ControlHandle, Controller, ControllerParts, Costs, Holds, Names, Observer, OnExit, Probe,
    ProbeStates, Registry,
};

#[allow(
    dead_code,
    clippy::duplicate_mod,
    clippy::allow_attributes,
    reason = "other tests have it too, and need more of it"
)]
#[path = "../../../../fixtures/world.rs"]
mod world;

/// Functions of the kernel in memory, whose code the facts have.
const FUNCTIONS: [&str; 3] = ["vfs_read", "do_sys_openat2", "tcp_sendmsg"];

/// Trace events of its own.
pub(super) const EVENTS: &[&str] = &["sched/sched_process_exec", "sched/sched_process_exit"];

/// The trace instance of the daemon.
pub(super) const INSTANCE: &str = "kprobed";

/// What all daemons know of their kernel: reading it takes longer than a case.
pub(super) struct Facts {
    _worlds: [world::World; 2],
    now: Arc<FactsCache>,
    /// Of another kernel, on which functions have other code.
    before: Arc<FactsCache>,
    procfs: PathBuf,
    sysfs: PathBuf,
    /// Where the functions of the kernel in memory are.
    pub(super) functions: Vec<(&'static str, u64)>,
    /// And on the kernel before.
    pub(super) functions_before: Vec<(&'static str, u64)>,
}

impl Facts {
    pub(super) fn new() -> Self {
        let worlds = ["6.12", "6.1"].map(|series| world::world(series, ""));
        // The build id tells one kernel from the other.
        for (world, build) in worlds.iter().zip([1, 2]) {
            let notes = world.paths.sysfs.join("kernel/notes");
            fs::create_dir_all(notes.parent().unwrap()).unwrap();
            let mut note: Vec<u8> = [4_u32, 20, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
            note.extend(b"GNU\0");
            note.extend([build; 20]);
            fs::write(notes, note).unwrap();
        }
        let [now, before] =
            [&worlds[0], &worlds[1]].map(|world| Arc::new(FactsCache::new(world.paths.clone())));
        let (procfs, sysfs) = (worlds[0].paths.procfs.clone(), worlds[0].paths.sysfs.clone());
        fs::create_dir_all(procfs.join("self/task/1")).unwrap();
        fs::create_dir_all(procfs.join("1")).unwrap();
        let [functions, functions_before] = ["6.12", "6.1"].map(|series| {
            let symbols = SymbolTable::parse(&world::stored(&format!("kallsyms-{series}.txt.gz")));
            FUNCTIONS.map(|name| (name, symbols.lookup(name, None).unwrap().address)).to_vec()
        });
        Self { _worlds: worlds, now, before, procfs, sysfs, functions, functions_before }
    }
}

/// A daemon that was started, or is about to be.
pub(super) struct Daemon {
    pub(super) kernel: FakeKernel,
    pub(super) disk: Arc<Disk>,
    pub(super) life: Arc<Life>,
    running: Option<Running>,
}

struct Running {
    control: ControlHandle,
    states: ProbeStates,
    holds: Arc<Holds>,
    opened: simulated::Opened,
    thread: std::thread::JoinHandle<()>,
}

impl Daemon {
    /// A process that has done nothing yet.
    pub(super) fn begin(kernel: &FakeKernel, disk: &Arc<Disk>) -> Self {
        let kernel = kernel.process();
        let life = Arc::clone(kernel.life().unwrap());
        let disk = disk.after(Cut::Nothing);
        disk.belongs_to(&life);
        Self { kernel, disk, life, running: None }
    }

    pub(super) async fn start(kernel: &FakeKernel, disk: &Arc<Disk>, facts: &Facts) -> Result<Self, String> {
        let mut daemon = Self::begin(kernel, disk);
        daemon.go_on(facts).await?;
        Ok(daemon)
    }

    /// Over the kernel that was there before.
    pub(super) async fn start_before(
        kernel: &FakeKernel,
        disk: &Arc<Disk>,
        facts: &Facts,
    ) -> Result<Self, String> {
        let mut daemon = Self::begin(kernel, disk);
        daemon.running = Some(daemon.run(facts, &facts.before).await?);
        Ok(daemon)
    }

    /// Starts the process.
    pub(super) async fn go_on(&mut self, facts: &Facts) -> Result<(), String> {
        self.running = Some(self.run(facts, &facts.now).await?);
        Ok(())
    }

    async fn run(&self, facts: &Facts, of_kernel: &Arc<FactsCache>) -> Result<Running, String> {
        fn said(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        let opened = simulated::open(&self.disk).await.map_err(said)?;
        let store = opened.store.clone();
        let tracefs = self.kernel.tracefs();
        let instance_options = InstanceOptions {
            name: INSTANCE.to_owned(),
            buffer_kib: 64,
            buffer_max_kib: 0,
            sub_buffer_kib: 0,
            clock: TRACE_CLOCK,
        };
        let (instance, claim) = Instance::open_or_create(&tracefs, &instance_options).map_err(said)?;
        instance.exclude_this_process(&facts.procfs).map_err(said)?;
        let current_instance = Arc::new(CurrentInstance::new(instance.clone()));
        let registry = Arc::<Registry>::default();
        let features = Features::from_readme(&tracefs.readme().map_err(said)?);
        let names = Names::new(tracefs.clone(), Arc::clone(&registry));
        let checker = Arc::new(Checker::new(features, Arc::clone(of_kernel)).with_names(Arc::new(names)));
        let binder = Binder::new("here".to_owned(), Some(Arc::clone(of_kernel)));
        let holds = Arc::<Holds>::default();
        let controller = Controller::start(ControllerParts {
            mounted: Mounted { tracefs: tracefs.clone() },
            instance,
            claim,
            instance_options,
            current_instance: Arc::clone(&current_instance),
            store,
            facts: Arc::clone(of_kernel),
            checker,
            rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
            registry: Arc::clone(&registry),
            hub: Arc::new(Hub::new(binder)),
            host: HostIdentity {
                hostname: "here".to_owned(),
                kernel_release: "6.12.0".to_owned(),
                kernel_version: "#1 SMP".to_owned(),
                machine: "x86_64".to_owned(),
                boot_id: "00000000-0000-4000-8000-000000000001".to_owned(),
            },
            procfs: facts.procfs.clone(),
            sysfs: facts.sysfs.clone(),
            on_exit: OnExit::Restore,
            sample_interval: Duration::from_hours(1),
            hit_retention: HitRetention {
                minutes: Duration::from_hours(24),
                hours: Duration::from_hours(24),
            },
            repair_interval: None,
            holds: Arc::clone(&holds),
            lease_keep: Duration::from_hours(1),
            budget: BudgetSettings {
                probe_ns_per_s: Some(500_000_000),
                host_ns_per_s: None,
                calibrate: false,
            },
            costs: Arc::<Costs>::default(),
        })
        .await
        .map_err(said)?;
        let (control, queue) = Controller::channel();
        let observer = Observer::new(tracefs, current_instance, facts.procfs.clone(), facts.sysfs.clone());
        let states = ProbeStates { observer, control: control.clone(), registry };
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::spawn(move || runtime.block_on(controller.run(queue)));
        Ok(Running { control, states, holds, opened, thread })
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(super) fn control(&self) -> &ControlHandle {
        &self.running().control
    }

    pub(super) fn holds(&self) -> &Arc<Holds> {
        &self.running().holds
    }

    pub(super) fn store(&self) -> &Store {
        &self.running().opened.store
    }

    /// The probes as a client is shown them.
    pub(super) async fn probes(&self) -> Vec<Arc<Probe>> {
        let Running { states, .. } = self.running();
        let probes = states.registry.all();
        let observed = states.observer.observe(&probes);
        states.of(&probes, &observed).await.unwrap_or_default()
    }

    /// Stops it in order. Its process goes on.
    pub(super) async fn stop(&self) {
        self.control().stop().await;
        self.store().close().await;
    }

    /// Ends it as it is. Returns the disk as the next one finds it.
    pub(super) async fn kill(self) -> Arc<Disk> {
        self.life.end();
        self.dead().await
    }

    /// Waits for the threads of a process that was killed, or has stopped.
    pub(super) async fn dead(self) -> Arc<Disk> {
        self.life.end();
        if let Some(Running { control, states, opened, thread, .. }) = self.running {
            control.stop().await;
            opened.store.close().await;
            drop((control, states, opened));
            thread.join().unwrap();
        }
        self.disk.after(Cut::Nothing)
    }
}

/// Who asks.
pub(super) fn caller() -> Caller {
    Caller::daemon()
}
