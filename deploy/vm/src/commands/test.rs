//! `cargo vm test`: every test of the workspace, first on the host, then in guests. `cargo vm check`: all checks that
//! need no guest. `cargo vm soak`: the overload test, repeated for a given time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
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
    #[arg(long, value_name = "EFFORT", env = EFFORT)]
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
    pub(crate) fn run(self, cache: &Cache) -> Result<()> {
        let root = workspace::root()?;
        if !self.guest_only && self.theme.is_empty() {
            let effort = self.effort.unwrap_or(Effort::Ci).name();
            let environment = [(EFFORT, effort.as_ref()), ("KPROBED_VM_CACHE", cache.root().as_os_str())];
            host_tests::run(&root, environment, &self.rest)?;
        }
        if self.host_only { Ok(()) } else { self.in_guests(&root, cache) }
    }

    fn in_guests(&self, root: &Path, cache: &Cache) -> Result<()> {
        let step = Step::start("running the tests in guests");
        let mut command = guest_tests(root, cache, self.effort);
        command.arg("--quiet");
        if !self.kernels.is_empty() {
            command.env("KPROBED_VM_KERNELS", self.kernels.join(","));
        } else if !self.theme.is_empty() {
            command.env("KPROBED_VM_KERNELS", DEFAULT_SERIES);
        }
        command.env("KPROBED_VM_TESTS", self.theme.join(","));
        succeed(command.arg("--").args(&self.rest), "tests in guests failed")?;
        step.done();
        Ok(())
    }
}

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
    pub(crate) fn run(&self, cache: &Cache) -> Result<()> {
        let root = workspace::root()?;
        let step = Step::start(format!("soaking for {} minutes on each kernel", self.minutes));
        let mut command = guest_tests(&root, cache, Some(Effort::Full));
        command.env("KPROBED_VM_SOAK_MINUTES", self.minutes.to_string());
        if !self.kernels.is_empty() {
            command.env("KPROBED_VM_KERNELS", self.kernels.join(","));
        }
        succeed(command.args(["--", "overload::"]), "the ledger did not close, or the guest failed")?;
        step.done();
        Ok(())
    }
}

/// Run every check that needs no guest: format, words, lints, documentation, dependencies, tests on
/// the host
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm check

This is the first half of `.ci/run`; `cargo vm test --guest-only` is the other.")]
pub(crate) struct Check {}

impl Check {
    pub(crate) fn run() -> Result<()> {
        let root = workspace::root()?;
        succeed(Command::new(root.join(".ci/run")).arg("host").current_dir(&root), "a check failed")
    }
}

/// cargo, with the tests that boot guests.
fn guest_tests(root: &Path, cache: &Cache, effort: Option<Effort>) -> Command {
    let mut command = workspace::cargo(root);
    command
        .args(["test", "--test", "guest"])
        .args(workspace::beside_programs(&[]))
        .env("KPROBED_VM_CACHE", cache.root());
    if let Some(effort) = effort {
        command.env(EFFORT, effort.name());
    }
    command
}

/// Runs a program of the workspace; `failure` says what it means that it fails.
fn succeed(command: &mut Command, failure: &str) -> Result<()> {
    let status = command.status().with_context(|| command.get_program().display().to_string())?;
    ensure!(status.success(), "{failure} ({status})");
    Ok(())
}
