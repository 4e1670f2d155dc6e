//! `kprobectl attach`, `detach` and `attached`: record trace events that the daemon did not define.

use clap::Args;
use kprobed_client::Error;
use kprobed_client::api::{AttachedEvent, AttachedEventState, PlannedStep};

use super::connection::connect;
use super::{Exit, Failure, answered};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone};

const ATTACH_HELP: &str = "\
The daemon records the event in its own trace instance. The definition of the event, and its recording by \
other tools, do not change. It stays attached until `kprobectl detach`, also over restarts. \
`kprobectl observe` shows its events.

Examples:
  kprobectl attach sched/sched_process_exec
  kprobectl attach raw_syscalls/sys_enter --filter 'id == 257'
  kprobectl attach sched/sched_switch --dry-run
  kprobectl observe raw_syscalls/sys_enter";

const DETACH_HELP: &str = "\
The daemon stops recording the event. Its recording by other tools does not change.

Examples:
  kprobectl detach raw_syscalls/sys_enter";

const ATTACHED_HELP: &str = "\
Examples:
  kprobectl attached
  kprobectl attached -o json";

/// Arguments of `attach`.
#[derive(Clone, Debug, Args)]
#[command(after_help = ATTACH_HELP)]
pub(crate) struct AttachArguments {
    /// GROUP/EVENT, as under `events/` in tracefs
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Record only events that pass this filter, in the kernel's filter language [default: all]
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `detach`.
#[derive(Clone, Debug, Args)]
#[command(after_help = DETACH_HELP)]
pub(crate) struct DetachArguments {
    /// GROUP/EVENT of an attached event
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `attached`.
#[derive(Clone, Debug, Args)]
#[command(after_help = ATTACHED_HELP)]
pub(crate) struct AttachedArguments {}

impl MessageRow for AttachedEvent {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |event| Cell::text(&event.name)),
        Column::new("STATE", |event| state(event).into()),
        Column::new("READ", |event| Cell::number(event.read)),
        Column::optional("FILTER", |event| Cell::text(&event.filter)),
        Column::wide("UNDECODABLE", |event| Cell::number(event.undecodable)),
        Column::wide("CREATED", |event| Cell::time(event.create_time.as_ref())),
        Column::wide("FIELDS", |event| {
            let fields = event.schema.iter().flat_map(|schema| &schema.fields);
            Cell::text(fields.map(|field| field.name.as_str()).collect::<Vec<_>>().join(" "))
        }),
    ];
}

fn state(event: &AttachedEvent) -> (&'static str, Tone) {
    match event.state() {
        AttachedEventState::Recording => ("recording", Tone::Good),
        AttachedEventState::Waiting => ("waiting", Tone::Doubtful),
        AttachedEventState::Unspecified => ("unknown", Tone::Plain),
    }
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn attach(
    global: &Global,
    AttachArguments { names, filter, dry_run }: AttachArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (mut events, mut plans) = (Vec::new(), Vec::new());
    for name in &names {
        if dry_run {
            plans.push(client.plan_attach(name, &filter).await);
        } else {
            events.push(client.attach_event(name, &filter).await);
        }
    }
    finish(events, plans, |event| event.name.clone(), output)
}

/// As `attach`.
pub(crate) async fn detach(
    global: &Global,
    DetachArguments { names, dry_run }: DetachArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (mut events, mut plans) = (Vec::new(), Vec::new());
    for name in &names {
        if dry_run {
            plans.push(client.plan_detach(name).await);
        } else {
            events.push(client.detach_event(name).await);
        }
    }
    finish(events, plans, |event| format!("{} read={}", event.name, event.read), output)
}

/// Prints what became of the events, or what would.
fn finish(
    events: Vec<Result<AttachedEvent, Error>>,
    plans: Vec<Result<Vec<PlannedStep>, Error>>,
    line: fn(&AttachedEvent) -> String,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if plans.is_empty() {
        let (events, exit) = answered(events, output);
        output.results(&events, line)?;
        return Ok(exit);
    }
    let (plans, exit) = answered(plans, output);
    output.planned(&plans.concat());
    Ok(exit)
}

pub(crate) async fn attached(
    global: &Global,
    _arguments: AttachedArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let events = client.attached_events().await?;
    output.rows(&events)?;
    for event in events.iter().filter(|event| !event.state_reason.is_empty()) {
        output.remark(&format!("`{}` is {}: {}", event.name, state(event).0, event.state_reason));
    }
    if events.is_empty() {
        output.remark("there are no attached events: `kprobectl attach` adds one");
    }
    Ok(Exit::Success)
}
