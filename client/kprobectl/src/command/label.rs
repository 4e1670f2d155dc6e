//! `kprobectl label`: set and remove labels of probes.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{Probe, UpdateProbeRequest};

use super::connection::connect;
use super::label_arguments::{Changes, changes, selector};
use super::probe_selection::{ChosenProbe, choose};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, labels_text};

const AFTER_HELP: &str = "\
Labels select probes: `kprobectl list -l team=storage`. Keys and values have up to 63 letters, digits, `.`, `_`, `/` and \
`-`; a value may be empty.

Examples:
  kprobectl label open team=storage tier=2
  kprobectl label open tier-
  kprobectl label --overwrite open read team=net
  kprobectl label -l 'team=storage,tier!=2' reviewed=";

/// Arguments of `label`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Probes (GROUP/EVENT, EVENT if only one probe has it, or a glob of names), and changes: KEY=VALUE sets a label,
    /// KEY- removes one
    #[arg(required = true, value_name = "NAME|KEY=VALUE|KEY-")]
    words: Vec<String>,
    /// Change all probes whose labels match, as for `list`; with globs, those of them
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// Replace values of labels that the probes already have
    #[arg(long)]
    overwrite: bool,
    /// Also label probes that a file of the daemon declares; they then no longer belong to it
    #[arg(long)]
    take_over: bool,
    /// Only check the request, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Continues with the next probe after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let mut changes = changes(&arguments.words)?;
    let names = std::mem::take(&mut changes.names);
    if changes == Changes::default() {
        let hint = "write KEY=VALUE to set a label, KEY- to remove one".to_owned();
        return Err(Failure::usage("no label is given".to_owned(), Some(hint)));
    }
    if names.is_empty() && arguments.selector.is_none() {
        return Err(Failure::usage(
            "`kprobectl label` needs names of probes, or `--selector`".to_owned(),
            None,
        ));
    }
    let client = connect(global).await?;
    let chosen = choose(&client, names, arguments.selector.as_deref()).await?;
    let mut exit = Exit::Success;
    let mut labelled = Vec::with_capacity(chosen.len());
    for one in chosen {
        let request = UpdateProbeRequest {
            set_labels: changes.set.clone(),
            remove_labels: changes.remove.clone(),
            validate_only: arguments.dry_run,
            take_over: arguments.take_over,
            ..Default::default()
        };
        match change(&client, one, request, arguments.overwrite).await {
            Ok(probe) => labelled.push(probe),
            Err(failure) => exit = exit.max(failure.report(output)),
        }
    }
    output.results(&labelled, |probe| format!("{} {}", probe.name, labels_text(probe)))?;
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(exit)
}

/// Changes one probe. Unless labels may be overwritten, they are looked at first, and the etag
/// makes sure that no other client sets one in between.
async fn change(
    client: &Client,
    one: ChosenProbe,
    mut request: UpdateProbeRequest,
    overwrite: bool,
) -> Result<Probe, Failure> {
    request.name.clone_from(&one.name);
    request.etag = one.etag();
    if !overwrite {
        let probe = match one.listed {
            Some(probe) => probe,
            None => client.get_probe(&one.name).await?,
        };
        let mut taken: Vec<_> = request
            .set_labels
            .iter()
            .filter_map(|(key, value)| Some((key, probe.labels.get(key).filter(|has| *has != value)?)))
            .collect();
        taken.sort_unstable();
        if let Some((key, value)) = taken.first() {
            return Err(Failure::Labelled { probe: probe.name, label: format!("{key}={value}") });
        }
        request.name = probe.name;
        request.etag = probe.etag;
    }
    Ok(client.update_probe(request).await?)
}
