//! What the tests of one kernel share: the booted guest, its snapshots, and the programs.

use std::env;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::kernels::Kernel;
use kprobed_vm::lab::{GuestOptions, Lab, note_again};
use kprobed_vm::machine::{Command, Machine, Snapshot};
use kprobed_vm::workspace::{Profile, Programs};
use kprobed_vm::{packages, progress};

use crate::daemon::DaemonGuest;
use crate::report;
use crate::schedule::{SHARED_GUESTS, Turn};

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
            // A trial that needs two kernels gets its own and the first one beyond 6.10, where what it
            // looks at has changed, whatever kernels the run is for.
            let mut all = self.series.iter().map(String::as_str).chain(["6.1", "6.12"]);
            let is_other = |other: &&str| is_older(other, 6, 10) != is_older(series, 6, 10);
            let other = all.find(is_other).map(str::to_owned).unwrap_or_default();
            Arc::new(Fixture {
                series: series.clone(),
                other,
                lab: OnceLock::new(),
                with_daemon: SharedGuests::default(),
                started: SharedGuests::default(),
                booted: Mutex::new(Kept::NotYet),
                serving: Mutex::new(Kept::NotYet),
            })
        })
    }
}

/// Whether a series comes before this one.
fn is_older(series: &str, major: u32, minor: u32) -> bool {
    let mut numbers = series.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (major, minor)
}

/// The shared guests of one kind.
type SharedGuests = [Mutex<Option<DaemonGuest>>; SHARED_GUESTS];

/// One kernel, and the machines that its trials share: some with a daemon that has the usual
/// configuration, and some whose daemon is started for most trials.
pub(crate) struct Fixture {
    series: String,
    /// A kernel for trials that change it: newer than 6.9 if this one is not, and older if it is.
    other: String,
    lab: OnceLock<Lab>,
    with_daemon: SharedGuests,
    started: SharedGuests,
    /// A guest with the programs and an empty disk, when it had just booted.
    booted: Mutex<Kept>,
    /// The same when its daemon had read what it needs of the kernel.
    serving: Mutex<Kept>,
}

/// A shared machine for as long as one trial has it.
pub(crate) struct Shared<'a> {
    guest: MutexGuard<'a, Option<DaemonGuest>>,
    _turn: Option<Turn>,
}

impl Deref for Shared<'_> {
    type Target = DaemonGuest;

    fn deref(&self) -> &DaemonGuest {
        let Some(guest) = &*self.guest else { unreachable!("it was put there, under the same lock") };
        guest
    }
}

