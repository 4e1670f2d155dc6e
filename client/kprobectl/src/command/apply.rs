//! `kprobectl apply`: create, update and delete probes so that they match documents.

use std::path::PathBuf;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::PlannedStep;
use kprobed_client::api::probe_change::Change;

use super::connection::connect;
use super::document_changes::{compare, deletion, to_prune};
use super::documents;
use super::label_arguments::selector;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{AppliedProbe, Output};

const AFTER_HELP: &str = "\
A file has YAML or JSON documents, one for each probe, with `---` between them. `kprobectl get -o yaml` \
and `list -o yaml` print such documents:

  probe: kprobes/open
  definition: p:kprobes/open do_sys_openat2 name=+0($arg2):ustring
  enabled: true
  filter: dfd >= 0
  labels: {team: storage}
  owner: storage team
  description: who opens what
  lease: 2h
  on_kernel_change: hold

Only `probe` and `definition` are required; the other properties have the defaults of a new probe. \
Documents are compared by meaning: applying one twice \
changes nothing. A different definition replaces the probe's, and the probe then counts from zero. A \
lease of the same length is not renewed. `take_over: true` is for files of the daemon's directory: they \
then take probes over from clients. --take-over of `apply` is for the other direction.

The daemon checks all changes before it makes the first one: if it refuses one, nothing is changed. \
For lines of definitions use `kprobectl add -f`.

Examples:
  kprobectl apply -f probes.yaml
  kprobectl apply -f probes/ -R --dry-run
  kprobectl get open -o yaml | kprobectl apply -f -
  kprobectl apply -f probes/ --prune -l team=storage
  kprobectl apply -f probes.yaml --atomic";

/// Arguments of `apply`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
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

/// Options for the documents.
#[derive(Clone, Debug, Args)]
pub(crate) struct Files {
    /// A file of documents, or a directory of *.yaml, *.yml and *.json; `-` is standard input; may
    /// be given more than once
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Also search subdirectories
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
}

impl Files {
    /// Whether they can be read; if not, that is reported.
    pub(crate) async fn are_readable(&self, output: &mut Output) -> Result<bool, Failure> {
        Ok(documents::read(&self.files, self.recursive, output).await?.is_some())
    }
}

/// Options of `--prune`.
#[derive(Clone, Debug, Args)]
pub(super) struct Prune {
    /// Delete probes that --selector finds and no document names
    #[arg(long, requires = "selector")]
    pub(super) prune: bool,
    /// Which probes --prune may delete: labels, as for `list`
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, requires = "prune")]
    pub(super) selector: Option<String>,
}

/// A requested change, and its result for the output.
struct RequestedChange {
    change: Option<Change>,
    told: AppliedProbe,
    /// Where its document is; empty for one that has none.
    place: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { files, prune, atomic, take_over, dry_run, strict: _ } = arguments;
    let Some(declared) = documents::read(&files.files, files.recursive, output).await? else {
        output.note("nothing was changed");
        return Ok(Exit::Refused);
    };
    let client = connect(global).await?;
    let planned = compare(&client, declared).await?;
    let pruned = match prune.selector {
        Some(selector) => to_prune(&client, selector, &planned, take_over, output).await?,
        None => Vec::new(),
    };
    // With several hosts, their meanings of a definition are compared.
    let compared: Vec<_> = planned
        .iter()
        .filter(|one| dry_run && output.is_keeping() && one.change.is_some())
        .map(|one| one.wanted.definition.clone())
        .collect();
    let mut asked: Vec<_> = planned
        .into_iter()
        .map(|one| {
            let action = match (&one.change, &one.live) {
                (None, _) => "unchanged",
                (Some(_), None) => "created",
                (Some(_), Some(_)) => "configured",
            };
            let change = one.change.map(|change| match change {
                Change::Update(request) => {
                    Change::Update(kprobed_client::api::UpdateProbeRequest { take_over, ..request })
                }
                other => other,
            });
            let told = AppliedProbe { name: one.declared.name().to_owned(), action };
            RequestedChange { change, told, place: one.declared.place() }
        })
        .collect();
    asked.extend(pruned.iter().map(|probe| RequestedChange {
        change: Some(deletion(probe, take_over)),
        told: AppliedProbe { name: probe.name.clone(), action: "deleted" },
        place: String::new(),
    }));
    let changes = asked.iter().filter(|one| one.change.is_some()).count();
    if atomic && changes > Client::CHANGES_AT_ONCE {
        let message =
            format!("these are {changes} changes, and `--atomic` makes at most {}", Client::CHANGES_AT_ONCE);
        return Err(Failure::usage(
            message,
            Some("apply the files one by one, or without `--atomic`".to_owned()),
        ));
    }
    let (exit, plan) = carry_out(&client, &mut asked, Mode::Check, output).await?;
    if exit != Exit::Success {
        output.note("nothing was changed");
        return Ok(exit);
    }
    if dry_run {
        for definition in compared {
            let answer = client.check_probe(&definition).await?;
            output.remember(&definition, &answer);
        }
        output.applied(&asked.into_iter().map(|one| one.told).collect::<Vec<_>>())?;
        output.plan(&plan);
        output.note("nothing was changed");
        return Ok(Exit::Success);
    }
    let mode = if atomic { Mode::All } else { Mode::Each };
    let (exit, _) = carry_out(&client, &mut asked, mode, output).await?;
    output.applied(&asked.into_iter().map(|one| one.told).collect::<Vec<_>>())?;
    Ok(exit)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Check,
    Each,
    All,
}

/// Sends all changes, and reports failures. Returns the plan if they are only checked.
async fn carry_out(
    client: &Client,
    asked: &mut [RequestedChange],
    mode: Mode,
    output: &mut Output,
) -> Result<(Exit, Vec<PlannedStep>), Failure> {
    let (mut exit, mut plan) = (Exit::Success, Vec::new());
    let mut rest: Vec<_> = asked.iter_mut().filter(|one| one.change.is_some()).collect();
    for asked in rest.chunks_mut(Client::CHANGES_AT_ONCE) {
        let changes: Vec<_> = asked.iter().filter_map(|one| one.change.clone()).collect();
        let outcomes: Vec<_> = match mode {
            Mode::Check => {
                let planned = client.plan_probes(changes).await?;
                plan.extend(planned.plan);
                planned.outcomes
            }
            Mode::Each => client.apply_probes(changes).await?,
            Mode::All => client.apply_all_or_nothing(changes).await?,
        };
        for (one, outcome) in asked.iter_mut().zip(outcomes) {
            if let Err(error) = outcome {
                one.told.action = "failed";
                output.document_place(&one.place);
                exit = exit.max(Failure::from(error).report(output));
            }
        }
    }
    Ok((exit, plan))
}
