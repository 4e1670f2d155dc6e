//! `cargo vm bench`: the live benchmark of the daemon, in a guest.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::initramfs::GuestFile;
use kprobed_vm::machine::Command;
use kprobed_vm::packages::search_path;
use kprobed_vm::progress;
use kprobed_vm::workspace::Programs;

use super::exec::pass_on;
use super::guest::{GuestArguments, post_mortem};

/// Tools that the daemon is compared with, and that the benchmark itself runs. Those of the host go
/// into the guest, with their libraries.
const TOOLS: [&str; 3] = ["trace-cmd", "perf", "bpftrace"];

/// Where the benchmark lies in the guest.
const PROGRAM: &str = "/usr/bin/live";

/// Where another daemon lies in the guest.
const OTHER: &str = "/usr/bin/kprobed-other";

/// The tools and their libraries lie in memory, and so do their recordings.
const LEAST_MEMORY_MIB: u32 = 2048;

/// Compare the daemon with other tools on a kprobe with four arguments, in a guest
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm bench
  cargo vm bench --kernel 6.1 -- --workloads kprobe,syscalls
  cargo vm bench -- --sides kprobed,trace_pipe --json
  cargo vm bench --other ../before/target/release/kprobed -- --sides kprobed

The guest is emulated: figures of one run can be compared with each other, and with nothing else. trace-cmd, perf and bpftrace are
taken from this machine, if they are there (Debian: trace-cmd, linux-perf, bpftrace). Arguments after `--` are for the benchmark
itself: see `cargo bench -p kprobed --bench live -- --help`.")]
pub(crate) struct Bench {
    #[command(flatten)]
    guest: GuestArguments,
    /// Another daemon, such as that of an earlier commit: it takes turns with this one
    #[arg(long, value_name = "PROGRAM")]
    other: Option<PathBuf>,
    /// For the benchmark
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

impl Bench {
    pub(crate) fn run(self, cache: Cache) -> Result<ExitCode> {
        let live = Programs::build_bench("kprobed", "live")?;
        let mut files = vec![GuestFile { host: live, guest: PROGRAM.to_owned() }];
        for tool in TOOLS {
            match search_path(tool) {
                Some(host) => files.push(GuestFile { host, guest: format!("/usr/bin/{tool}") }),
                None => progress::note(format_args!("{tool} is not on this machine, and is left out")),
            }
        }
        let other = self.other.as_ref().map(|_| ["--other", OTHER]);
        files.extend(self.other.map(|host| GuestFile { host, guest: OTHER.to_owned() }));
        let guest = self.guest.start_bare(cache, LEAST_MEMORY_MIB, &files)?;
        let mut command = Command::new(PROGRAM).args(["--bench", "--daemon", "/usr/bin/kprobed"]);
        // An emulated processor is some thirty times slower.
        command = command.args(["--iterations", "100000", "--rounds", "1"]);
        command = command.args(other.into_iter().flatten());
        if !self.rest.iter().any(|argument| argument.starts_with("--workloads")) {
            command = command.args(["--workloads", "kprobe"]);
        }
        let mut delivered = Ok(());
        let ran = guest.exec_streaming(&command.args(&self.rest).unlimited(), |stream, bytes| {
            pass_on(stream, bytes, &mut delivered);
        });
        let status = ran.inspect_err(|_| post_mortem(&guest))?;
        guest.power_off()?;
        delivered.context("passing the output on")?;
        Ok(ExitCode::from(status.shell_code()))
    }
}
