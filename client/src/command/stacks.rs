//! `kprobectl stacks`: on which ways a probe is reached.

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::{AggregationKey, ContextKey};

use super::counting::{Histogram, KeyArgument};
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

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
    /// What stacks are told apart by besides, as for `kprobectl hist`; at most 2
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<KeyArgument>,
    #[command(flatten)]
    histogram: Histogram,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
    let keys = arguments.keys.into_iter().map(|KeyArgument(key)| key);
    arguments.histogram.count(global, std::iter::once(stack).chain(keys).collect(), output).await
}
