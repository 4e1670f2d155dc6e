//! `kprobectl get`: all properties of probes, or a list of them.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kprobed_client::Client;
use kprobed_client::api::{ListHitsRequest, Probe};

use super::connection::connect;
use super::list::{self, Listing};
use super::probe_selection::choose;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, ProbePast, to_proto_time};

/// The rate and the last hit are looked for in this time.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// So exactly, in seconds.
const STEP_S: u32 = 10;

/// Arguments of `get`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/get.txt"))]
pub(crate) struct Arguments {
    /// GROUP/EVENT, EVENT if only one probe has it, or a glob of names (`*`, `?`) [default: list all probes]
    #[arg(value_name = "NAME", conflicts_with_all = ["selector", "foreign"])]
    names: Vec<String>,
    #[command(flatten)]
    listing: Listing,
}

impl Arguments {
    /// Whether its output has no end.
    pub(crate) fn is_endless(&self) -> bool {
        self.listing.watch
    }
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { mut names, listing } = arguments;
    if listing.watch && names.len() > 1 {
        let hint = "name one probe, or give a glob such as `kprobes/*`";
        return Err(Failure::usage("`--watch` follows one probe, or those of one glob", hint));
    }
    if listing.watch || names.is_empty() {
        return list::run(global, list::Arguments { glob: names.pop(), listing }, output).await;
    }
    let client = connect(global).await?;
    let chosen = choose(&client, names, None).await?;
    let (mut probes, mut pasts, mut exit) = (Vec::new(), Vec::new(), Exit::Success);
    let is_one = chosen.len() == 1;
    for chosen in chosen {
        match look(&client, &chosen.name).await {
            Ok((probe, past)) => {
                probes.push(probe);
                pasts.push(past);
            }
            Err(failure) if is_one => return Err(failure),
            Err(failure) => exit = exit.max(failure.report(output)),
        }
    }
    output.probes_in_full(&probes, &pasts, is_one)?;
    Ok(exit)
}

async fn look(client: &Client, name: &str) -> Result<(Probe, ProbePast), Failure> {
    let (probe, states) = client.get_probe_and_states(name).await?;
    let profile = client.hits(&probe.name).await?.into_iter().find(|found| found.probe == probe.name);
    let since = Timestamp::now().checked_sub(RECENT).unwrap_or_default();
    let request = ListHitsRequest {
        name_glob: probe.name.clone(),
        start_time: Some(to_proto_time(since)),
        step_seconds: STEP_S,
        ..Default::default()
    };
    let rates = client.hits_over_time(request).await?;
    let past = ProbePast::new(&probe, states, profile, &rates);
    Ok((probe, past))
}
