//! `kprobectl delete`: remove probes.

use std::path::PathBuf;

use clap::Args;
use kprobed_client::api::DeleteProbeRequest;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;

use super::changes::{Mode, send};
use super::connection::connect;
use super::documents;
use super::probe_selection::{ChosenProbe, choose, selector};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// Arguments of `delete`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/delete.txt"))]
pub(crate) struct Arguments {
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

impl Arguments {
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
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
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
