//! `kprobectl cost`: the processor time that probes and the daemon take.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CostKey, Output};

const AFTER_HELP: &str = "\
A hit of a probe takes processor time from the task that ran into it. HIT is what one takes on this \
host, with its error: as the daemon has measured it, or a conservative figure (`?`). HITS are the runs of \
the probe, with those that the kernel skipped, CPU the time that all of them took, and SHARE its part of \
one CPU in the days that are shown. The last row is the daemon itself: reading, storing and sending \
events.

Days are those of UTC. What was taken is stored once a minute, and kept as long as hits by the hour. \
Deleted probes are shown too.

With `--by group` and `--by creator` a row has all probes of a group, or all that a principal has made. \
`-` are those that files declare. JSON has each probe with its creator.

Examples:
  kprobectl cost
  kprobectl cost --days 30
  kprobectl cost --by creator
  kprobectl cost -o json | jq '.probes[] | {probe, seconds: ([.days[].cpu_seconds] | add)}'";

/// Arguments of `cost`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Days to add up, from 1 to 36500; 1 is today
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Add up the probes of a group, or of a principal
    #[arg(long, value_enum, value_name = "KEY", default_value_t)]
    by: CostKey,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let costs = connect(global).await?.costs(arguments.days).await?;
    output.costs(&costs, arguments.by, jiff::Timestamp::now())?;
    Ok(Exit::Success)
}
