//! Preparing and booting a guest: packages, kernel, initramfs, disk, machine.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cache::Cache;
use crate::disk::Disk;
use crate::initramfs::{GuestFile, Initramfs};
use crate::kernels::Kernel;
use crate::machine::{Machine, MachineConfig, MachineError, Snapshot};
use crate::packages;
use crate::progress::{self, Step};
use crate::slim::without_debug_information;
use crate::systemd::{self, Systemd};

/// How often a guest that fails by itself is booted again at most.
const BOOT_RETRIES: u32 = 2;

/// How long a guest may take to boot.
const BOOT_DEADLINE: Duration = Duration::from_secs(90);

/// Guests of this process that were booted again.
static BOOTED_AGAIN: AtomicUsize = AtomicUsize::new(0);

/// How many guests of this process failed and were booted again.
pub fn booted_again() -> usize {
    BOOTED_AGAIN.load(Ordering::Relaxed)
}

/// Says why a guest is booted again, and counts it.
pub fn note_again(why: impl Display) {
    BOOTED_AGAIN.fetch_add(1, Ordering::Relaxed);
    progress::note(why);
}

/// Settings of one guest.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Its kernel.
    pub kernel: Kernel,
    /// Programs and files that it has.
    pub files: Vec<GuestFile>,
    /// Its disk.
    pub disk: Option<Disk>,
    /// Loopback ports of the host (0: any free one) and the guest ports that they lead to.
    pub forwards: Vec<(u16, u16)>,
    /// Whether the guest reaches the host's network, and the host's loopback at
    /// [`protocol::HOST_ADDRESS`](crate::protocol::HOST_ADDRESS).
    pub reaches_host: bool,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs. More than one take turns when they are emulated.
    pub cpus: u32,
    /// CPUs that the guest has room for, the running ones among them; fewer than `cpus` are as
    /// many.
    pub cpus_possible: u32,
    /// More for the kernel command line.
    pub cmdline: String,
    /// systemd as its PID 1.
    pub systemd: Option<Systemd>,
}

impl GuestOptions {
    /// A guest with nothing in it but busybox and the agent.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            files: Vec::new(),
            disk: None,
            forwards: Vec::new(),
            reaches_host: false,
            memory_mib: 768,
            cpus: 1,
            cpus_possible: 1,
            cmdline: String::new(),
            systemd: None,
        }
    }
}

/// A host that can boot guests.
#[derive(Clone, Debug)]
pub struct Lab {
    cache: Cache,
    agent: PathBuf,
}

impl Lab {
    /// Makes sure that the host has what it takes. `agent` is the program `kprobed-guest`.
    pub fn new(cache: Cache, agent: impl Into<PathBuf>) -> Result<Self> {
        packages::ensure()?;
        Ok(Self { cache, agent: without_debug_information(&agent.into()) })
    }

    /// Kernels, disks and logs.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The newest cached kernel of a series, fetched when there is none.
    pub fn kernel(&self, series: &str) -> Result<Kernel> {
        self.cache.kernels().find_or_fetch(series)
    }

    /// The persistent disk called `name`; empty when it is new or `fresh`.
    pub fn disk(&self, name: &str, fresh: bool) -> Result<Disk> {
        Disk::open(&self.cache.disks(), name, fresh)
    }

    /// Boots a guest. One that fails by itself is booted again, twice at most.
    pub fn boot(&self, options: &GuestOptions) -> Result<Machine> {
        self.boot_and(options, |machine, _config| machine)
    }

    /// As [`Lab::boot`], with a snapshot of the guest as it is when it has just booted; none, and
    /// the reason is said, when that fails.
    pub fn boot_and_snapshot(&self, options: &GuestOptions) -> Result<(Machine, Option<Snapshot>)> {
        self.boot_and(options, |machine, config| {
            let snapshot = machine.snapshot(config, &self.cache.snapshots());
            if let Err(error) = &snapshot {
                progress::note(format_args!("no snapshot, so that every guest is booted: {error:#}"));
            }
            (machine, snapshot.ok())
        })
    }

    /// A snapshot of a guest that was restored from `first`, or whose first snapshot that is, as it is now.
    pub fn snapshot_again(&self, machine: &Machine, first: &Snapshot) -> Result<Snapshot> {
        Ok(machine.snapshot(&first.config, &self.cache.snapshots())?)
    }

    /// A guest that begins where `snapshot` was taken, with a disk of its own called `disk` and the
    /// forwards of `options`, which the snapshot's guest was booted with. It is booted when that
    /// fails, and the reason is said.
    pub fn restore(&self, snapshot: &Snapshot, options: &GuestOptions, disk: &str) -> Result<Machine> {
        let run = self.new_run(options)?;
        let restored =
            snapshot.disk().map(|image| Disk::copy(&self.cache.disks(), disk, image)).transpose().and_then(
                |disk| {
                    let log = run.join("serial.log");
                    let network = (options.forwards.clone(), options.reaches_host);
                    Ok(Machine::restore(snapshot, disk, network, &log)?)
                },
            );
        restored.or_else(|error| {
            note_again(format_args!("a guest cannot be restored and is booted: {error:#}"));
            let disk = snapshot.disk().map(|_| self.disk(disk, true)).transpose()?;
            self.boot(&GuestOptions { disk, ..options.clone() })
        })
    }

    /// Boots a guest, and has `then` take it while its initramfs is there.
    fn boot_and<T>(
        &self,
        options: &GuestOptions,
        then: impl FnOnce(Machine, &MachineConfig) -> T,
    ) -> Result<T> {
        let config = self.prepare(options)?;
        let step = Step::start(format!("booting {}", options.kernel.release));
        let mut retries = BOOT_RETRIES;
        let booted = loop {
            match Machine::boot(&config) {
                Err(error @ MachineError::Failed { .. }) if retries > 0 => {
                    retries -= 1;
                    note_again(format_args!("the guest failed, booting again: {error}"));
                }
                other => break other,
            }
        };
        let taken = booted.map(|machine| {
            step.done();
            then(machine, &config)
        });
        // QEMU has it in memory now. The logs stay.
        drop(fs::remove_file(&config.initramfs));
        Ok(taken?)
    }

    /// Everything that booting takes, for callers that boot in a way of their own: packs the
    /// initramfs into a new directory of the cache.
    pub fn prepare(&self, options: &GuestOptions) -> Result<MachineConfig> {
        let kernel = &options.kernel;
        let run = self.new_run(options)?;
        let initramfs = run.join("initramfs.cpio");
        let mut content = Initramfs::new(kernel, &self.agent)?;
        for file in &options.files {
            content.add(file)?;
        }
        let mut cmdline = options.cmdline.clone();
        if let Some(systemd) = &options.systemd {
            systemd.add_to(&mut content)?;
            cmdline = format!("{cmdline} {}", systemd::CMDLINE);
        }
        content.write(&initramfs)?;
        Ok(MachineConfig {
            image: kernel.image.clone(),
            initramfs,
            memory_mib: options.memory_mib,
            cpus: options.cpus,
            cpus_possible: options.cpus_possible,
            disk: options.disk.clone(),
            forwards: options.forwards.clone(),
            reaches_host: options.reaches_host,
            cmdline,
            serial_log: run.join("serial.log"),
            boot_deadline: BOOT_DEADLINE,
            incoming: None,
        })
    }

    /// A directory for the logs of one guest.
    fn new_run(&self, options: &GuestOptions) -> Result<PathBuf> {
        self.cache
            .new_run(&options.kernel.series)
            .with_context(|| format!("the cache {}", self.cache.root().display()))
    }
}
