//! `kprobectl ledger`: where every event went.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Exits with 1 when the account is settled and does not close.

Examples:
  kprobectl ledger
  kprobectl ledger -o json";

/// Arguments of `ledger`.
#[derive(Debug, Args)]
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
