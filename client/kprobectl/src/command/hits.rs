//! `kprobectl hits`: hits and skipped runs of probes, now and in the past, and the processor time that they take.

use std::collections::BTreeSet;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kprobed_client::Client;
use kprobed_client::api::{HitProfile, ListHitsRequest, ListProbesRequest, ProbeKind};

use super::connection::connect;
use super::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::{Cell, Chart, Column, MessageRow, Output, ProbeCost, to_proto_time};
use crate::quantity::{point_in_time, step};

const AFTER_HELP: &str = "\
HITS is the number of runs of the probe's handler, NMISSED the number of runs that the kernel skipped, \
because another kprobe was handled on the same CPU or more than MAXACTIVE calls were in progress \
(kprobe_profile). OWN is the number of runs by kprobed's own threads, which are never recorded, and HITS is \
without them; --include-self counts them among HITS. The kernel does not count them apart: they are what \
remains of its count when everything that was recorded or lost is taken off. For a probe with a filter that \
is not possible, and for some others: then OWN is `?`, HITS has them too, and a note says why. \
In JSON and YAML, `hits` is always the count of the kernel, and `own` a part of it. The past has no OWN: \
with --since the counts are those of the kernel.

The kernel does not count the hits of an event of the host, such as `sched/sched_switch`: such a probe has no row here, \
and no budget. `kprobectl ledger` shows what was recorded of it.

With --since, hits are added up by intervals of --step, which begin at multiples of the step in UTC, and \
shown as bars over time: HITS/s is the average over the watched time, HIGHEST the rate of the highest bar. \
A blank is an interval in which the daemon did not watch. Deleted probes are shown too. The daemon keeps \
hits by the minute for 7 days and by the hour for 400 days, unless it is configured otherwise; if only \
longer intervals are kept, the step becomes longer.

With --cost, HIT is the processor time that one hit takes on this host from the task that ran into the probe, \
with its error: as the daemon has measured it, or a conservative figure (`?`). HITS/S are the runs of the probe \
in a second, with those that the kernel skipped, on average over the last minute or two, and SHARE what they \
take of one CPU. `kprobectl status` shows what the daemon itself takes.

Examples:
  kprobectl hits
  kprobectl hits 'kprobes/*' -o json
  kprobectl hits -l team=storage
  kprobectl hits kprobes/open --since 10m
  kprobectl hits --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z
  kprobectl hits --since 24h --step 5m
  kprobectl hits 'kprobes/*' -l team=storage --since 365d --step 1d -o csv
  kprobectl hits --cost
  kprobectl hits --cost -o json | jq '{probe, ns_per_second}'";

/// The usual length of an interval: the shortest that the daemon keeps. Costs are of the last one.
const STEP_S: u32 = 60;

/// Arguments of `hits`.
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
    /// Show the processor time that probes take
    #[arg(long, conflicts_with_all = ["include_self", "step", "since", "until"])]
    pub(crate) cost: bool,
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

impl MessageRow for HitProfile {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PROBE", |profile| Cell::text(&profile.probe)),
        Column::new("HITS", |profile| Cell::number(profile.hits.saturating_sub(profile.own.unwrap_or(0)))),
        Column::optional("OWN", own),
        Column::optional("NMISSED", |profile| Cell::number(profile.nmissed)),
        Column::wide("PROBE UID", |profile| Cell::text(profile.probe_uid.to_string())),
        Column::wide("BOOT ID", |profile| Cell::text(&profile.boot_id)),
        Column::wide("TIME", |profile| Cell::time(profile.time.as_ref())),
    ];
}

/// The hits by kprobed's own threads, marked if they are not known.
fn own(profile: &HitProfile) -> Cell {
    if profile.own_unknown.is_empty() { Cell::optional(profile.own) } else { Cell::maybe(None) }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let pattern = glob::of_names(arguments.glob.as_deref().unwrap_or_default());
    let client = connect(global).await?;
    if let Some(since) = arguments.since {
        return rates(&client, arguments, pattern, since, output).await;
    }
    if arguments.cost {
        return costs(&client, arguments, pattern, output).await;
    }
    let with_own = !arguments.include_self;
    let events = ListProbesRequest {
        name_glob: pattern.clone(),
        label_selector: arguments.selector.clone(),
        ..Default::default()
    };
    let request = ListHitsRequest {
        name_glob: pattern,
        label_selector: arguments.selector,
        with_own,
        ..Default::default()
    };
    let (profiles, mut events) = tokio::try_join!(client.select_hits(request), client.select_probes(events))?;
    events.retain(|probe| probe.kind() == ProbeKind::Event);
    output.rows(&profiles)?;
    let reasons: BTreeSet<_> = profiles.iter().map(|profile| profile.own_unknown.as_str()).collect();
    for reason in reasons.into_iter().filter(|reason| !reason.is_empty()) {
        output.remark(&format!("`?`: HITS includes those by kprobed's own threads: {reason}"));
    }
    if let Some(first) = events.first() {
        output.remark(&format!(
            "the kernel does not count hits of events such as `{}`: `kprobectl ledger` shows what was recorded of them",
            first.name
        ));
    }
    Ok(Exit::Success)
}

/// What probes take by their hits of the last time.
async fn costs(
    client: &Client,
    Arguments { selector: label_selector, .. }: Arguments,
    name_glob: String,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let start = Timestamp::now() - SignedDuration::from_secs(STEP_S.into());
    let hits = ListHitsRequest {
        name_glob: name_glob.clone(),
        label_selector: label_selector.clone(),
        start_time: Some(to_proto_time(start)),
        step_seconds: STEP_S,
        ..Default::default()
    };
    let probes = ListProbesRequest { name_glob, label_selector, ..Default::default() };
    let (probes, rates) = tokio::try_join!(client.select_probes(probes), client.hits_over_time(hits))?;
    output.rows(&probes.into_iter().map(|probe| ProbeCost::new(probe, &rates)).collect::<Vec<_>>())?;
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
    let request = ListHitsRequest {
        start_time: Some(to_proto_time(since)),
        end_time: arguments.until.map(to_proto_time),
        step_seconds: step,
        name_glob: pattern,
        label_selector: arguments.selector,
        ..Default::default()
    };
    let rates = client.hits_over_time(request).await?;
    if rates.step_seconds > step {
        let kept = if rates.step_seconds.is_multiple_of(3600) { "hour" } else { "minute" };
        output.note(&format!(
            "the step is {} seconds: some of that time is kept by the {kept} only",
            rates.step_seconds
        ));
    }
    let end = arguments.until.unwrap_or_else(Timestamp::now);
    output.hits_over_time(rates, &Chart { start: since, end })?;
    Ok(Exit::Success)
}
