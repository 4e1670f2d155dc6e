//! `cargo vm kernels`: the kernels in the cache, and fetching new ones.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::progress;

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
    pub(crate) fn run(self, cache: &Cache) -> Result<ExitCode> {
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
        Ok(ExitCode::SUCCESS)
    }
}
