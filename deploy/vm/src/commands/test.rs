//! `cargo vm test`: every test of the workspace, first on the host, then in guests.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::progress::Step;
use kprobed_vm::workspace;

/// Run all tests: the workspace's on the host, then those in guests
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm test
  cargo vm test --kernel 6.12 --guest-only
  cargo vm test --guest-only power_cut -- --nocapture")]
pub(crate) struct Test {
    /// Kernel series to test in guests, repeatable [default: 6.1 and 6.12]
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
    /// Only the tests that need no guest
    #[arg(long, conflicts_with = "guest_only")]
    host_only: bool,
    /// Only the tests of the crate that boots guests
    #[arg(long)]
    guest_only: bool,
    /// Only tests with this in their name
    filter: Option<String>,
    /// For the test programs themselves
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

impl Test {
    pub(crate) fn run(self, cache: &Cache) -> Result<ExitCode> {
        let root = workspace::root().context("run this in the source directory, through `cargo vm`")?;
        if !self.guest_only {
            let packages = ["--workspace", "--exclude", "kprobed-vm"];
            self.stage("the tests on the host", &root, cache, &packages)?;
        }
        if !self.host_only {
            self.stage("the tests in guests", &root, cache, &["-p", "kprobed-vm"])?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn stage(&self, name: &str, root: &Path, cache: &Cache, packages: &[&str]) -> Result<()> {
        let step = Step::start(format!("running {name}"));
        let mut command = workspace::cargo(root);
        command.arg("test").args(packages).args(&self.filter).env("KPROBED_VM_CACHE", cache.root());
        if !self.kernels.is_empty() {
            command.env("KPROBED_VM_KERNELS", self.kernels.join(","));
        }
        if !self.rest.is_empty() {
            command.arg("--").args(&self.rest);
        }
        let status = command.status().context("cargo test")?;
        if !status.success() {
            bail!("{name} failed ({status})");
        }
        step.done();
        Ok(())
    }
}