impl DerefMut for Shared<'_> {
    fn deref_mut(&mut self) -> &mut DaemonGuest {
        let Some(guest) = &mut *self.guest else { unreachable!("it was put there, under the same lock") };
        guest
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.machine.is_given_up();
        report::keep_last_words(&self.machine);
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

    /// One line about this kernel for the person who waits.
    pub(crate) fn note(&self, line: impl Display) {
        progress::note(format_args!("{}: {line}", self.series));
    }

    /// Whether this is a kernel before MAJOR.MINOR.
    pub(crate) fn is_older_than(&self, major: u32, minor: u32) -> bool {
        is_older(&self.series, major, minor)
    }

    /// Whether the daemon can tell a number that could not be read from one that was: 5.10 does not
    /// show whether it has the fixes that this needs.
    pub(crate) fn proves_reads(&self) -> bool {
        !self.is_older_than(6, 1)
    }

    /// Whether this kernel counts events by itself: Debian builds 5.10 without `CONFIG_HIST_TRIGGERS`.
    pub(crate) fn counts_events(&self) -> bool {
        !self.is_older_than(6, 1)
    }

    /// Whether this kernel can restrict which files a process opens (Landlock, since 5.13).
    pub(crate) fn restricts_files(&self) -> bool {
        !self.is_older_than(5, 13)
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

    /// A shared machine with the daemon in it, with the usual configuration, without any probe.
    /// What earlier trials have left on its disk, such as events in the history, is there. No other
    /// trial has it meanwhile.
    pub(crate) fn daemon(&self) -> Result<Shared<'_>> {
        self.shared("daemon", &self.with_daemon, |guest| guest.reset(daemon::DEFAULT_CONFIG))
    }

    /// Another shared machine, with another configuration: so that the daemon with the usual one is
    /// not started anew for each trial.
    pub(crate) fn daemon_with(&self, config: &str) -> Result<Shared<'_>> {
        self.shared("started", &self.started, |guest| guest.reset(config))
    }

    /// The same with a daemon that has just started, with nothing on its disk.
    pub(crate) fn new_daemon(&self, config: &str) -> Result<Shared<'_>> {
        self.shared("started", &self.started, |guest| guest.renew(config))
    }

    fn shared<'a>(
        &'a self,
        kind: &'static str,
        guests: &'a SharedGuests,
        prepare: impl Fn(&mut DaemonGuest) -> Result<()>,
    ) -> Result<Shared<'a>> {
        let turn = report::turn(&self.series, kind)?;
        let number = turn.as_ref().map_or(0, Turn::number);
        let mut slot = guests[number].lock().unwrap_or_else(PoisonError::into_inner);
        let kept = slot.take().and_then(|mut guest| {
            guest.machine.is_used();
            let outcome =
                guest.machine.failure().map_or_else(|| prepare(&mut guest), |failure| Err(failure.into()));
            // It is gone before the next one uses its disk.
            outcome.map(|()| guest).map_err(|error| {
                note_again(format_args!(
                    "{}: the shared guest cannot be used any more, another one takes its place: {error:#}",
                    self.series
                ));
            }).ok()
        });
        let guest = kept.map_or_else(
            || {
                let mut guest = self.own_daemon(&format!("{kind}-{number}"), daemon::DEFAULT_CONFIG)?;
                prepare(&mut guest)?;
                Ok::<_, anyhow::Error>(guest)
            },
            Ok,
        )?;
        *slot = Some(guest);
        Ok(Shared { guest: slot, _turn: turn })
    }

    /// A machine with the daemon in it, on an empty disk, for one trial. With the usual
    /// configuration only the first one starts it; the others begin where it was then.
    pub(crate) fn own_daemon(&self, name: &str, config: &str) -> Result<DaemonGuest> {
        let disk = self.disk_name(name);
        if config != daemon::DEFAULT_CONFIG {
            return DaemonGuest::over(self.own_machine(&disk)?, config);
        }
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Kept::Snapshot(snapshot) = &*serving {
            let machine = self.lab()?.restore(snapshot, &self.options()?, &disk)?;
            return DaemonGuest::in_service(machine, config).or_else(|error| {
                progress::note(format_args!(
                    "a daemon does not go on where it was, and is started: {error:#}"
                ));
                DaemonGuest::over(self.own_machine(&disk)?, config)
            });
        }
        let machine = self.own_machine(&disk)?;
        daemon::start(&machine, config)?;
        if matches!(*serving, Kept::NotYet) {
            *serving = self.snapshot_serving(&machine).unwrap_or_else(|error| {
                progress::note(format_args!("no snapshot of the daemon, so that each is started: {error:#}"));
                Kept::Never
            });
        }
        DaemonGuest::in_service(machine, config)
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
    fn own_machine(&self, disk: &str) -> Result<Machine> {
        let options = self.options()?;
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

    /// A guest with the programs, and the one of Debian that takes capabilities away, without a
    /// disk. It reaches servers on the host.
    pub(crate) fn options(&self) -> Result<GuestOptions> {
        let setpriv = packages::search_path("setpriv").context("setpriv belongs to every Debian")?;
        let mut files = programs()?.guest_files();
        files.push(GuestFile { host: setpriv, guest: "/usr/bin/setpriv".to_owned() });
        Ok(GuestOptions {
            files,
            forwards: vec![(0, daemon::PORT), (0, METRICS_PORT)],
            reaches_host: true,
            cpus: cpus()?,
            ..GuestOptions::new(self.kernel()?)
        })
    }

    /// Name of a disk, the same each time.
    pub(crate) fn disk_name(&self, name: &str) -> String {
        format!("test-{name}-{}", self.series)
    }
}

/// CPUs of the guests with a daemon: one, or as many as `KPROBED_VM_CPUS` says.
pub(crate) fn cpus() -> Result<u32> {
    let Ok(number) = env::var("KPROBED_VM_CPUS") else { return Ok(1) };
    number.parse().with_context(|| format!("KPROBED_VM_CPUS={number}"))
}

/// How the programs in the guests are built: as tests are, or as packages ship them if `KPROBED_VM_PROGRAMS` is
/// `release`.
fn profile() -> Result<Profile> {
    match env::var("KPROBED_VM_PROGRAMS").as_deref() {
        Err(_) | Ok("dev") => Ok(Profile::Dev),
        Ok("release") => Ok(Profile::Release),
        Ok(other) => bail!("KPROBED_VM_PROGRAMS is `dev` or `release`, not `{other}`"),
    }
}

/// The programs in the guests, built once for all kernels.
pub(crate) fn programs() -> Result<&'static Programs> {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    let _alone = preparing();
    if let Some(programs) = PROGRAMS.get() {
        return Ok(programs);
    }
    let programs = Programs::build(profile()?)?;
    Ok(PROGRAMS.get_or_init(|| programs))
}

/// Installing packages, fetching kernels and building programs is done by one trial, while those of
/// other kernels wait for it.
fn preparing() -> MutexGuard<'static, ()> {
    static PREPARING: Mutex<()> = Mutex::new(());
    match PREPARING.try_lock() {
        Ok(alone) => alone,
        Err(_) => report::waits(|| PREPARING.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}
