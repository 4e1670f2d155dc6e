//! `kprobectl exporters`: what the daemon sends elsewhere.

use clap::Args;
use kprobed_client::api::ExporterState;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The daemon has an exporter for each section `[export.*]` of its configuration that sends events. Each reads \
the log of events at its own pace and goes on where the other side has taken everything: what waits is in \
the history on disk, not in memory, and is sent again after a failure.

READ = ACKNOWLEDGED + QUEUED + DROPPED + EXPIRED + NOT SELECTED, since the daemon was started:
  READ          events of the log from where the exporter went on
  ACKNOWLEDGED  taken by the other side
  QUEUED        not sent yet; `?` while the exporter goes through an earlier run of the daemon
  DROPPED       refused by the other side for good; the last reason is shown
  EXPIRED       no longer in the history when the exporter came to them
  NOT SELECTED  left out by `probes`, `labels` and `filter` of its section

Exits with 1 if an exporter fails or its terms do not add up.

Examples:
  kprobectl exporters
  kprobectl exporters -o json | jq '.[] | select(.state == \"failing\") | .error'";

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
