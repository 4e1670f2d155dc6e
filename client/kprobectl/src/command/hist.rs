//! `kprobectl hist` and `kprobectl stacks`: counts of events by keys; and `kprobectl latency`: the distribution of the
//! time between two probes.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationKey, AggregationSpec, ContextKey, HistogramSpec, LatencySpec};

use super::counting::{Count, CountKey, Lifetime, RowOptions};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CountView, LATENCY_COLUMN, LatencyUnit, Output};
use crate::quantity::duration;

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

/// `kprobectl stacks`: the same counts, by the call stack before all other keys.
pub(crate) async fn stacks(
    global: &Global,
    mut arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
    arguments.keys.insert(0, CountKey::Key(stack));
    run(global, arguments, output).await
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { keys, probe, sums, filter, size, include_self, folded, life, shown } = arguments;
    let view = CountView { is_folded: folded, ..shown.view(&sums, LatencyUnit::Auto)? };
    let (keys, is_by_host) = CountKey::split(keys);
    let spec = HistogramSpec { probe, keys, sums, filter, size, include_self };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Histogram(spec)) };
    Count { spec, is_by_host, life, view }.run(global, output).await
}

/// Arguments of `latency`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/latency.txt"))]
pub(crate) struct LatencyArguments {
    /// The start of the time: a probe (GROUP/EVENT, or EVENT if only one probe has it), a function, or a definition in
    /// quotes
    #[arg(value_name = "START")]
    start: String,
    /// The end of the time, in the same forms [default: the return of the function START]
    #[arg(value_name = "END", default_value = "", hide_default_value = true)]
    end: String,
    /// Field that both probes have, with the same value in START and END [default: the thread]
    #[arg(long = "match", value_name = "FIELD", default_value = "", hide_default_value = true)]
    match_field: String,
    /// Count separately by `thread`, `comm` or `cpu` of END; at most 2 keys besides `host`, which
    /// needs --hosts [default: one row]
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<CountKey<ContextKey>>,
    /// Measure only from events of START that pass this filter, in the kernel's filter language [default: all]
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    start_filter: String,
    /// Measure only to events of END that pass this filter [default: all]
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    end_filter: String,
    /// Width of a bucket, 1ns or more [default: powers of two]
    #[arg(long, value_name = "DURATION", value_parser = bucket)]
    bucket: Option<u64>,
    /// Unit of latencies
    #[arg(long, value_name = "UNIT", default_value = "auto")]
    unit: LatencyUnit,
    /// Rows in the kernel's table of results, 128 to 16384 [default: 2048]
    #[arg(long, value_name = "ROWS", default_value_t = 0, hide_default_value = true)]
    size: u32,
    /// Measure in kprobed's own threads as well [default: leave them out, and print how many ends]
    #[arg(long)]
    include_self: bool,
    #[command(flatten)]
    life: Lifetime,
    #[command(flatten)]
    shown: RowOptions,
}

/// Nanoseconds of a bucket.
fn bucket(text: &str) -> Result<u64, String> {
    let width: Duration = duration(text)?;
    match u64::try_from(width.as_nanos()) {
        Ok(ns @ 1..) => Ok(ns),
        _ => Err(format!("`{text}` is not a width of a bucket: write `1ns` or more")),
    }
}

pub(crate) async fn latency(
    global: &Global,
    arguments: LatencyArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let view = arguments.shown.view(&[LATENCY_COLUMN.to_owned()], arguments.unit)?;
    let (keys, is_by_host) = CountKey::split(arguments.keys);
    let spec = LatencySpec {
        start_probe: arguments.start,
        end_probe: arguments.end,
        match_field: arguments.match_field,
        start_filter: arguments.start_filter,
        end_filter: arguments.end_filter,
        bucket_ns: arguments.bucket.unwrap_or_default(),
        keys: keys.into_iter().map(Into::into).collect(),
        size: arguments.size,
        include_self: arguments.include_self,
    };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Latency(spec)) };
    Count { spec, is_by_host, life: arguments.life, view }.run(global, output).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_a_width() {
        assert_eq!((bucket("100us"), bucket("1s")), (Ok(100_000), Ok(1_000_000_000)));
        assert!(bucket("0s").is_err() && bucket("3").is_err() && bucket("999999d").is_err());
    }
}
