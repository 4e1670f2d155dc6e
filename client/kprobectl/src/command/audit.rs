//! `kprobectl audit`: who changed, was refused, or received what; and whether the log is as it was
//! written.

use std::collections::VecDeque;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use kprobed_audit::{Broken, Chain, Digest, Head};
use kprobed_client::api::{AuditAction, AuditEntry, AuditFilter, AuditHead, ReadAuditRequest};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, Verified, to_proto_time};
use crate::quantity::point_in_time;

const AFTER_HELP: &str = "\
An entry of a change is stored with the change itself. Equal refusals and reads within a minute are one entry \
with a count. `-o wide` also prints rules, request ids and definitions. Reading the log needs a role that may \
`administer`, or that allows the method `ReadAudit`.

Examples:
  kprobectl audit
  kprobectl audit --since 1h --action refused
  kprobectl audit --principal user:alice --probe 'storage/*' -o wide
  kprobectl audit -n 20 -f
  kprobectl audit -o json | jq 'select(.action == \"AUDIT_ACTION_CHANGED\")'
  kprobectl audit verify";

const VERIFY_HELP: &str = "\
Each entry has a digest over itself and the digest of the entry before it: SHA-256 over that digest (32 bytes) \
and the record, which `kprobectl audit -o json` prints. Whoever changes or removes an entry has to rewrite all \
that follow. That is noticed if the head, which this command and `kprobectl doctor -o json` print, was noted \
elsewhere. Exits with 1 if the log is not as it was written.

Examples:
  kprobectl audit verify
  kprobectl audit verify --head \"$(cat head-of-yesterday)\"";

/// Arguments of `audit`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    selection: Selection,
}

impl Arguments {
    /// Whether its output has no end.
    pub(crate) fn is_endless(&self) -> bool {
        self.selection.follow
    }
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Check that no entry was changed, added or removed
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// A head that was noted before: SEQUENCE:DIGEST
        #[arg(long, value_name = "HEAD")]
        head: Option<Head>,
    },
}

#[derive(Clone, Debug, Args)]
struct Selection {
    /// Only entries since this time: how long ago (`10m`), a time of day (`07:00`), or a date with a time
    /// [default: all]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// Only entries of this principal, such as `user:alice`; may be repeated [default: all]
    #[arg(long = "principal", value_name = "PRINCIPAL")]
    principals: Vec<String>,
    /// Only entries with this action; may be repeated [default: all]
    #[arg(long = "action", value_name = "ACTION")]
    actions: Vec<ActionName>,
    /// Only entries about probes whose names match (`*`, `?`) [default: all]
    #[arg(long, value_name = "GLOB")]
    probe: Option<String>,
    /// Only the last so many of these [default: all]
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    last: Option<usize>,
    /// Go on with new entries until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ActionName {
    /// A change was taken on
    Changed,
    /// A change was not made after all
    Failed,
    /// A request was refused
    Refused,
    /// A client began to receive what probes record
    Read,
    /// The daemon ended a probe itself
    Ended,
    /// The oldest entries were deleted
    Rotated,
}

impl From<ActionName> for AuditAction {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Changed => Self::Changed,
            ActionName::Failed => Self::Failed,
            ActionName::Refused => Self::Refused,
            ActionName::Read => Self::Read,
            ActionName::Ended => Self::Ended,
            ActionName::Rotated => Self::Rotated,
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments.command {
        Some(Command::Verify { head }) => verify(global, head, output).await,
        None => show(global, arguments.selection, output).await,
    }
}

async fn show(global: &Global, selection: Selection, output: &mut Output) -> Result<Exit, Failure> {
    let Selection { since, principals, actions, probe, last, follow } = selection;
    let filter = AuditFilter {
        principals,
        actions: actions.into_iter().map(|action| AuditAction::from(action).into()).collect(),
        probe_glob: probe.unwrap_or_default(),
        since: since.map(to_proto_time),
    };
    let client = connect(global).await?;
    let ask = |after, follow| ReadAuditRequest { after, follow, filter: Some(filter.clone()) };
    let mut after = 0;
    if let Some(last) = last {
        // What was there is read to its end first: only then it is known which are the last.
        let mut present = client.read_audit(ask(0, false)).await?;
        let mut kept = VecDeque::new();
        while let Some(entry) = present.next().await? {
            after = entry.sequence;
            kept.push_back(entry);
            if kept.len() > last {
                kept.pop_front();
            }
        }
        for entry in &kept {
            output.audit_entry(entry)?;
        }
        output.flush()?;
        if !follow {
            return Ok(Exit::Success);
        }
    }
    let mut entries = client.read_audit(ask(after, follow)).await?;
    while let Some(entry) = entries.next().await? {
        output.audit_entry(&entry)?;
        if follow {
            output.flush()?;
        }
    }
    Ok(Exit::Success)
}

async fn verify(global: &Global, noted: Option<Head>, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut stream = client.read_audit(ReadAuditRequest::default()).await?;
    let after = head(stream.after())?;
    let mut entries = 0;
    let (mut head, mut broken) = (after, None);
    match Chain::after(after, noted) {
        Err(error) => broken = Some(error),
        Ok(mut chain) => {
            while let Some(entry) = stream.next().await? {
                if let Err(error) = check(&mut chain, &entry)? {
                    broken = Some(error);
                    break;
                }
                entries += 1;
            }
            head = chain.head();
        }
    }
    let missing =
        noted.filter(|noted| broken.is_none() && !(after.sequence..=head.sequence).contains(&noted.sequence));
    let verified = Verified { entries, after, head, broken, missing };
    output.audit_verified(&verified)?;
    let holds = verified.broken.is_none() && verified.missing.is_none();
    Ok(if holds { Exit::Success } else { Exit::Refused })
}

fn check(chain: &mut Chain, entry: &AuditEntry) -> Result<Result<(), Broken>, Failure> {
    let digest = digest(&entry.digest)?;
    Ok(chain.verify(entry.sequence, &entry.record, digest).map(drop))
}

fn head(head: &AuditHead) -> Result<Head, Failure> {
    Ok(Head { sequence: head.sequence, digest: digest(&head.digest)? })
}

fn digest(bytes: &[u8]) -> Result<Digest, Failure> {
    Digest::try_from(bytes)
        .map_err(|error| Failure::usage(format!("the answer of the daemon: {error}"), None))
}
