//! The command line of the benchmark `live`.

use std::path::PathBuf;

use clap::Parser;

use crate::workload::Workload;

/// Compares the daemon with other tools that record the same events on this host, and measures what
/// it costs by itself. Needs root and a tracefs. Everything that reads events, this program
/// included, stays on CPU 1, the workload on CPU 0.
#[derive(Clone, Debug, Parser)]
#[command(name = "live", args_override_self = true)]
pub(crate) struct Arguments {
    /// Iterations of the workload in a run; bpftrace gets a tenth
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) iterations: u64,
    /// Runs of each side, interleaved; the median counts
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Buffer of each CPU in KiB, the same for every side
    #[arg(long, default_value_t = 16 << 10)]
    pub(crate) buffer_kib: u64,
    /// Only these workloads; without it, those that this kernel can do
    #[arg(long, value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    /// Only these sides: kprobed, trace_pipe, trace-cmd, perf, bpftrace, and what of the daemon is
    /// compared with nothing: alone, latency
    #[arg(long, value_delimiter = ',')]
    pub(crate) sides: Vec<String>,
    /// Install missing tools first (apt-get)
    #[arg(long)]
    pub(crate) install: bool,
    /// Print everything as JSON in place of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Only show where the daemon spends its time (perf)
    #[arg(long)]
    pub(crate) profile: bool,
    /// The daemon; without it, the one that was built with this benchmark
    #[arg(long, default_value = env!("CARGO_BIN_EXE_kprobed"))]
    pub(crate) daemon: PathBuf,
    /// Another daemon, such as that of an earlier commit: it takes turns with the first in everything that is measured
    #[arg(long)]
    pub(crate) other: Option<PathBuf>,
    /// Directory for recordings
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    /// Make events, as asked for on standard input
    #[arg(long, hide = true)]
    pub(crate) produce: Option<Workload>,
    /// Given by `cargo bench`, and not by `cargo test --benches`
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Arguments {
    pub(crate) fn wants(&self, side: &str) -> bool {
        self.sides.is_empty() || self.sides.iter().any(|wanted| wanted == side)
    }
}
