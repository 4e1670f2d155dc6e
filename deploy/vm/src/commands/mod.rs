//! The command line of `cargo vm`.

mod api;
mod bench;
mod demo;
mod deny;
mod exec;
mod guest;
mod host_tests;
mod kernels;
mod shell;
mod test;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use kprobed_vm::cache::Cache;

/// Boots real Debian kernels in QEMU (emulated, no KVM needed) with kprobed inside.
#[derive(Debug, Parser)]
#[command(name = "cargo vm", bin_name = "cargo vm", version, max_term_width = 110)]
pub(crate) struct Arguments {
    /// Where kernels, disks and logs are kept [default: $XDG_CACHE_HOME/kprobed-vm or
    /// ~/.cache/kprobed-vm]
    #[arg(long, global = true, value_name = "DIR", env = "KPROBED_VM_CACHE")]
    cache: Option<PathBuf>,
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Api(api::Api),
    Up(up::Up),
    Demo(demo::Demo),
    Exec(exec::Exec),
    Bench(bench::Bench),
    Check(test::Check),
    Deny(deny::Deny),
    Fetch(kernels::Fetch),
    Kernels(kernels::Kernels),
    Shell(shell::Shell),
    Soak(test::Soak),
    Test(test::Test),
}

impl Arguments {
    /// Runs the command that was requested; its exit code is this program's.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = match self.cache {
            Some(directory) => Cache::new(std::path::absolute(directory).context("--cache")?),
            None => Cache::from_environment().context("no home directory: give --cache DIR")?,
        };
        match self.command {
            Subcommands::Exec(exec) => return exec.run(cache),
            Subcommands::Bench(bench) => return bench.run(cache),
            Subcommands::Shell(shell) => return shell.run(cache),
            Subcommands::Api(api) => api.run(&cache)?,
            Subcommands::Up(up) => up.run(cache)?,
            Subcommands::Demo(demo) => demo.run(cache)?,
            Subcommands::Check(test::Check {}) => test::Check::run()?,
            Subcommands::Deny(deny::Deny {}) => deny::Deny::run()?,
            Subcommands::Fetch(fetch) => fetch.run(&cache)?,
            Subcommands::Kernels(kernels) => kernels.run(&cache)?,
            Subcommands::Soak(soak) => soak.run(&cache)?,
            Subcommands::Test(test) => test.run(&cache)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
