//! `kprobectl list`: probes, changes of probes (`--watch`), and foreign events (`--foreign`).

use clap::Args;
use kprobed_client::api::{ForeignEvent, ListProbesRequest, WatchProbesRequest};
use kprobed_client::{Client, WatchItem};

use super::adopt::instances;
use super::connection::connect;
use super::probe_selection::glob_of_names;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone, kind_name};

/// Arguments of `list`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/list.txt"))]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`) [default: all]
    pub(super) glob: Option<String>,
    #[command(flatten)]
    pub(super) listing: Listing,
}

impl Arguments {
    /// Whether its output has no end.
    pub(crate) fn is_endless(&self) -> bool {
        self.listing.watch
    }
}

/// What to list, and whether to follow it.
#[derive(Clone, Debug, Args)]
pub(super) struct Listing {
    /// Only probes whose labels match: `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)`,
    /// `key notin (a,b)`; with commas between, all must match [default: all probes]
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub(super) selector: String,
    /// Follow the probes: print all of them, and then every change, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
    /// List the kprobe events that the daemon did not define, instead of probes
    #[arg(long, conflicts_with_all = ["selector", "watch"])]
    pub(super) foreign: bool,
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
    if arguments.listing.foreign {
        return foreign(&client, arguments, output).await;
    }
    if arguments.listing.watch {
        return watch(&client, arguments, output).await;
    }
    let all = arguments.glob.is_none() && arguments.listing.selector.trim().is_empty();
    let request = ListProbesRequest {
        name_glob: glob_of_names(arguments.glob.as_deref().unwrap_or_default()),
        label_selector: arguments.listing.selector,
        ..Default::default()
    };
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
async fn foreign(client: &Client, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let glob = glob_of_names(arguments.glob.as_deref().unwrap_or_default());
    let events = client.foreign_probes(&glob).await?;
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
async fn watch(client: &Client, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let request = WatchProbesRequest {
        name_glob: glob_of_names(arguments.glob.as_deref().unwrap_or_default()),
        label_selector: arguments.listing.selector,
        ..Default::default()
    };
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
