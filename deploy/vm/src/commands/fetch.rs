//! `cargo vm fetch`: everything that tests download, ahead of them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::packages;
use kprobed_vm::python::{Environment, Requirements};
use kprobed_vm::unpacked::Unpacked;

/// Fetch what the tests need: QEMU, kernels, and the programs of others that they talk to
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm fetch
  cargo vm fetch --kernels 5.10,6.1,6.12,6.18,7.2

Each test fetches by itself what is not there. This is for a machine that waits for its network meanwhile, or has none later.")]
pub(crate) struct Fetch {
    /// Kernel series, separated by commas
    #[arg(
        long,
        visible_alias = "kernel",
        value_name = "SERIES",
        value_delimiter = ',',
        default_value = "6.1,6.12"
    )]
    kernels: Vec<String>,
}

impl Fetch {
    pub(crate) fn run(self, cache: &Cache) -> Result<ExitCode> {
        packages::ensure()?;
        for series in &self.kernels {
            cache.kernels().find_or_fetch(series)?;
        }
        Environment::ensure(cache, Requirements::LANGUAGES)?;
        packages::ensure_programs(packages::OF_TESTS)?;
        for name in ["nats-server", "prometheus"] {
            Unpacked::ensure(cache, name)?;
        }
        Unpacked::ensure_with_missing(cache, "systemd")?;
        Ok(ExitCode::SUCCESS)
    }
}
