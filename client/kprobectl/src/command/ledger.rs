//! `kprobectl ledger`: the account of every event.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// Arguments of `ledger`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/ledger.txt"))]
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
