//! `kprobectl hist`: how often, by what, and how it is spread.

use clap::Args;

use super::counting::{Histogram, KeyArgument};
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The kernel counts, and no event is recorded for it: the probe may be disabled. Counting ends with the command, unless \
--keep says otherwise.

A KEY is `thread`, `comm`, `cpu`, `stack`, or a field of the probe: every value of FIELD has a row; FIELD.log2 counts by \
powers of two and FIELD.buckets=N by buckets of that width, both drawn as bars; FIELD.sym counts addresses by function, \
and FIELD.sym-offset each by itself. FIELD.exact is a field whose name is that of another key. Without a key all events \
are counted together.

The last reading, at the end, holds all that was counted, with --deltas too. Of what was counted nothing is left out \
in silence: `dropped` are the events that the kernel's table had no row for.

In `(4, 8]` the 8 is included and the 4 is not; in `[4, 8)` it is the other way round. K, M, G are powers of 1024. \
Percentiles are known as far as the bucket that they lie in.

Examples:
  kprobectl hist open --duration 10s
  kprobectl hist open --by comm --top 10
  kprobectl hist read --by bytes.log2 --filter 'bytes > 0'
  kprobectl hist read --by comm,bytes.buckets=4096 --sum bytes --sort bytes
  kprobectl hist read --by comm --interval 1s --deltas -o json
  kprobectl hist open --by comm --keep opens --ttl 1h";

/// Arguments of `hist`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// What events are told apart by; at most 3
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<KeyArgument>,
    #[command(flatten)]
    histogram: Histogram,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let keys = arguments.keys.into_iter().map(|KeyArgument(key)| key).collect();
    arguments.histogram.count(global, keys, output).await
}
