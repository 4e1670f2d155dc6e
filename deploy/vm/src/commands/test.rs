//! `cargo vm test`: every test of the workspace, first on the host, then in guests.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use kprobed_vm::cache::Cache;
use kprobed_vm::progress::Step;
use kprobed_vm::workspace;

use super::guest::DEFAULT_SERIES;
use super::host_tests;

/// Run all tests, on the host and in guests, or those of one theme in guests
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm test                                              all, on 6.1 and 6.12
  cargo vm test survival                                     one theme, on 6.12
  cargo vm test survival::probes_survive_a_power_cut --kernels 6.1
  cargo vm test --guest-only --effort full --kernels 5.10,6.1,6.12,6.18,7.2

The last one is the check of a release. KPROBED_VM_SEED=SEED repeats the draws of a failed test. KPROBED_VM_ACCEL is tcg or
kvm; without it, KVM is used if it works.")]
pub(crate) struct Test {
    /// Kernel series to test on, separated by commas [default: 6.1 and 6.12; 6.12 with a THEME]
    #[arg(long, visible_alias = "kernel", value_name = "SERIES", value_delimiter = ',')]
    kernels: Vec<String>,
    /// Only the tests that need no guest
    #[arg(long, conflicts_with_all = ["guest_only", "theme"])]
    host_only: bool,
    /// Only the tests of the crate that boots guests
    #[arg(long)]
    guest_only: bool,
    /// How much the tests try that draw or count, and whether those that are not about the kernel run on all kernels
    /// [default: as much as `ci`, from new seeds]
    #[arg(long, value_name = "EFFORT", env = "KPROBED_VM_EFFORT")]
    effort: Option<Effort>,
    /// Only guest tests with one of these in their name
    theme: Vec<String>,
    /// For the test programs themselves
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

/// The effort, for the test programs.
const EFFORT: &str = "KPROBED_VM_EFFORT";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Effort {
    /// Little, and the same in each run of a commit: for every change
    Ci,
    /// Much: before a release
    Full,
}

impl Effort {
    const fn name(self) -> &'static str {
        match self {
            Self::Ci => "ci",
            Self::Full => "full",
        }
    }
}

impl Test {
    pub(crate) fn run(self, cache: &Cache) -> Result<ExitCode> {
        let root = workspace::root().context("run this in the source directory, through `cargo vm`")?;
        if !self.guest_only && self.theme.is_empty() {
            let effort = self.effort.unwrap_or(Effort::Ci).name();
            let environment = [(EFFORT, effort.as_ref()), ("KPROBED_VM_CACHE", cache.root().as_os_str())];
            host_tests::run(&root, environment, &self.rest)?;
        }
        if !self.host_only {
            self.in_guests(&root, cache)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn in_guests(&self, root: &Path, cache: &Cache) -> Result<()> {
        let step = Step::start("running the tests in guests");
        let mut command = workspace::cargo(root);
        command
            .args(["test", "--quiet", "--test", "guest"])
            .args(workspace::beside_programs(&[]))
            .env("KPROBED_VM_CACHE", cache.root());
        if let Some(effort) = self.effort {
            command.env(EFFORT, effort.name());
        }
        if !self.kernels.is_empty() {
            command.env("KPROBED_VM_KERNELS", self.kernels.join(","));
        } else if !self.theme.is_empty() {
            command.env("KPROBED_VM_KERNELS", DEFAULT_SERIES);
        }
        command.env("KPROBED_VM_TESTS", self.theme.join(","));
        command.arg("--").args(&self.rest);
        let status = command.status().context("cargo test")?;
        if !status.success() {
            bail!("tests in guests failed ({status})");
        }
        step.done();
        Ok(())
    }
}
