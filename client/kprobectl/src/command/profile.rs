//! `kprobectl profile`: hits and skipped runs of probes, now and in the past.

use clap::Args;
use jiff::Timestamp;
use kprobed_client::Client;
use kprobed_client::api::{GetHitProfilesRequest, ListHitRatesRequest};

use super::connection::connect;
use super::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::{Chart, Output, to_proto_time};
use crate::quantity::{point_in_time, step};

const AFTER_HELP: &str = "\
HITS is the number of runs of the probe's handler, NMISSED the number of runs that the kernel skipped, \
because another kprobe was handled on the same CPU or more than MAXACTIVE calls were in progress \
(kprobe_profile). OWN is the number of runs by kprobed's own threads, which are never recorded, and HITS is \
without them; --include-self counts them among HITS. The kernel does not count them apart: they are what \
remains of its count when everything that was recorded or lost is taken off. For a probe with a filter that \
is not possible, and for some others: then OWN is `?`, HITS has them too, and a line under the table says why. \
In JSON, YAML and CSV, `hits` is always the count of the kernel, and `own` a part of it. The past has no OWN: \
with --since the counts are those of the kernel.

With --since, hits are added up by intervals of --step, which begin at multiples of the step in UTC, and \
shown as bars over time: HITS/s is the average over the watched time, HIGHEST the rate of the highest bar. \
A blank is an interval in which the daemon did not watch. Deleted probes are shown too. The daemon keeps \
hits by the minute for 7 days and by the hour for 400 days, unless it is configured otherwise; if only \
longer intervals are kept, the step becomes longer.

Examples:
  kprobectl profile
  kprobectl profile 'kprobes/*' -o json
  kprobectl profile -l team=storage
  kprobectl profile kprobes/open --since 10m
  kprobectl profile --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z
  kprobectl profile --since 24h --step 5m
  kprobectl profile 'kprobes/*' -l team=storage --since 365d --step 1d -o csv";

/// The usual length of an interval: the shortest that the daemon keeps.
const STEP_S: u32 = 60;

/// Arguments of `profile`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`) [default: all]
    glob: Option<String>,
    /// Only probes whose current labels match, as for `list` [default: all]
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Count the hits by kprobed's own threads like others
    #[arg(long, conflicts_with_all = ["step", "since", "until"])]
    include_self: bool,
    /// Length of an interval in whole seconds, such as `5m` or `1d`; needs --since [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = step, requires = "since")]
    step: Option<u32>,
    /// Show hits over time since then: how long ago (`10m`), a time of day (`07:00`), or a date with
    /// a time [default: the current counts]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// The time until then, in the same forms [default: now]
    #[arg(long, value_name = "TIME", value_parser = point_in_time, requires = "since")]
    until: Option<Timestamp>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let pattern = glob::of_names(arguments.glob.as_deref().unwrap_or_default());
    let client = connect(global).await?;
    if let Some(since) = arguments.since {
        return rates(&client, arguments, pattern, since, output).await;
    }
    let with_own = !arguments.include_self;
    let request = GetHitProfilesRequest { name_glob: pattern, label_selector: arguments.selector, with_own };
    output.profiles(&client.select_hit_profiles(request).await?, with_own)?;
    Ok(Exit::Success)
}

/// Hits over time.
async fn rates(
    client: &Client,
    arguments: Arguments,
    pattern: String,
    since: Timestamp,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let step = arguments.step.unwrap_or(STEP_S);
    let request = ListHitRatesRequest {
        start_time: Some(to_proto_time(since)),
        end_time: arguments.until.map(to_proto_time),
        step_seconds: step,
        name_glob: pattern,
        label_selector: arguments.selector,
        page_token: String::new(),
    };
    let rates = client.hit_rates(request).await?;
    if rates.step_seconds > step {
        let kept = if rates.step_seconds.is_multiple_of(3600) { "hour" } else { "minute" };
        output.note(&format!(
            "the step is {} seconds: some of that time is kept by the {kept} only",
            rates.step_seconds
        ));
    }
    let end = arguments.until.unwrap_or_else(Timestamp::now);
    output.hit_rates(&rates, &Chart { start: since, end })?;
    Ok(Exit::Success)
}
