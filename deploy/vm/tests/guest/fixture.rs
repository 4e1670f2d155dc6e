//! What the tests of one kernel share: the booted guest, its snapshots, and the programs.

use std::cell::Cell;
use std::env;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::kernels::Kernel;
use kprobed_vm::lab::{GuestOptions, Lab};
use kprobed_vm::machine::{Command, Machine, Snapshot, cpu_time_of_dropped};
use kprobed_vm::progress;
use kprobed_vm::workspace::{Profile, Programs};

use crate::daemon::DaemonGuest;

/// Where a daemon serves figures if its configuration says so: the tests reach it from the host.
pub(crate) const METRICS_PORT: u16 = 9464;

/// The kernels to test on.
pub(crate) struct Kernels {
    series: Vec<String>,
}

impl Kernels {
    pub(crate) fn from_environment() -> Self {
        let list = env::var("KPROBED_VM_KERNELS").unwrap_or_else(|_| "6.1,6.12".to_owned());
        let series = list.split(',').map(str::trim).filter(|series| !series.is_empty());
        Self { series: series.map(str::to_owned).collect() }
    }

    /// One fixture per kernel. Nothing is fetched or booted before a trial asks.
    pub(crate) fn fixtures(&self) -> impl Iterator<Item = Arc<Fixture>> {
        self.series.iter().map(|series| {
            // A trial that needs two kernels gets its own and the first other one, whatever kernels
            // the run is for.
            let all = self.series.iter().map(String::as_str).chain(["6.1", "6.12"]);
            let other = all.filter(|other| *other != series).map(str::to_owned).next().unwrap_or_default();
            Arc::new(Fixture {
                series: series.clone(),
                other,
                lab: OnceLock::new(),
                bare: Turns::default(),
                with_daemon: Turns::default(),
                booted: Mutex::new(Kept::NotYet),
                serving: Mutex::new(Kept::NotYet),
            })
        })
    }
}

/// One kernel, and the machines that its trials share: one with nothing in it, and one with the
/// daemon.
pub(crate) struct Fixture {
    series: String,
    /// Another kernel, for trials that change it.
    other: String,
    lab: OnceLock<Lab>,
    bare: Turns<Machine>,
    with_daemon: Turns<DaemonGuest>,
    /// A guest with the programs and an empty disk, when it had just booted.
    booted: Mutex<Kept>,
    /// The same when its daemon had read what it needs of the kernel.
    serving: Mutex<Kept>,
}

/// A machine that trials use one after the other.
struct Turns<M> {
    turn: Mutex<()>,
    machine: Mutex<Option<Arc<M>>>,
}

impl<M> Default for Turns<M> {
    fn default() -> Self {
        Self { turn: Mutex::new(()), machine: Mutex::new(None) }
    }
}

impl<M> Turns<M> {
    fn now(&self) -> MutexGuard<'_, Option<Arc<M>>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// CPU time of shared machines while the trial of this thread had them.
    static SHARED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time of all machines that the trial of this thread has given up so far.
pub(crate) fn cpu_time() -> Duration {
    cpu_time_of_dropped() + SHARED.get()
}

/// A shared machine for as long as one trial has it.
pub(crate) struct Shared<'a, M: AsRef<Machine>> {
    machine: Arc<M>,
    begun: Duration,
    _turn: MutexGuard<'a, ()>,
}

impl<'a, M: AsRef<Machine>> Shared<'a, M> {
    fn new(machine: Arc<M>, turn: MutexGuard<'a, ()>) -> Self {
        let begun = (*machine).as_ref().cpu_time();
        Self { machine, begun, _turn: turn }
    }
}

impl<M: AsRef<Machine>> Deref for Shared<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<M: AsRef<Machine>> Drop for Shared<'_, M> {
    fn drop(&mut self) {
        let used = (*self.machine).as_ref().cpu_time().saturating_sub(self.begun);
        SHARED.set(SHARED.get() + used);
    }
}

