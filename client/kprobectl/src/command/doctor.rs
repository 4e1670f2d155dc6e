//! `kprobectl doctor`: checks of the host, with fixes.

use clap::Args;
use kprobed_client::api::CheckStatus;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Exits with 1 if a check failed. FINDING is the result of a check; `fix:` is the command or setting that corrects it.

Examples:
  kprobectl doctor
  kprobectl doctor -o json";

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let host = client.host().await?;
    output.host(&host)?;
    let failed = host.checks.iter().any(|check| check.status() == CheckStatus::Failed);
    Ok(if failed { Exit::Refused } else { Exit::Success })
}
