//! `kprobectl enable` and `kprobectl disable`.

use clap::Args;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const ENABLE_HELP: &str = "\
Examples:
  kprobectl enable kprobes/open
  kprobectl enable open opened";

const DISABLE_HELP: &str = "\
Examples:
  kprobectl disable kprobes/open
  kprobectl disable open opened";

/// Arguments of `enable`.
#[derive(Debug, Args)]
#[command(after_help = ENABLE_HELP)]
pub(crate) struct EnableArguments {
    /// GROUP/EVENT, or EVENT where only one probe has it
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Arguments of `disable`.
#[derive(Debug, Args)]
#[command(after_help = DISABLE_HELP)]
pub(crate) struct DisableArguments {
    /// GROUP/EVENT, or EVENT where only one probe has it
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(crate) async fn enable(
    global: &Global,
    arguments: EnableArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, &arguments.names, true, output).await
}

pub(crate) async fn disable(
    global: &Global,
    arguments: DisableArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, &arguments.names, false, output).await
}

/// Goes through all names, whatever happens to one of them. The worst exit code wins.
async fn switch(
    global: &Global,
    names: &[String],
    enabled: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut exit = Exit::Success;
    let mut probes = Vec::with_capacity(names.len());
    for name in names {
        match client.set_enabled(name, enabled).await {
            Ok(probe) => probes.push(probe),
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    output.probes_changed(&probes)?;
    Ok(exit)
}
