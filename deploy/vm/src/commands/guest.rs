//! Options of all commands that boot a guest, and booting it with the daemon.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::daemon;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::kernels::Kernel;
use kprobed_vm::lab::{GuestOptions, Lab};
use kprobed_vm::machine::Machine;
use kprobed_vm::progress::{self, Step};
use kprobed_vm::workspace::{Profile, Programs};

/// The kernel that is booted when none is named.
pub(crate) const DEFAULT_SERIES: &str = "6.12";

/// Which guest.
#[derive(Args, Debug)]
pub(crate) struct GuestArguments {
    /// A series of Debian's kernels (6.1, 6.12, …), or the path of a bzImage
    #[arg(long, value_name = "SERIES|PATH", default_value = DEFAULT_SERIES)]
    kernel: String,
    /// The lib/modules/RELEASE directory of a kernel that is given by path
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Memory of the guest
    #[arg(long, value_name = "MIB", default_value_t = 768, value_parser = clap::value_parser!(u32).range(192..))]
    memory: u32,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    cpus: u32,
    /// Begin with an empty disk
    #[arg(long)]
    fresh: bool,
    /// Name of the disk that keeps /var/lib/kprobed [default: one per command and kernel]
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,
}

/// A guest in which the daemon answers.
#[derive(Debug)]
pub(crate) struct DaemonGuest {
    pub(crate) machine: Machine,
    /// Where it answers.
    pub(crate) address: SocketAddr,
    pub(crate) programs: Programs,
}

impl GuestArguments {
    /// The same, with an empty disk unless one is named: that is kept.
    pub(crate) fn fresh(self) -> Self {
        Self { fresh: self.fresh || self.disk.is_none(), ..self }
    }

    /// Builds, boots and starts. `command` names the disk; `port` is the daemon's on the host, 0
    /// for any.
    pub(crate) fn start(
        &self,
        cache: Cache,
        command: &str,
        port: u16,
        copies: &[GuestFile],
    ) -> Result<DaemonGuest> {
        let programs = Programs::build(Profile::Demo)?;
        let lab = Lab::new(cache, &programs.agent)?;
        let kernel = self.kernel(&lab)?;
        let name = self.disk.clone().unwrap_or_else(|| format!("{command}-{}", kernel.series));
        let options = GuestOptions {
            files: [programs.guest_files().as_slice(), copies].concat(),
            disk: Some(lab.disk(&name, self.fresh)?),
            forwards: vec![(port, daemon::PORT)],
            memory_mib: self.memory,
            cpus: self.cpus,
            ..GuestOptions::new(kernel)
        };
        let machine = lab.boot(&options)?;
        let step = Step::start("starting kprobed in the guest");
        let address = daemon::start(&machine, daemon::PRODUCT_CONFIG)
            .with_context(|| format!("the serial log is {}", machine.serial_log().display()))?;
        step.done();
        Ok(DaemonGuest { machine, address, programs })
    }

    /// A guest with these files beside the daemon's programs, without a disk, in which the daemon
    /// does not run yet.
    pub(crate) fn start_bare(&self, cache: Cache, memory_mib: u32, copies: &[GuestFile]) -> Result<Machine> {
        anyhow::ensure!(
            !self.fresh && self.disk.is_none(),
            "this guest has no disk: leave --disk and --fresh out"
        );
        let programs = Programs::build(Profile::Release)?;
        let lab = Lab::new(cache, &programs.agent)?;
        let options = GuestOptions {
            files: [programs.guest_files().as_slice(), copies].concat(),
            memory_mib: self.memory.max(memory_mib),
            cpus: self.cpus,
            ..GuestOptions::new(self.kernel(&lab)?)
        };
        lab.boot(&options)
    }

    fn kernel(&self, lab: &Lab) -> Result<Kernel> {
        let path = Path::new(&self.kernel);
        Ok(if self.kernel.contains('/') || path.is_file() {
            Kernel::from_paths(path, self.modules.as_deref())?
        } else {
            anyhow::ensure!(self.modules.is_none(), "--modules belongs to a kernel that is given by path");
            lab.kernel(&self.kernel)?
        })
    }
}

impl DaemonGuest {
    /// Stops the daemon and switches the guest off.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(line) = self.machine.console_problem() {
            let log = self.machine.serial_log().display();
            progress::note(format_args!("the guest's kernel reported: {line} (serial log: {log})"));
        }
        let step = Step::start("switching the guest off");
        self.machine.power_off()?;
        step.done();
        Ok(())
    }
}

/// Shows what is known of a guest that has failed.
pub(crate) fn post_mortem(machine: &Machine) {
    progress::note(format_args!(
        "the end of the serial log {}:\n{}",
        machine.serial_log().display(),
        machine.console_tail(25)
    ));
}
