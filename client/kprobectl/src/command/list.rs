//! `kprobectl list` and `kprobectl get`: probes, changes of probes (`--watch`), foreign events (`--foreign`), and all
//! properties of probes.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::{ForeignEvent, ListProbesRequest, Probe, WatchProbesRequest};
use kprobed_client::{Client, WatchItem};

use super::adopt::instances;
use super::connection::connect;
use super::hits::hits_of_last;
use super::probe_selection::{choose, glob_of_names};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, ProbePast, Tone, kind_name};

/// The rate and the last hit are looked for in this time.
const RECENT: Duration = Duration::from_hours(1);

/// So exactly, in seconds.
const STEP_S: u32 = 10;

/// Arguments of `list`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/list.txt"))]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`) [default: all]
    glob: Option<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Arguments of `get`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/get.txt"))]
pub(crate) struct GetArguments {
    /// GROUP/EVENT, EVENT if only one probe has it, or a glob of names (`*`, `?`) [default: list all probes]
    #[arg(value_name = "NAME", conflicts_with_all = ["selector", "foreign"])]
    names: Vec<String>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// What to list, and whether to follow it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Listing {
    /// Only probes whose labels match: `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)`,
    /// `key notin (a,b)`; with commas between, all must match [default: all probes]
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Follow the probes: print all of them, and then every change, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// List the kprobe events that the daemon did not define, instead of probes
    #[arg(long, conflicts_with_all = ["selector", "watch"])]
    foreign: bool,
}

impl MessageRow for ForeignEvent {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |event| Cell::text(&event.name)),
        Column::new("KIND", |event| Cell::text(kind_name(event.kind()))),
        Column::new("PLACE", |event| Cell::text(&event.place)),
        Column::new("ENABLED IN", |event| Cell::text(instances(&event.enabled_in).join(","))),
        Column::new("HITS", |event| Cell::optional(event.hits)),
        Column::new("LOOKS OWN", |event| Cell::text(if event.made_by_kprobed { "yes" } else { "no" })),
        Column::new("ADOPTABLE", |event| match event.obstacle.as_str() {
            "" => Cell::toned("yes", Tone::Good),
            _ => Cell::toned("no", Tone::Faint),
        }),
        Column::wide("NMISSED", |event| Cell::optional(event.nmissed)),
        Column::wide("KERNEL DEFINITION", |event| Cell::text(event.kernel_definitions.join("; "))),
    ];
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let Arguments { glob, listing: Listing { selector: label_selector, watch, foreign } } = arguments;
    let name_glob = glob_of_names(glob.as_deref().unwrap_or_default());
    if foreign {
        return list_foreign(&client, &name_glob, output).await;
    }
    if watch {
        let request = WatchProbesRequest { name_glob, label_selector, ..Default::default() };
        return follow(&client, request, output).await;
    }
    let all = glob.is_none() && label_selector.trim().is_empty();
    let request = ListProbesRequest { name_glob, label_selector, ..Default::default() };
    let (probes, problems) = client.select_probes_and_problems(request).await?;
    output.probes(&probes)?;
    output.declaration_problems(&problems);
    if probes.is_empty() {
        output.remark(if all {
            "there are no probes: `kprobectl add` defines one"
        } else {
            "no probe matches"
        });
    }
    Ok(Exit::Success)
}

/// Prints events that are not the daemon's.
async fn list_foreign(client: &Client, glob: &str, output: &mut Output) -> Result<Exit, Failure> {
    let events = client.foreign_probes(glob).await?;
    output.rows(&events)?;
    for event in events.iter().filter(|event| !event.obstacle.is_empty()) {
        output.remark(&format!("`{}` cannot be adopted: {}", event.name, event.obstacle_message));
    }
    if events.is_empty() {
        output.remark(if glob.is_empty() {
            "every kprobe event of this host is a probe of the daemon"
        } else {
            "no foreign event matches"
        });
    }
    Ok(Exit::Success)
}

/// Prints changes of probes until it is interrupted.
async fn follow(client: &Client, request: WatchProbesRequest, output: &mut Output) -> Result<Exit, Failure> {
    let mut watch = client.watch_probes(request).await?;
    loop {
        match watch.next().await? {
            WatchItem::Message(message) => output.watched(&message)?,
            WatchItem::Interrupted(error) => {
                let why =
                    error.map_or_else(|| "the daemon ended the stream".to_owned(), |why| why.to_string());
                output.note(&format!("{why}; connecting again"));
            }
        }
        output.flush()?;
    }
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn get(
    global: &Global,
    arguments: GetArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let GetArguments { mut names, listing } = arguments;
    if listing.watch && names.len() > 1 {
        let hint = "name one probe, or give a glob such as `kprobes/*`";
        return Err(Failure::usage("`--watch` follows one probe, or those of one glob", hint));
    }
    if listing.watch || names.is_empty() {
        return run(global, Arguments { glob: names.pop(), listing }, output).await;
    }
    let client = connect(global).await?;
    let chosen = choose(&client, names, None).await?;
    let (mut probes, mut pasts, mut exit) = (Vec::new(), Vec::new(), Exit::Success);
    let is_one = chosen.len() == 1;
    for chosen in chosen {
        match look(&client, &chosen.name).await {
            Ok((probe, past)) => {
                probes.push(probe);
                pasts.push(past);
            }
            Err(failure) if is_one => return Err(failure),
            Err(failure) => exit = exit.max(failure.report(output)),
        }
    }
    output.probes_in_full(&probes, &pasts, is_one)?;
    Ok(exit)
}

async fn look(client: &Client, name: &str) -> Result<(Probe, ProbePast), Failure> {
    let (probe, states) = client.get_probe_and_states(name).await?;
    let profile = client.hits(&probe.name).await?.into_iter().find(|found| found.probe == probe.name);
    let rates = client.hits_over_time(hits_of_last(RECENT, STEP_S, &probe.name)).await?;
    let past = ProbePast::new(&probe, states, profile, &rates);
    Ok((probe, past))
}
