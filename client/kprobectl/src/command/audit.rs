//! `kprobectl audit`: who changed, was refused, or received what; and whether the log is as it was
//! written.

use std::io;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kprobed_audit::{Chain, Digest, Head};
use kprobed_client::api::{AuditAction, AuditEntry, AuditFilter, ReadAuditRequest};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone, to_proto_time};
use crate::quantity::{named, point_in_time};

/// Entries that are printed together: the columns of a part fit its entries.
const PART: usize = 1000;

/// Arguments of `audit`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/audit.txt"), args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Check that no entry was changed, added or removed
    #[command(after_help = include_str!("help/audit-verify.txt"))]
    Verify {
        /// A head that was noted before: SEQUENCE:DIGEST
        #[arg(long, value_name = "HEAD")]
        head: Option<Head>,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Selection {
    /// Only entries since this time: how long ago (`10m`), a time of day (`07:00`), or a date with a time
    /// [default: all]
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
    /// Only entries of this principal, such as `user:alice`; may be repeated [default: all]
    #[arg(long = "principal", value_name = "PRINCIPAL")]
    principals: Vec<String>,
    /// Only entries with this action; may be repeated [default: all]
    #[arg(long = "action", value_name = "ACTION", value_parser = named([
        ("changed", AuditAction::Changed, "A change was taken on"),
        ("failed", AuditAction::Failed, "A change was not made after all"),
        ("refused", AuditAction::Refused, "A request was refused"),
        ("read", AuditAction::Read, "A client began to receive what probes record"),
        ("ended", AuditAction::Ended, "The daemon ended a probe itself"),
        ("rotated", AuditAction::Rotated, "The oldest entries were deleted"),
    ]))]
    actions: Vec<AuditAction>,
    /// Only entries about probes whose names match (`*`, `?`) [default: all]
    #[arg(long, value_name = "GLOB")]
    probe: Option<String>,
    /// Only the last so many of these [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<usize>,
    /// Go on with new entries until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,
}

impl MessageRow for AuditEntry {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ENTRY", |entry| Cell::number(entry.sequence)),
        Column::new("TIME", |entry| Cell::time(entry.time.as_ref())),
        Column::new("ACTION", |entry| {
            Cell::from(match entry.action() {
                AuditAction::Changed => ("changed", Tone::Good),
                AuditAction::Failed => ("failed", Tone::Doubtful),
                AuditAction::Refused => ("refused", Tone::Bad),
                AuditAction::Read => ("read", Tone::Plain),
                AuditAction::Ended => ("ended", Tone::Plain),
                AuditAction::Rotated => ("rotated", Tone::Faint),
                AuditAction::Unspecified => ("unknown", Tone::Plain),
            })
        }),
        Column::new("PRINCIPAL", |entry| Cell::text(&entry.principal)),
        Column::new("CALL", |entry| Cell::text(call(entry))),
        Column::new("PROBE", |entry| Cell::text(&entry.probe)),
        Column::optional("TIMES", |entry| Cell::optional(Some(entry.times).filter(|times| *times > 1))),
        Column::sentence("REASON", |entry| Cell::text(&entry.reason)),
        Column::wide("RULE", |entry| Cell::text(&entry.rule)),
        Column::wide("REQUEST", |entry| Cell::text(&entry.request_id)),
        Column::wide("OPERATION", |entry| Cell::text(&entry.operation)),
        Column::wide("DEFINITION", |entry| Cell::text(&entry.definition)),
        Column::wide("FILTER", |entry| Cell::text(&entry.filter)),
    ];
}

/// The method, and what it changed if that is not in its name.
fn call(entry: &AuditEntry) -> String {
    let mut call = entry.method.clone();
    if !call.to_lowercase().starts_with(&entry.change) {
        // The daemon itself calls no method.
        call.push_str(if call.is_empty() { "" } else { ":" });
        call.push_str(&entry.change);
    }
    if entry.enabled == Some(false) && !matches!(entry.change.as_str(), "delete" | "label") {
        call.push_str(" (disabled)");
    }
    call
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    match arguments.command {
        Some(Command::Verify { head }) => verify(global, head, output).await,
        None => show(global, arguments.selection, output).await,
    }
}

async fn show(global: &Global, selection: Selection, output: &mut Output) -> Result<Exit, Failure> {
    let Selection { since, principals, actions, probe, count, follow } = selection;
    let filter = AuditFilter {
        principals,
        actions: actions.into_iter().map(Into::into).collect(),
        probe_glob: probe.unwrap_or_default(),
        since: since.map(to_proto_time),
    };
    let client = connect(global).await?;
    let (mut after, mut is_first) = (0, true);
    let mut print = |entries: &[AuditEntry], output: &mut Output| -> io::Result<()> {
        output.part_of_rows(entries, std::mem::take(&mut is_first))?;
        output.flush()
    };
    if let Some(count) = count {
        let (mut newest, last) = client.newest_audit_entries(&filter, count).await?;
        print(newest.make_contiguous(), output)?;
        if !follow {
            return Ok(Exit::Success);
        }
        after = last;
    }
    let mut entries = client.read_audit(ReadAuditRequest { after, follow, filter: Some(filter) }).await?;
    let mut part = Vec::new();
    while let Some(entry) = entries.next().await? {
        part.push(entry);
        if follow || part.len() == PART {
            print(&part, output)?;
            part.clear();
        }
    }
    print(&part, output)?;
    if follow { Err(Failure::stream_ended()) } else { Ok(Exit::Success) }
}

async fn verify(global: &Global, noted: Option<Head>, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut stream = client.read_audit(ReadAuditRequest::default()).await?;
    let first = stream.after();
    let after = Head { sequence: first.sequence, digest: digest(&first.digest)? };
    let mut entries = 0_u64;
    let (mut head, mut broken) = (after, None);
    match Chain::after(after, noted) {
        Err(error) => broken = Some(error),
        Ok(mut chain) => {
            while let Some(entry) = stream.next().await? {
                if let Err(error) = chain.verify(entry.sequence, &entry.record, digest(&entry.digest)?) {
                    broken = Some(error);
                    break;
                }
                entries += 1;
            }
            head = chain.head();
        }
    }
    let missing = noted.filter(|noted| !(after.sequence..=head.sequence).contains(&noted.sequence)).map(|noted| {
        if noted.sequence <= after.sequence {
            format!("entry {} was deleted to keep the log within its limit: compare with a later head", noted.sequence)
        } else {
            format!(
                "the log ends with entry {}, and entry {} was noted: its end was cut off, or a new log was begun",
                head.sequence, noted.sequence
            )
        }
    });
    let problem = broken.map(|broken| broken.to_string()).or(missing);
    let mut verified = serde_json::json!({
        "holds": problem.is_none(),
        "entries": entries.to_string(),
        "first_entry": (after.sequence + 1).to_string(),
        "head": head.to_string(),
    });
    if let Some(problem) = &problem {
        verified["problem"] = problem.as_str().into();
    }
    if !output.structured(&verified)? {
        if let Some(problem) = &problem {
            Failure::new(Exit::Refused, problem, []).report(output);
            output.line(&format!("verified: {entries} entries, up to {head}"))?;
        } else {
            output.line(&format!("all {entries} entries are as they were written; the head is {head}"))?;
        }
    }
    Ok(if problem.is_none() { Exit::Success } else { Exit::Refused })
}

fn digest(bytes: &[u8]) -> Result<Digest, Failure> {
    Digest::try_from(bytes)
        .map_err(|error| Failure::new(Exit::Usage, format!("the answer of the daemon: {error}"), []))
}
