//! `kprobectl version`: this command's version, and the daemon's where it can be reached.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  kprobectl version
  kprobectl version -o json";

/// Arguments of `version`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let host = match connect(global).await {
        Ok(client) => client.host().await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    match host {
        Ok(host) => output.version(Some(&host))?,
        Err(failure) => {
            output.version(None)?;
            output.note(&failure.to_string());
        }
    }
    Ok(Exit::Success)
}
