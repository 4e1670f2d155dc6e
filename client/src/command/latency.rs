//! `kprobectl latency`: the time from one probe to another.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationSpec, ContextKey, LatencySpec};

use super::counting::{Life, Shown, count, latency_key};
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::{LATENCY_COLUMN, LatencyUnit, Output};
use crate::quantity::duration;

const AFTER_HELP: &str = "\
The kernel measures from an event of START to the next event of END in the same thread, or with the same value of the \
field that --match names. A second beginning replaces the first one. No event is recorded for it: the probes may be disabled.

For the time that a function takes, START is a probe on it and END one on its return.

Latencies are counted by powers of two of nanoseconds, or by buckets of one width (--bucket). The average is exact; \
percentiles are known as far as the bucket that they lie in.

Examples:
  kprobectl latency read read_return --duration 10s
  kprobectl latency read read_return --by comm --top 5 --unit us
  kprobectl latency read read_return --bucket 100us --end-filter 'ret > 0'
  kprobectl latency block/block_rq_issue block/block_rq_complete --match sector
  kprobectl latency read read_return --keep reads --ttl 1h";

/// Arguments of `latency`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The probe where the time begins: GROUP/EVENT, or EVENT where only one probe has it
    #[arg(value_name = "START")]
    start: String,
    /// The probe where it ends
    #[arg(value_name = "END")]
    end: String,
    /// A field of both probes that says which end belongs to which beginning, instead of the thread
    #[arg(long = "match", value_name = "FIELD", default_value = "", hide_default_value = true)]
    match_field: String,
    /// What latencies are told apart by: `thread`, `comm` or `cpu` of the end; at most 2
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',', value_parser = latency_key)]
    keys: Vec<ContextKey>,
    /// Measure only from beginnings that pass, in the kernel's filter language
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    start_filter: String,
    /// Measure only to ends that pass
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    end_filter: String,
    /// Width of a bucket; otherwise powers of two
    #[arg(long, value_name = "DURATION", value_parser = bucket)]
    bucket: Option<u64>,
    /// The unit of what is shown
    #[arg(long, value_name = "UNIT", default_value = "auto")]
    unit: LatencyUnit,
    /// Rows that the kernel's table of results has room for, 128 to 16384; 0: 2048
    #[arg(long, value_name = "ROWS", default_value_t = 0, hide_default_value = true)]
    size: u32,
    #[command(flatten)]
    life: Life,
    #[command(flatten)]
    shown: Shown,
}

/// Nanoseconds of a bucket.
fn bucket(text: &str) -> Result<u64, String> {
    let width: Duration = duration(text)?;
    match u64::try_from(width.as_nanos()) {
        Ok(ns @ 1..) => Ok(ns),
        _ => Err(format!("`{text}` is no width of a bucket: write 1ns or more")),
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let view = arguments.shown.view(&[LATENCY_COLUMN.to_owned()], arguments.unit)?;
    let spec = LatencySpec {
        start_probe: arguments.start,
        end_probe: arguments.end,
        match_field: arguments.match_field,
        start_filter: arguments.start_filter,
        end_filter: arguments.end_filter,
        bucket_ns: arguments.bucket.unwrap_or_default(),
        keys: arguments.keys.into_iter().map(Into::into).collect(),
        size: arguments.size,
    };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Latency(spec)) };
    count(global, spec, arguments.life, view, output).await
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
