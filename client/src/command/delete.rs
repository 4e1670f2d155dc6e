//! `kprobectl delete`: remove probes.

use clap::Args;
use kprobed_client::api::DeleteProbeRequest;

use super::connection::connect;
use super::{Exit, Failure, glob};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  kprobectl delete kprobes/open
  kprobectl delete open opened
  kprobectl delete --all 'test/*'";

/// Arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT where only one probe has it
    #[arg(required_unless_present = "all", value_name = "NAME")]
    names: Vec<String>,
    /// Remove all probes whose names match (`*`, `?`)
    #[arg(long, value_name = "GLOB", conflicts_with = "names")]
    all: Option<String>,
    /// Check everything and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Goes through all names, whatever happens to one of them. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut requests: Vec<DeleteProbeRequest> =
        arguments.names.into_iter().map(|name| DeleteProbeRequest { name, ..Default::default() }).collect();
    if let Some(pattern) = arguments.all {
        // The etag makes sure that what is deleted is what was listed.
        let probes = client.list_probes(&glob::of_names(&pattern)).await?;
        if probes.is_empty() {
            return Err(Failure::NoMatch(pattern));
        }
        requests.extend(probes.into_iter().map(|probe| DeleteProbeRequest {
            name: probe.name,
            etag: probe.etag,
            ..Default::default()
        }));
    }
    let mut exit = Exit::Success;
    let mut deleted = Vec::with_capacity(requests.len());
    for mut request in requests {
        request.validate_only = arguments.dry_run;
        let name = request.name.clone();
        match client.delete_probe(request).await {
            // The profile has the whole name, where only the event was asked for.
            Ok(Some(profile)) => deleted.push((profile.probe.clone(), Some(profile))),
            Ok(None) => deleted.push((name, None)),
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    output.probes_deleted(&deleted)?;
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(exit)
}