/// What guests of their own begin from.
enum Kept {
    NotYet,
    Snapshot(Box<Snapshot>),
    /// Taking a snapshot failed: every guest is booted.
    Never,
}

impl Fixture {
    pub(crate) fn series(&self) -> &str {
        &self.series
    }

    /// Whether this is a kernel before MAJOR.MINOR.
    pub(crate) fn is_older_than(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.series.split('.').map_while(|number| number.parse::<u32>().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (major, minor)
    }

    /// Whether the daemon can tell a number that could not be read from one that was: 5.10 does not
    /// show whether it has the fixes that this needs.
    pub(crate) fn proves_reads(&self) -> bool {
        !self.is_older_than(6, 1)
    }

    pub(crate) fn lab(&self) -> Result<&Lab> {
        if let Some(lab) = self.lab.get() {
            return Ok(lab);
        }
        let _alone = preparing();
        let cache = Cache::from_environment().context("no cache directory")?;
        let lab = Lab::new(cache, env!("CARGO_BIN_EXE_kprobed-guest"))?;
        Ok(self.lab.get_or_init(|| lab))
    }

    pub(crate) fn kernel(&self) -> Result<Kernel> {
        let lab = self.lab()?;
        let _alone = preparing();
        lab.kernel(&self.series)
    }

    /// A kernel of another series.
    pub(crate) fn other_kernel(&self) -> Result<Kernel> {
        let lab = self.lab()?;
        let _alone = preparing();
        lab.kernel(&self.other)
    }

    /// The shared machine, booted now if it does not run (any more). No other trial has it
    /// meanwhile.
    pub(crate) fn machine(&self) -> Result<Shared<'_, Machine>> {
        let turn = self.bare.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bare = self.bare.now();
        if let Some(machine) = bare.as_ref().filter(|machine| machine.failure().is_none()) {
            return Ok(Shared::new(Arc::clone(machine), turn));
        }
        let machine = Arc::new(self.lab()?.boot(&GuestOptions::new(self.kernel()?))?);
        *bare = Some(Arc::clone(&machine));
        Ok(Shared::new(machine, turn))
    }

