//! `kprobectl exporters`: the state and the account of the daemon's exporters.

use clap::Args;
use kprobed_client::api::ExporterState;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The daemon has an exporter for each section `[export.*]` of its configuration that sends events. Each \
exporter reads the log of events at its own pace. Events that wait are in the history on disk, not in \
memory; after a failure it sends again what the receiver has not acknowledged.

READ = ACKNOWLEDGED + QUEUED + DROPPED + EXPIRED + NOT SELECTED, since the daemon was started:
  READ          events of the log after the position at which the exporter started
  ACKNOWLEDGED  events that the receiver accepted
  QUEUED        not sent yet; `?` while the exporter reads an earlier run of the daemon
  DROPPED       events that the receiver refused finally; the last reason is shown
  EXPIRED       deleted from the history before the exporter read them
  NOT SELECTED  left out by `probes`, `labels` and `filter` of its section

Exits with 1 if an exporter fails or its terms do not add up.

Examples:
  kprobectl exporters
  kprobectl exporters -o json | jq '.[] | select(.state == \"EXPORTER_STATE_FAILING\") | .error'";

/// Arguments of `exporters`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let exporters = connect(global).await?.exporters().await?;
    let closes = output.exporters(&exporters)?;
    if exporters.is_empty() {
        output.empty("there are no exporters: sections `[export.*]` of the daemon's configuration make them");
    }
    let fails = exporters.iter().any(|exporter| exporter.state() == ExporterState::Failing);
    Ok(if closes && !fails { Exit::Success } else { Exit::Refused })
}
