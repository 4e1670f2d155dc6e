//! `kprobectl profile`: hits and skipped runs, now and in the past.

use clap::Args;
use jiff::Timestamp;
use kprobed_client::api::{GetHitProfilesRequest, ListHitProfileSamplesRequest};

use super::connection::connect;
use super::{Exit, Failure, glob};
use crate::cli::Global;
use crate::output::{Output, to_proto_time};
use crate::quantity::point_in_time;

const AFTER_HELP: &str = "\
HITS is how often the probe's handler ran, NMISSED how often the kernel skipped it: another kprobe was
handled on the same CPU, or more calls than MAXACTIVE were under way (kprobe_profile).

Examples:
  kprobectl profile
  kprobectl profile 'kprobes/*' -o json
  kprobectl profile -l team=storage
  kprobectl profile kprobes/open --history --since 10m
  kprobectl profile --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z";

/// Arguments of `profile`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`)
    glob: Option<String>,
    /// Only probes whose labels match, as for `list`; not for the past, which has no labels
    #[arg(
        short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true,
        conflicts_with_all = ["history", "since", "until"]
    )]
    selector: String,
    /// Show the samples of the past
    #[arg(long)]
    history: bool,
    /// Only samples since then: how long ago (`10m`), a time of day (`07:00`), or a date with a time; implies --history
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// Only samples before then, in the same forms; implies --history
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    until: Option<Timestamp>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let pattern = glob::of_names(&arguments.glob.unwrap_or_default());
    if !arguments.history && arguments.since.is_none() && arguments.until.is_none() {
        let request = GetHitProfilesRequest { name_glob: pattern, label_selector: arguments.selector };
        output.profiles(&client.select_hit_profiles(request).await?)?;
        return Ok(Exit::Success);
    }
    // The API selects samples by one exact name only.
    let is_glob = pattern.contains(['*', '?']);
    let request = ListHitProfileSamplesRequest {
        probe: if is_glob { String::new() } else { pattern.clone() },
        start_time: arguments.since.map(to_proto_time),
        end_time: arguments.until.map(to_proto_time),
        ..Default::default()
    };
    let mut samples = client.hit_profile_samples(request).await?;
    if is_glob {
        samples.retain(|sample| glob::matches(pattern.as_bytes(), sample.probe.as_bytes()));
    }
    output.profile_samples(&samples)?;
    Ok(Exit::Success)
}
