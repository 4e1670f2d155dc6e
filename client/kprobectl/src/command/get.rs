//! `kprobectl get`: all properties of one probe.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kprobed_client::api::ListHitsRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, ProbePast, to_proto_time};

const AFTER_HELP: &str = "\
`-o yaml` prints a document that `kprobectl apply -f` accepts; `-o json` prints all properties.

Examples:
  kprobectl get kprobes/open
  kprobectl get open -o yaml > open.yaml
  kprobectl get open -o json";

/// The rate and the last hit are looked for in this time.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// So exactly, in seconds.
const STEP_S: u32 = 10;

/// Arguments of `get`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    name: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (probe, states) = client.get_probe_and_states(&arguments.name).await?;
    let profile = client.hits(&probe.name).await?.into_iter().find(|found| found.probe == probe.name);
    let since = Timestamp::now().checked_sub(RECENT).unwrap_or_default();
    let request = ListHitsRequest {
        name_glob: probe.name.clone(),
        start_time: Some(to_proto_time(since)),
        step_seconds: STEP_S,
        ..Default::default()
    };
    let rates = client.hits_over_time(request).await?;
    output.probe(&probe, &ProbePast::new(&probe, states, profile, &rates))?;
    Ok(Exit::Success)
}
