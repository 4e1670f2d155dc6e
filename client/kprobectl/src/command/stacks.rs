//! `kprobectl stacks`: counts of the kernel stacks that lead to a probe.

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::{AggregationKey, ContextKey};

use super::counting::{CountKey, Histogram};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Prints kernel stacks, from the innermost function outward, up to 16 frames. The kernel counts them; \
`kprobectl hist --by stack` is equivalent.

`-o folded` prints one line for each stack, outermost function first, as flame graph tools read it. The \
number at its end is the count, or with --sum the first sum. With --hosts, the stacks of all hosts are \
added up; with `--by host` the host is the outermost frame.

Examples:
  kprobectl stacks open --duration 10s --top 5
  kprobectl stacks open --by comm --filter 'dfd == -100'
  kprobectl stacks read --duration 30s -o folded > stacks.folded
  kprobectl stacks read --by host --hosts 'web[001-003]' --duration 30s -o folded > stacks.folded
  kprobectl stacks read --sum bytes -o folded | flamegraph.pl > bytes.svg";

/// Arguments of `stacks`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Count separately by this key as well, as for `kprobectl hist`; at most 2 keys besides `host`
    /// [default: the stack alone]
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<CountKey<AggregationKey>>,
    #[command(flatten)]
    histogram: Histogram,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
    let keys = std::iter::once(CountKey::Key(stack)).chain(arguments.keys);
    arguments.histogram.count(global, keys.collect(), output).await
}
