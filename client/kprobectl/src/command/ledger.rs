//! `kprobectl ledger`: the account of every event.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
A row closes if its terms add up:
  of a probe       HITS = READ + UNDECODABLE + NOT READ, and NOT READ = LOST + DISABLED + FILTERED + OWN
  of a subscriber  READ = DELIVERED + QUEUED + DROPPED + LIMITED + SAMPLED OUT + FILTERED + NOT SELECTED
  of the history   READ = STORED + IN MEMORY + NOT STORED
  of an exporter   READ = ACKNOWLEDGED + QUEUED + DROPPED + EXPIRED + NOT SELECTED
The ledger is settled if nothing was recorded while the daemon read it: then all its terms belong to one moment. `?` is \
a term that is not known. Columns that are 0 in all rows are left out: `-o wide` shows all. The page `ledger` of the \
documentation explains each of them. Enabled probes that do not record as requested, and what is wrong with exporters, \
are listed below the tables. Exits with 1 when the ledger is settled and does not close.

Examples:
  kprobectl ledger
  kprobectl ledger -o wide
  kprobectl ledger -o json
  kprobectl ledger -o json | jq '.exporters[] | select(.state == \"EXPORTER_STATE_FAILING\") | .error'";

/// Arguments of `ledger`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let ledger = client.ledger().await?;
    let closes = output.ledger(&ledger)?;
    Ok(if closes || !ledger.settled { Exit::Success } else { Exit::Refused })
}
