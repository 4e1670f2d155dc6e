//! `cargo vm kernels` and `cargo vm fetch`: the kernels in the cache, and all that tests download, ahead of them.

use anyhow::Result;
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::python::{Environment, Requirements};
use kprobed_vm::unpacked::Unpacked;
use kprobed_vm::{packages, progress};

use super::guest::DEFAULT_SERIES;

/// List the kernels in the cache, or fetch the newest of a series
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm kernels
  cargo vm kernels --fetch                      the newest 6.12
  cargo vm kernels --fetch 6.1 6.12 6.18")]
pub(crate) struct Kernels {
    /// Fetch the newest kernels of these series [default: 6.12]
    #[arg(long, value_name = "SERIES", num_args = 0..)]
    fetch: Option<Vec<String>>,
}

impl Kernels {
    pub(crate) fn run(self, cache: &Cache) -> Result<()> {
        let store = cache.kernels();
        if let Some(mut wanted) = self.fetch {
            if wanted.is_empty() {
                wanted.push(DEFAULT_SERIES.to_owned());
            }
            for series in wanted {
                store.fetch(&series)?;
            }
        }
        let default = store.find(DEFAULT_SERIES);
        for kernel in store.cached() {
            let mark = if default.as_ref() == Some(&kernel) { "  (default)" } else { "" };
            let image = kernel.image.display();
            progress::result(format_args!("{:<6} {:<34} {image}{mark}", kernel.series, kernel.release))?;
        }
        if default.is_none() {
            progress::note(format_args!(
                "no kernel {DEFAULT_SERIES} here yet: it is fetched when it is needed, or now with --fetch"
            ));
        }
        Ok(())
    }
}

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
    pub(crate) fn run(self, cache: &Cache) -> Result<()> {
        packages::ensure()?;
        for series in &self.kernels {
            cache.kernels().find_or_fetch(series)?;
        }
        Environment::ensure(cache, Requirements::LANGUAGES)?;
        packages::ensure_programs(packages::OF_TESTS)?;
        for name in ["nats-server", "prometheus"] {
            Unpacked::ensure(cache, name)?;
        }
        Unpacked::ensure_with_missing(cache, "systemd").map(drop)
    }
}
