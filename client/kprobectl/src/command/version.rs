//! `kprobectl version`: the versions of this command and of the daemon.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
If the daemon cannot be reached, the command prints its own version and exits with 3.

Examples:
  kprobectl version
  kprobectl version --client
  kprobectl version -o json";

/// Arguments of `version`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Print only the version of this command, and do not connect to the daemon
    #[arg(long)]
    pub(crate) client: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.client {
        output.version(None)?;
        return Ok(Exit::Success);
    }
    let host = match connect(global).await {
        Ok(client) => client.host_basics().await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    output.version(host.as_ref().ok())?;
    host.map(|_host| Exit::Success)
}