    /// The shared machine with the daemon in it, without any probe. No other trial has it
    /// meanwhile.
    pub(crate) fn daemon(&self) -> Result<Shared<'_, DaemonGuest>> {
        let turn = self.with_daemon.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shared = self.with_daemon.now();
        // A machine that has failed releases its disk before the next one uses it.
        let is_usable = |guest: &Arc<DaemonGuest>| match guest.machine.failure() {
            Some(failure) => {
                progress::note(format_args!(
                    "the shared guest has failed, another one takes its place: {failure}"
                ));
                false
            }
            None => true,
        };
        let guest = match shared.take().filter(is_usable) {
            Some(guest) => guest,
            None => Arc::new(self.own_daemon("shared", daemon::DEFAULT_CONFIG)?),
        };
        // A trial that failed half-way must not fail the next one.
        match guest.reset() {
            Ok(()) => *shared = Some(Arc::clone(&guest)),
            Err(error) => progress::note(format_args!("the shared guest cannot be reset: {error:#}")),
        }
        drop(shared);
        Ok(Shared::new(guest, turn))
    }

    /// A machine with the daemon in it, on an empty disk, for one trial. With the usual
    /// configuration only the first one starts it; the others begin where it was then.
    pub(crate) fn own_daemon(&self, name: &str, config: &str) -> Result<DaemonGuest> {
        let disk = self.disk_name(name);
        if config != daemon::DEFAULT_CONFIG {
            return DaemonGuest::over(self.own_machine(&disk, false)?, config);
        }
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Kept::Snapshot(snapshot) = &*serving {
            let machine = self.lab()?.restore(snapshot, &self.options()?, &disk)?;
            return DaemonGuest::in_service(machine).or_else(|error| {
                progress::note(format_args!(
                    "a daemon does not go on where it was, and is started: {error:#}"
                ));
                DaemonGuest::over(self.own_machine(&disk, false)?, config)
            });
        }
        let machine = self.own_machine(&disk, false)?;
        daemon::start(&machine, config)?;
        if matches!(*serving, Kept::NotYet) {
            *serving = self.snapshot_serving(&machine).unwrap_or_else(|error| {
                progress::note(format_args!("no snapshot of the daemon, so that each is started: {error:#}"));
                Kept::Never
            });
        }
        DaemonGuest::in_service(machine)
    }

    /// A machine with an empty disk that reaches servers on the host, for one trial. `prepare` gets
    /// it before the daemon starts.
    pub(crate) fn own_daemon_with_host(
        &self,
        name: &str,
        config: &str,
        prepare: impl FnOnce(&Machine) -> Result<()>,
    ) -> Result<DaemonGuest> {
        let machine = self.own_machine(&self.disk_name(name), true)?;
        prepare(&machine)?;
        DaemonGuest::over(machine, config)
    }

    /// A snapshot of a guest whose daemon serves, when it has read what it needs of the kernel.
    fn snapshot_serving(&self, machine: &Machine) -> Result<Kept> {
        let booted = self.booted.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept::Snapshot(first) = &*booted else { return Ok(Kept::Never) };
        let read = machine.exec(&Command::shell("kprobectl check 'p:first kernel_clone'"))?;
        ensure!(read.status.success(), "{read:?}");
        Ok(Kept::Snapshot(Box::new(self.lab()?.snapshot_again(machine, first)?)))
    }

    /// A machine with the programs in it and an empty disk. Only the first one boots; the others
    /// begin where it was then.
    fn own_machine(&self, disk: &str, reaches_host: bool) -> Result<Machine> {
        let options = GuestOptions { reaches_host, ..self.options()? };
        let mut booted = self.booted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Kept::Snapshot(snapshot) = &*booted {
            return self.lab()?.restore(snapshot, &options, disk);
        }
        let options = GuestOptions { disk: Some(self.lab()?.disk(disk, true)?), ..options };
        if matches!(*booted, Kept::Never) {
            return self.lab()?.boot(&options);
        }
        let (machine, snapshot) = self.lab()?.boot_and_snapshot(&options)?;
        *booted = snapshot.map_or(Kept::Never, |snapshot| Kept::Snapshot(Box::new(snapshot)));
        Ok(machine)
    }

    /// A guest with the programs, without a disk.
    pub(crate) fn options(&self) -> Result<GuestOptions> {
        Ok(GuestOptions {
            files: programs()?.guest_files(),
            forwards: vec![(0, daemon::PORT), (0, METRICS_PORT)],
            ..GuestOptions::new(self.kernel()?)
        })
    }

    /// The machine that a trial shares which has none of its own, if it was booted.
    pub(crate) fn shared_daemon(&self) -> Option<Arc<DaemonGuest>> {
        self.with_daemon.now().clone()
    }

    /// Name of a disk, the same each time.
    pub(crate) fn disk_name(&self, name: &str) -> String {
        format!("test-{name}-{}", self.series)
    }
}

/// The programs in the guests, built once for all kernels.
pub(crate) fn programs() -> Result<&'static Programs> {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    let _alone = preparing();
    if let Some(programs) = PROGRAMS.get() {
        return Ok(programs);
    }
    let programs = Programs::build(Profile::Dev)?;
    Ok(PROGRAMS.get_or_init(|| programs))
}

/// Installing packages, fetching kernels and building programs is done by one trial, while those of
/// other kernels wait for it.
fn preparing() -> MutexGuard<'static, ()> {
    static PREPARING: Mutex<()> = Mutex::new(());
    PREPARING.lock().unwrap_or_else(PoisonError::into_inner)
}
