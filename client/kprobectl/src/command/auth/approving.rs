//! `kprobectl auth approve`, `approvals` and `revoke`: definitions that are signed off for others.

use std::path::PathBuf;

use clap::Args;
use kprobed_client::api::ApproveDefinitionsRequest;

use crate::command::connection::connect;
use crate::command::{Exit, Failure, documents, input};
use crate::global::Global;
use crate::output::Output;

const APPROVE_HELP: &str = "\
A role whose rules have `approved = true` may use approved definitions alone, and not those that it has approved \
itself. An approval is about the place, the kind and the arguments: whoever uses the definition chooses its group \
and event, labels and filter. Its digest is the same on all hosts; approve it on each. Needs a role that may \
`approve`.

Examples:
  kprobectl auth approve 'p do_sys_openat2 +0($arg2):string' --note 'ticket 4711'
  kprobectl auth approve -f probes.yaml --dry-run";

const REVOKE_HELP: &str = "\
Probes that exist go on, and are listed. Needs a role that may `approve`.

Examples:
  kprobectl auth revoke sha256:1f0c...
  kprobectl auth approvals -o json | jq -r '.[].digest' | xargs kprobectl auth revoke";

/// Arguments of `auth approve`.
#[derive(Debug, Args)]
#[command(after_help = APPROVE_HELP)]
pub(super) struct Approve {
    /// The definition; `-` is standard input
    #[arg(required_unless_present = "file")]
    definition: Vec<String>,
    /// Approve the definitions of these documents, as for `apply`
    #[arg(short, long, value_name = "FILE", conflicts_with = "definition")]
    file: Vec<PathBuf>,
    /// Why, for those who read the list
    #[arg(long, value_name = "TEXT", default_value_t)]
    note: String,
    /// Show what would be approved, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `auth revoke`.
#[derive(Debug, Args)]
#[command(after_help = REVOKE_HELP)]
pub(super) struct Revoke {
    /// Digests of the definitions, as `kprobectl auth approvals` shows them
    #[arg(required = true, value_name = "DIGEST")]
    digests: Vec<String>,
}

pub(super) async fn approve(
    global: &Global,
    arguments: Approve,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let Approve { definition, file, note, dry_run } = arguments;
    let mut definitions = Vec::new();
    if file.is_empty() {
        definitions.push(input::definition(&definition).await?);
    } else {
        let Some(declared) = documents::read(&file, false, output).await? else { return Ok(Exit::Refused) };
        definitions.extend(declared.into_iter().map(|one| one.entry.document.definition));
    }
    let request = ApproveDefinitionsRequest { definitions, note, validate_only: dry_run };
    let approvals = connect(global).await?.approve(request).await?;
    output.approvals(&approvals)?;
    if dry_run {
        output.note("nothing was approved: this was a dry run");
    }
    Ok(Exit::Success)
}

pub(super) async fn list(global: &Global, output: &mut Output) -> Result<Exit, Failure> {
    output.approvals(&connect(global).await?.approvals().await?)?;
    Ok(Exit::Success)
}

pub(super) async fn revoke(global: &Global, arguments: Revoke, output: &mut Output) -> Result<Exit, Failure> {
    let response = connect(global).await?.revoke(arguments.digests).await?;
    output.revoked(&response)?;
    Ok(if response.approvals.is_empty() { Exit::Refused } else { Exit::Success })
}
