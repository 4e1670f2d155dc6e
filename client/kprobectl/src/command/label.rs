//! `kprobectl label`: set and remove labels of probes.

use std::collections::HashMap;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{Probe, UpdateProbeRequest};

use super::changes::{Mode, update};
use super::connection::connect;
use super::probe_selection::{ChosenProbe, choose, labels, pair, selector};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, labels_text};

/// Arguments of `label`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/label.txt"))]
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
        let hint = "write KEY=VALUE to set a label, KEY- to remove one";
        return Err(Failure::usage("no label is given", hint));
    }
    if names.is_empty() && arguments.selector.is_none() {
        return Err(Failure::new(
            Exit::Usage,
            "`kprobectl label` needs names of probes, or `--selector`",
            [],
        ));
    }
    let client = connect(global).await?;
    let mut exit = Exit::Success;
    let mut requests = Vec::new();
    for one in choose(&client, names, arguments.selector.as_deref()).await? {
        match probe(&client, one, &changes, arguments.overwrite).await {
            Ok((name, etag)) => requests.push(UpdateProbeRequest {
                name,
                etag,
                set_labels: changes.set.clone(),
                remove_labels: changes.remove.clone(),
                take_over: arguments.take_over,
                ..Default::default()
            }),
            Err(failure) => exit = exit.max(failure.report(output)),
        }
    }
    let mode = if arguments.dry_run { Mode::Check } else { Mode::Each };
    let (labelled, worst) = update(&client, requests, mode, output).await?;
    output.results(&labelled, |probe| format!("{} {}", probe.name, labels_text(probe)))?;
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(exit.max(worst))
}

/// Name and etag of a probe. Unless labels may be overwritten, they are looked at first, and the etag makes sure
/// that no other client sets one in between.
async fn probe(
    client: &Client,
    one: ChosenProbe,
    changes: &Changes,
    overwrite: bool,
) -> Result<(String, String), Failure> {
    if overwrite {
        return Ok((one.name.clone(), one.etag()));
    }
    let Probe { name, etag, labels, .. } = one.probe(client).await?;
    let taken = changes.set.iter().filter_map(|(key, value)| {
        labels.get(key).filter(|has| *has != value).map(|has| format!("{key}={has}"))
    });
    match taken.min() {
        Some(label) => {
            let message = format!("`{name}` has the label `{label}`");
            Err(Failure::refused(message, "`--overwrite` replaces its value"))
        }
        None => Ok((name, etag)),
    }
}

/// What `kprobectl label` is asked to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Whose labels.
    names: Vec<String>,
    /// `KEY=VALUE`.
    set: HashMap<String, String>,
    /// `KEY-`.
    remove: Vec<String>,
}

/// Sorts the words of `kprobectl label`. No name of a probe holds an `=` or ends with `-`.
fn changes(words: &[String]) -> Result<Changes, Failure> {
    let mut changes = Changes::default();
    let mut set = Vec::new();
    for word in words {
        if let Ok(pair) = pair(word) {
            set.push(pair);
        } else if let Some(key) = word.strip_suffix('-') {
            changes.remove.push(key.to_owned());
        } else {
            changes.names.push(word.clone());
        }
    }
    changes.set = labels(&set)?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(words: &[&str]) -> Result<Changes, Failure> {
        changes(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_names_or_changes() {
        let found = sorted(&["open", "my-group/read", "team=a=b", "k-=", "tier-", "x--"]).unwrap();
        assert_eq!(found.names, ["open", "my-group/read"]);
        assert_eq!(found.remove, ["tier", "x-"]);
        let expected = [("team", "a=b"), ("k-", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(found.set, expected.into());
        assert!(sorted(&["a=1", "a=2"]).is_err());
    }
}
