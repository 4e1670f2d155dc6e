//! `cargo vm soak`: the overload test, repeated for a given time.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::progress::Step;
use kprobed_vm::workspace;

/// Overload a daemon again and again, each time with a new seed, and check that its ledger closes
/// each time
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm soak
  cargo vm soak --minutes 5 --kernel 6.12

Each round prints its seed, what was produced, read and lost, and the memory of the daemon. A round that fails ends it;
KPROBED_VM_SEED=SEED begins with that round.")]
pub(crate) struct Soak {
    /// Minutes on each kernel; the round that has begun is finished
    #[arg(long, value_name = "N", default_value_t = 30)]
    minutes: u64,
    /// Kernel series to soak on, separated by commas [default: 6.1 and 6.12]
    #[arg(long, visible_alias = "kernel", value_name = "SERIES", value_delimiter = ',')]
    kernels: Vec<String>,
}

impl Soak {
    pub(crate) fn run(&self, cache: &Cache) -> Result<ExitCode> {
        let root = workspace::root().context("run this in the source directory, through `cargo vm`")?;
        let step = Step::start(format!("soaking for {} minutes on each kernel", self.minutes));
        let mut command = workspace::cargo(&root);
        command
            .args(["test", "-p", "kprobed-vm", "--test", "guest", "--", "overload::"])
            .env("KPROBED_VM_CACHE", cache.root())
            .env("KPROBED_VM_EFFORT", "full")
            .env("KPROBED_VM_SOAK_MINUTES", self.minutes.to_string());
        if !self.kernels.is_empty() {
            command.env("KPROBED_VM_KERNELS", self.kernels.join(","));
        }
        let status = command.status().context("cargo test")?;
        if !status.success() {
            bail!("the ledger did not close, or the guest failed ({status})");
        }
        step.done();
        Ok(ExitCode::SUCCESS)
    }
}
