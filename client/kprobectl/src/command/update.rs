//! `kprobectl update`, `enable`, `disable`, `label` and `delete`: change and remove probes that there are.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use kprobed_client::Client;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{DeleteProbeRequest, Lease, Probe, UpdateProbeRequest};

use super::changes::{Mode, send, update};
use super::connection::connect;
use super::probe_selection::{ChosenProbe, ProbeSelection, choose, labels, pair, selector};
use super::{Exit, Failure, documents};
use crate::global::Global;
use crate::output::{Output, labels_text, lease, state_name};
use crate::quantity::duration;

/// Arguments of `update`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = include_str!("help/update.txt"), override_usage = "kprobectl update [OPTIONS] <NAME>...", group(
    ArgGroup::new("change")
        .required(true)
        .multiple(true)
        .args(["filter", "no_filter", "lease", "renew", "keep", "description", "owner", "accept"])
))]
pub(crate) struct Arguments {
    #[command(flatten)]
    probes: ProbeSelection,
    /// Set the kernel filter
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Remove the kernel filter
    #[arg(long, conflicts_with = "filter")]
    no_filter: bool,
    /// Delete the probes after this time from now (`30m`, `2h`)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Start the lease anew, with the duration that it has; with --selector or a glob only of probes that have one
    #[arg(long, conflicts_with = "lease")]
    renew: bool,
    /// Remove the lease: the probe stays until it is deleted
    #[arg(long, conflicts_with_all = ["lease", "renew"])]
    keep: bool,
    /// Set the description
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Name who answers questions about the probes
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Arm probes that the daemon holds back after a change of kernel, as they are written
    #[arg(long, conflicts_with_all = [
        "filter", "no_filter", "lease", "renew", "keep", "description", "owner", "take_over",
    ])]
    accept: bool,
}

impl Arguments {
    /// The request for each probe, without its name. The lease of `--renew` is that of the probe.
    fn change(&self) -> UpdateProbeRequest {
        UpdateProbeRequest {
            filter: if self.no_filter { Some(String::new()) } else { self.filter.clone() },
            lease: if self.keep { Some(Lease::default()) } else { self.lease.map(for_so_long) },
            description: self.description.clone(),
            owner: self.owner.clone(),
            accept: self.accept,
            take_over: self.probes.take_over,
            ..Default::default()
        }
    }
}

/// Continues with the next probe after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let change = arguments.change();
    let changes_lease = arguments.renew || change.lease.is_some();
    let ProbeSelection { names, selector, .. } = arguments.probes;
    let mut chosen = choose(&client, names, selector.as_deref()).await?;
    let mut exit = Exit::Success;
    let mut requests = Vec::with_capacity(chosen.len());
    if arguments.renew {
        chosen.retain(|one| one.listed.as_ref().is_none_or(|probe| probe.lease.is_some()));
        if chosen.is_empty() {
            let message = "none of these probes has a lease: they stay until they are deleted";
            return Err(Failure::refused(message, "`--lease 2h` gives them one"));
        }
    }
    for one in chosen {
        let mut request = UpdateProbeRequest { etag: one.etag(), name: one.name.clone(), ..change.clone() };
        if arguments.renew {
            match one.probe(&client).await.and_then(|probe| Ok((renewed(&probe)?, probe))) {
                Ok((lease, Probe { name, etag, .. })) => {
                    request = UpdateProbeRequest { name, etag, lease: Some(lease), ..request };
                }
                Err(failure) => {
                    exit = exit.max(failure.report(output));
                    continue;
                }
            }
        }
        requests.push(request);
    }
    let (probes, worst) = update(&client, requests, Mode::Each, output).await?;
    let now = Timestamp::now();
    output.probes_changed(&probes, |probe| match lease(probe, now) {
        _ if !changes_lease => state_name(probe.state()).0.to_owned(),
        lease if lease.is_empty() => "stays".to_owned(),
        lease => lease,
    })?;
    Ok(exit.max(worst))
}

/// The lease that a probe has, from its beginning.
fn renewed(probe: &Probe) -> Result<Lease, Failure> {
    match &probe.lease {
        Some(Lease { duration: Some(duration), .. }) => {
            Ok(Lease { duration: Some(*duration), ..Lease::default() })
        }
        Some(_) => Err(Failure::refused(
            format!("`{}` is there for as long as the client that defined it is connected", probe.name),
            "give `--lease`, or `--keep` for a probe that stays until it is deleted",
        )),
        None => Err(Failure::refused(
            format!("`{}` has no lease: it stays until it is deleted", probe.name),
            "`--lease 2h` gives it one",
        )),
    }
}

/// A lease of this duration. One that the API cannot say is longer than the daemon allows, and refused as such.
pub(super) fn for_so_long(lasting: Duration) -> Lease {
    let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
    let duration = prost_types::Duration::try_from(lasting).unwrap_or(longest);
    Lease { duration: Some(duration), ..Lease::default() }
}

pub(crate) async fn enable(
    global: &Global,
    probes: ProbeSelection,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, probes, true, output).await
}

pub(crate) async fn disable(
    global: &Global,
    probes: ProbeSelection,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, probes, false, output).await
}

