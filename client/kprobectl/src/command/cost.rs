//! `kprobectl cost`: the processor time that probes take.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kprobed_client::api::ListHitRatesRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, to_proto_time};

/// Length of the interval that is shown, and of the intervals by which hits are kept.
const INTERVAL_S: u32 = 60;

const AFTER_HELP: &str = "\
A hit of a probe takes processor time from the task that ran into it. HIT is what one takes on this \
host, with its error: as the daemon has measured it, or a conservative figure (`?`). HITS/S are the runs of \
the probe in a second, with those that the kernel skipped, on average over the last minute or two, and \
SHARE what they take of one CPU. `kprobectl profile --step` shows the hits of earlier times, and \
`kprobectl status` what the daemon itself takes.

Examples:
  kprobectl cost
  kprobectl cost -o json | jq '.[] | {probe, ns_per_second}'";

/// Arguments of `cost`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let start = Timestamp::now() - SignedDuration::from_secs(INTERVAL_S.into());
    let request = ListHitRatesRequest {
        start_time: Some(to_proto_time(start)),
        step_seconds: INTERVAL_S,
        ..ListHitRatesRequest::default()
    };
    let (probes, rates) = tokio::try_join!(client.list_probes(""), client.hit_rates(request))?;
    output.costs(&probes, &rates)?;
    Ok(Exit::Success)
}
