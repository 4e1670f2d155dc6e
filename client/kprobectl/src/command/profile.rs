//! `kprobectl profile`: hits and skipped runs of probes, now and in the past.

use clap::Args;
use jiff::Timestamp;
use kprobed_client::Client;
use kprobed_client::api::{GetHitProfilesRequest, ListHitProfileSamplesRequest, ListHitRatesRequest};

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
with --history and --step the counts are those of the kernel.

With --step, hits are added up by intervals, which begin at multiples of the step in UTC, and shown as \
bars over time: HITS/s is the average over the watched time, HIGHEST the rate of the highest bar. A blank \
is an interval in which the daemon did not watch. The daemon keeps samples for 6 hours, counts by the \
minute for 30 days and by the hour for 400 days, unless it is configured otherwise; if only longer \
intervals are kept, the step becomes longer.

Examples:
  kprobectl profile
  kprobectl profile 'kprobes/*' -o json
  kprobectl profile -l team=storage
  kprobectl profile kprobes/open --history --since 10m
  kprobectl profile --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z
  kprobectl profile --since 24h --step 5m
  kprobectl profile 'kprobes/*' -l team=storage --since 365d --step 1d -o csv";

/// Arguments of `profile`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`) [default: all]
    glob: Option<String>,
    /// Only probes whose current labels match, as for `list`; not for samples, which have no labels [default: all]
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Show the samples of the past instead of the current counts
    #[arg(long, conflicts_with = "step")]
    history: bool,
    /// Count the hits by kprobed's own threads like others
    #[arg(long, conflicts_with_all = ["history", "step", "since", "until"])]
    include_self: bool,
    /// Show hits over time by intervals of this length in whole seconds, such as `10s`, `5m` or
    /// `1d`; needs --since [default: no intervals]
    #[arg(long, value_name = "DURATION", value_parser = step, requires = "since")]
    step: Option<u32>,
    /// Only samples since this time: how long ago (`10m`), a time of day (`07:00`), or a date with
    /// a time; implies --history [default: all]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// Only samples before this time, in the same forms; implies --history [default: now]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    until: Option<Timestamp>,
}

impl Arguments {
    fn is_of_the_past(&self) -> bool {
        self.history || self.since.is_some() || self.until.is_some()
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let pattern = glob::of_names(arguments.glob.as_deref().unwrap_or_default());
    if let (Some(since), Some(step)) = (arguments.since, arguments.step) {
        return rates(&connect(global).await?, arguments, pattern, (since, step), output).await;
    }
    if !arguments.is_of_the_past() {
        let with_own = !arguments.include_self;
        let request =
            GetHitProfilesRequest { name_glob: pattern, label_selector: arguments.selector, with_own };
        output.profiles(&connect(global).await?.select_hit_profiles(request).await?, with_own)?;
        return Ok(Exit::Success);
    }
    if !arguments.selector.is_empty() {
        return Err(Failure::usage(
            "samples have no labels: `--selector` cannot select them".to_owned(),
            Some(
                "add `--step`, which adds them up by the labels that probes have now, or name the probes"
                    .to_owned(),
            ),
        ));
    }
    // The API selects samples by one exact name only.
    let is_glob = pattern.contains(['*', '?']);
    let request = ListHitProfileSamplesRequest {
        probe: if is_glob { String::new() } else { pattern.clone() },
        start_time: arguments.since.map(to_proto_time),
        end_time: arguments.until.map(to_proto_time),
        ..Default::default()
    };
    let mut samples = connect(global).await?.hit_profile_samples(request).await?;
    if is_glob {
        samples.retain(|sample| glob::matches(pattern.as_bytes(), sample.probe.as_bytes()));
    }
    output.profile_samples(&samples)?;
    Ok(Exit::Success)
}

/// Hits over time.
async fn rates(
    client: &Client,
    arguments: Arguments,
    pattern: String,
    (since, step): (Timestamp, u32),
    output: &mut Output,
) -> Result<Exit, Failure> {
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