/// Continues with the next name after a failure. The worst exit code wins.
async fn switch(
    global: &Global,
    ProbeSelection { names, selector, take_over }: ProbeSelection,
    enabled: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let chosen = choose(&client, names, selector.as_deref()).await?;
    let requests = chosen.into_iter().map(|one| UpdateProbeRequest {
        etag: one.etag(),
        name: one.name,
        enabled: Some(enabled),
        take_over,
        ..Default::default()
    });
    let (probes, exit) = update(&client, requests.collect(), Mode::Each, output).await?;
    output.probes_changed(&probes, |probe| state_name(probe.state()).0.to_owned())?;
    Ok(exit)
}

/// Arguments of `label`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/label.txt"))]
pub(crate) struct LabelArguments {
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
pub(crate) async fn label(
    global: &Global,
    arguments: LabelArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let LabelChanges { names, set, remove } = label_changes(&arguments.words)?;
    if set.is_empty() && remove.is_empty() {
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
        match name_and_etag(&client, one, &set, arguments.overwrite).await {
            Ok((name, etag)) => requests.push(UpdateProbeRequest {
                name,
                etag,
                set_labels: set.clone(),
                remove_labels: remove.clone(),
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
async fn name_and_etag(
    client: &Client,
    one: ChosenProbe,
    set: &HashMap<String, String>,
    overwrite: bool,
) -> Result<(String, String), Failure> {
    if overwrite {
        return Ok((one.name.clone(), one.etag()));
    }
    let Probe { name, etag, labels, .. } = one.probe(client).await?;
    let taken = set.iter().filter_map(|(key, value)| {
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
#[derive(Debug, Default)]
struct LabelChanges {
    /// Whose labels.
    names: Vec<String>,
    /// `KEY=VALUE`.
    set: HashMap<String, String>,
    /// `KEY-`.
    remove: Vec<String>,
}

/// Sorts the words of `kprobectl label`. No name of a probe holds an `=` or ends with `-`.
fn label_changes(words: &[String]) -> Result<LabelChanges, Failure> {
    let mut changes = LabelChanges::default();
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

/// Arguments of `delete`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/delete.txt"))]
pub(crate) struct DeleteArguments {
    /// GROUP/EVENT, EVENT if only one probe has it, or a glob of names (`*`, `?`)
    #[arg(required_unless_present_any = ["all", "selector", "file"], value_name = "NAME")]
    names: Vec<String>,
    /// Delete all probes
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,
    /// Delete all probes whose labels match, as for `list`; with globs, those of them
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// Delete the probes of the documents in this file or directory, as for `apply`; may be given more than once
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["names", "all", "selector"])]
    file: Vec<PathBuf>,
    /// Also search subdirectories
    #[arg(short = 'R', long, requires = "file")]
    recursive: bool,
    /// Also delete probes that a file of the daemon declares; the daemon defines them again while
    /// the file declares them
    #[arg(long)]
    take_over: bool,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl DeleteArguments {
    /// Reads the names from documents, once for all hosts.
    pub(crate) async fn read_files(&mut self) -> Result<(), Failure> {
        if !self.file.is_empty() {
            let declared = documents::read(&self.file, self.recursive).await?;
            self.names = declared.iter().map(|one| one.name().to_owned()).collect();
        }
        Ok(())
    }
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn delete(
    global: &Global,
    arguments: DeleteArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let names = if arguments.all { vec!["*".to_owned()] } else { arguments.names };
    let client = connect(global).await?;
    let chosen = choose(&client, names, arguments.selector.as_deref()).await?;
    let delete = |one: ChosenProbe| DeleteProbeRequest {
        etag: one.etag(),
        name: one.name,
        take_over: arguments.take_over,
        ..Default::default()
    };
    // Several deletions cost the other probes no more than one.
    let changes: Vec<_> = chosen.into_iter().map(|one| Change::Delete(delete(one)).into()).collect();
    let mode = if arguments.dry_run { Mode::Check } else { Mode::Each };
    let sent = send(&client, &changes, mode, output).await?;
    let deleted = sent.outcomes.into_iter().flatten().filter_map(|outcome| match outcome {
        Outcome::Deleted(probe) => Some(probe),
        _ => None,
    });
    output.probes_deleted(&deleted.collect::<Vec<_>>())?;
    if arguments.dry_run {
        output.planned(&sent.plan);
    }
    Ok(sent.exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_as_long_as_before_or_as_asked() {
        let probe = |lease| Probe { name: "kprobes/open".to_owned(), lease, ..Default::default() };
        let hour = for_so_long(Duration::from_hours(1));
        let leased =
            probe(Some(Lease { expire_time: Some(prost_types::Timestamp::default()), ..hour.clone() }));
        let held = probe(Some(Lease { holder: "hold-1".to_owned(), ..Default::default() }));
        assert_eq!(renewed(&leased).unwrap(), hour);
        let asked = |lease, keep| Arguments { lease, keep, ..Default::default() }.change().lease;
        let lease = Duration::from_secs(90);
        assert_eq!(asked(Some(lease), false), Some(for_so_long(lease)));
        assert_eq!(asked(None, true), Some(Lease::default()));
        assert_eq!(asked(None, false), None);
        for probe in [held, probe(None)] {
            let refused = renewed(&probe).unwrap_err();
            assert_eq!(refused.hints().len(), 1, "{refused}");
        }
        assert!(for_so_long(Duration::MAX).duration.is_some());
    }

    fn sorted(words: &[&str]) -> Result<LabelChanges, Failure> {
        label_changes(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
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
