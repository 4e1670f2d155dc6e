//! `kprobectl apply`: create, update and delete probes so that they match documents; and `kprobectl diff`: the changes
//! that it would make.

use std::path::PathBuf;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{Probe, ProbeState, UpdateProbeRequest};
use kprobed_document::{document_of, write};

use super::changes::{Mode, RequestedChange, send};
use super::connection::connect;
use super::documents::{self, Declared, PlannedDocument, compare, deletion, to_prune};
use super::probe_selection::selector;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{AppliedProbe, Output, ProbeDifference};

/// Arguments of `apply`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/apply.txt"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    prune: Prune,
    /// Make all changes or none, even if one that passed the check fails; at most 1000 changes
    #[arg(long)]
    atomic: bool,
    /// Also change probes that a file of the daemon declares; they then no longer belong to it
    #[arg(long)]
    take_over: bool,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With several hosts and --dry-run: also exit with 1 if all hosts accept a definition but
    /// would record different things
    #[arg(long, requires = "dry_run")]
    pub(crate) strict: bool,
}

/// Arguments of `diff`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/diff.txt"))]
pub(crate) struct DiffArguments {
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    prune: Prune,
}

/// Options for the documents.
#[derive(Clone, Debug, Args)]
pub(crate) struct Files {
    /// A file of documents, or a directory of *.yaml, *.yml and *.json; `-` is standard input; may
    /// be given more than once
    #[arg(short = 'f', long = "file", value_name = "PATH", required = true)]
    pub(super) paths: Vec<PathBuf>,
    /// Also search subdirectories
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// The documents, once they are read.
    #[arg(skip)]
    declared: Vec<Declared>,
}

impl Files {
    /// Reads them, once for all hosts.
    pub(crate) async fn read(&mut self) -> Result<(), Failure> {
        self.declared = documents::read(&self.paths, self.recursive).await?;
        Ok(())
    }
}

/// Options of `--prune`.
#[derive(Clone, Debug, Args)]
struct Prune {
    /// Delete probes that --selector finds and no document names
    #[arg(long, requires = "selector")]
    prune: bool,
    /// Which probes --prune may delete: labels, as for `list`
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, requires = "prune")]
    selector: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { files, prune, atomic, take_over, dry_run, strict: _ } = arguments;
    let client = connect(global).await?;
    let planned = compare(&client, global, files.declared).await?;
    let pruned = to_prune(&client, prune.selector, &planned, take_over, output).await?;
    // With several hosts, their meanings of a definition are compared, also where nothing changes: by the text of the
    // document, which all hosts have.
    let compared: Vec<_> = planned
        .iter()
        .filter(|_| dry_run && output.is_keeping())
        .map(|one| one.declared.entry.document.definition.clone())
        .collect();
    let (mut applied, mut changes) = (Vec::new(), Vec::new());
    for PlannedDocument { declared, live, change, .. } in planned {
        let action = match (&change, live) {
            (None, _) => "unchanged",
            (Some(_), None) => "created",
            (Some(_), Some(_)) => "configured",
        };
        applied.push(AppliedProbe { name: declared.name().to_owned(), action });
        changes.extend(change.map(|change| {
            let change = match change {
                Change::Update(request) => Change::Update(UpdateProbeRequest { take_over, ..request }),
                other => other,
            };
            RequestedChange { change, place: declared.place() }
        }));
    }
    for probe in &pruned {
        applied.push(AppliedProbe { name: probe.name.clone(), action: "deleted" });
        changes.push(RequestedChange::from(deletion(probe, take_over)));
    }
    if atomic && changes.len() > Client::CHANGES_AT_ONCE {
        let (changes, most) = (changes.len(), Client::CHANGES_AT_ONCE);
        return Err(Failure::usage(
            format!("these are {changes} changes, and `--atomic` makes at most {most}"),
            "apply the files one by one, or without `--atomic`",
        ));
    }
    let checked = send(&client, &changes, Mode::Check, output).await?;
    if checked.exit != Exit::Success {
        output.note("nothing was changed");
        return Ok(checked.exit);
    }
    let sent = if dry_run {
        for definition in compared {
            let answer = client.check_probe(&definition).await?;
            output.remember(&definition, &answer);
        }
        checked
    } else {
        send(&client, &changes, if atomic { Mode::All } else { Mode::Each }, output).await?
    };
    // Each of the others has a change, in the same order.
    let changed = applied.iter_mut().filter(|one| one.action != "unchanged");
    for (one, _) in changed.zip(&sent.outcomes).filter(|(_, outcome)| outcome.is_none()) {
        one.action = "failed";
    }
    output.results(&applied, |one| format!("{} {}", one.name, one.action))?;
    if dry_run {
        output.planned(&sent.plan);
    }
    Ok(sent.exit)
}

/// Ends with 1 if there is a difference. What `dispatch` makes of a failure never does.
pub(crate) async fn diff(
    global: &Global,
    DiffArguments { files, prune }: DiffArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let planned = compare(&client, global, files.declared).await?;
    let pruned = to_prune(&client, prune.selector, &planned, false, output).await?;
    let text = |document| write(&[document]).map_err(std::io::Error::other);
    // It is out of the kernel, whatever its fields say.
    let before = |live: &Probe| {
        let mark = if live.state() == ProbeState::Expired { "# its lease has ended\n" } else { "" };
        text(document_of(live)).map(|text| mark.to_owned() + &text)
    };
    let mut found = Vec::new();
    for one in planned.into_iter().filter(|one| one.change.is_some()) {
        found.push(ProbeDifference {
            name: one.declared.name().to_owned(),
            action: if one.live.is_some() { "configured" } else { "created" },
            file: one.declared.file.clone(),
            before: one.live.as_ref().map(before).transpose()?.unwrap_or_default(),
            after: text(one.wanted)?,
        });
    }
    for probe in pruned {
        found.push(ProbeDifference {
            name: probe.name.clone(),
            action: "deleted",
            file: String::new(),
            before: before(&probe)?,
            after: String::new(),
        });
    }
    output.differences(&found)?;
    Ok(if found.is_empty() { Exit::Success } else { Exit::Refused })
}
