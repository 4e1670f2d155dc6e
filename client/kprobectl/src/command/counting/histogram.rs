//! Arguments and request of a histogram, which `hist` and `stacks` share.

use clap::Args;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationKey, AggregationSpec, HistogramSpec};

use super::{CountKey, Lifetime, RowOptions, count};
use crate::command::{Exit, Failure};
use crate::global::Global;
use crate::output::{LatencyUnit, Output};

/// Options of a histogram.
#[derive(Clone, Debug, Args)]
pub(crate) struct Histogram {
    /// GROUP/EVENT, or EVENT if only one probe has it
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
    #[command(flatten)]
    life: Lifetime,
    #[command(flatten)]
    shown: RowOptions,
}

impl Histogram {
    /// Counts by these keys until the stop condition and shows the counts; with `--keep`, leaves
    /// the aggregation running.
    pub(in crate::command) async fn count(
        self,
        global: &Global,
        keys: Vec<CountKey<AggregationKey>>,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        let Self { probe, sums, filter, size, include_self, life, shown } = self;
        let view = shown.view(&sums, LatencyUnit::Auto)?;
        let (keys, is_by_host) = CountKey::split(keys);
        let spec = HistogramSpec { probe, keys, sums, filter, size, include_self };
        let spec = AggregationSpec { aggregation: Some(Aggregation::Histogram(spec)) };
        count(global, (spec, is_by_host), life, view, output).await
    }
}
