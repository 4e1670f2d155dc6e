//! `kprobectl hist`: counts of events by keys.

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationKey, AggregationSpec, ContextKey, HistogramSpec};

use super::counting::{Count, CountKey, Lifetime, RowOptions};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CountView, LatencyUnit, Output};

/// Arguments of `hist`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/hist.txt"))]
pub(crate) struct Arguments {
    /// Count separately by this key; at most 3 keys besides `host` [default: one row for all events]
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<CountKey<AggregationKey>>,
    /// A probe (GROUP/EVENT, or EVENT if only one probe has it), a function, or a definition in quotes
    #[arg(value_name = "PROBE")]
    probe: String,
    /// Field to add up in each row; at most 2 [default: none]
    #[arg(long = "sum", value_name = "FIELD", value_delimiter = ',')]
    sums: Vec<String>,
    /// Count only events that pass this filter, in the kernel's filter language [default: all]
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Rows in the kernel's table, 128 to 16384 [default: 2048]
    #[arg(long, value_name = "ROWS", default_value_t = 0, hide_default_value = true)]
    size: u32,
    /// Count the hits of kprobed's own threads as well [default: leave them out, and print how many]
    #[arg(long)]
    include_self: bool,
    /// Print one line for each call stack, as flame graph tools read them; needs the key `stack`
    #[arg(long, conflicts_with_all = ["interval", "keep", "output"])]
    folded: bool,
    #[command(flatten)]
    life: Lifetime,
    #[command(flatten)]
    shown: RowOptions,
}

impl Arguments {
    /// The same counts, by the call stack before all other keys.
    fn by_stack(mut self) -> Self {
        let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
        self.keys.insert(0, CountKey::Key(stack));
        self
    }
}

/// `kprobectl stacks`.
pub(crate) async fn stacks(
    global: &Global,
    arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    run(global, arguments.by_stack(), output).await
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { keys, probe, sums, filter, size, include_self, folded, life, shown } = arguments;
    let view = CountView { is_folded: folded, ..shown.view(&sums, LatencyUnit::Auto)? };
    let (keys, is_by_host) = CountKey::split(keys);
    let spec = HistogramSpec { probe, keys, sums, filter, size, include_self };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Histogram(spec)) };
    Count { spec, is_by_host, life, view }.run(global, output).await
}
