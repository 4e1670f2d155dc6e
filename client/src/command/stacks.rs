//! `kprobectl stacks`: on which ways a probe is reached.

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationKey, AggregationSpec, ContextKey, HistogramSpec};

use super::counting::{KeyArgument, Life, Shown, count};
use super::hist::Selection;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::{LatencyUnit, Output};

const AFTER_HELP: &str = "\
Stacks are those of the kernel, from the innermost function outward, and end after 16 frames. They are counted in the \
kernel; `kprobectl hist --by stack` is the same.

`-o folded` prints one line for each stack, outermost function first, as tools that draw flame graphs read it. With --sum \
the number behind it is the first sum, and not the count.

Examples:
  kprobectl stacks open --duration 10s --top 5
  kprobectl stacks open --by comm --filter 'dfd == -100'
  kprobectl stacks read --duration 30s -o folded > stacks.folded
  kprobectl stacks read --sum bytes -o folded | flamegraph.pl > bytes.svg";

/// Arguments of `stacks`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT where only one probe has it
    #[arg(value_name = "PROBE")]
    probe: String,
    /// What stacks are told apart by besides, as for `kprobectl hist`; at most 2
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<KeyArgument>,
    /// A field to add up by stack; at most 2
    #[arg(long = "sum", value_name = "FIELD", value_delimiter = ',')]
    sums: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    life: Life,
    #[command(flatten)]
    shown: Shown,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { probe, keys, sums, selection, life, shown } = arguments;
    let view = shown.view(&sums, LatencyUnit::Auto)?;
    let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
    let keys = std::iter::once(stack).chain(keys.into_iter().map(|KeyArgument(key)| key)).collect();
    let spec = HistogramSpec { probe, keys, sums, filter: selection.filter, size: selection.size };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Histogram(spec)) };
    count(global, spec, life, view, output).await
}
