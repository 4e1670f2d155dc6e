//! `kprobectl adopt`: make probes of kprobe events that the daemon did not define.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{AdoptProbeRequest, AdoptProbeResponse, Probe};
use std::collections::HashMap;

use super::connection::connect;
use super::probe_selection::{labels, pair};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone, state_name};

/// Arguments of `adopt`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/adopt.txt"))]
pub(crate) struct Arguments {
    /// GROUP/EVENT, as `list --foreign` shows it, or EVENT if only one foreign event has it
    #[arg(required_unless_present = "all_own", conflicts_with = "all_own", value_name = "NAME")]
    names: Vec<String>,
    /// Adopt all events that look like the daemon's own
    #[arg(long)]
    all_own: bool,
    /// Record the events [default: their state in the daemon's instance]
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Do not record the events [default: their state in the daemon's instance]
    #[arg(long)]
    disable: bool,
    /// Record only events that pass this filter, in the kernel's filter language [default: its
    /// filter in the daemon's instance]
    #[arg(long, value_name = "FILTER", conflicts_with = "all_own")]
    filter: Option<String>,
    /// Give the probes this label; may be given more than once
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The instance at the top has no name.
pub(super) fn instances(names: &[String]) -> Vec<&str> {
    names.iter().map(|name| if name.is_empty() { "(top)" } else { name }).collect()
}

fn name(adopted: &AdoptProbeResponse) -> &str {
    adopted.probe.as_ref().map(|probe| probe.name.as_str()).unwrap_or_default()
}

fn state(adopted: &AdoptProbeResponse) -> (&'static str, Tone) {
    state_name(adopted.probe.as_ref().map(Probe::state).unwrap_or_default())
}

impl MessageRow for AdoptProbeResponse {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |adopted| Cell::text(name(adopted))),
        Column::new("STATE", |adopted| state(adopted).into()),
        Column::new("ENABLED IN", |adopted| Cell::text(instances(&adopted.enabled_in).join(","))),
    ];
}

/// The names with their groups.
async fn whole_names(client: &Client, names: Vec<String>) -> Result<Vec<String>, Failure> {
    let mut whole = Vec::with_capacity(names.len());
    for name in names {
        if name.contains(['/', '*', '?']) {
            whole.push(name);
            continue;
        }
        let found = client.foreign_probes(&format!("*/{name}")).await?.into_iter().map(|event| event.name);
        let found: Vec<_> = found.filter(|whole| whole.rsplit('/').next() == Some(name.as_str())).collect();
        match <[String; 1]>::try_from(found) {
            Ok([only]) => whole.push(only),
            Err(several) if several.is_empty() => {
                let message = format!("no event of another program is called `{name}`");
                return Err(Failure::refused(message, "`kprobectl list --foreign` lists them all"));
            }
            Err(several) => {
                let message = format!("several events are called `{name}`: {}", several.join(", "));
                return Err(Failure::refused(message, "name it with its group: GROUP/EVENT"));
            }
        }
    }
    Ok(whole)
}

/// Continues with the next name after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let labels: HashMap<_, _> = labels(&arguments.labels)?;
    let client = connect(global).await?;
    let names = if arguments.all_own {
        let foreign = client.foreign_probes("").await?;
        foreign.into_iter().filter(|event| event.made_by_kprobed).map(|event| event.name).collect()
    } else {
        whole_names(&client, arguments.names).await?
    };
    if names.is_empty() {
        output.note("no event looks like one of the daemon's own");
    }
    let (mut adopted, mut exit) = (Vec::with_capacity(names.len()), Exit::Success);
    for name in names {
        let request = AdoptProbeRequest {
            name,
            enabled: (arguments.enable || arguments.disable).then_some(arguments.enable),
            filter: arguments.filter.clone(),
            labels: labels.clone(),
            validate_only: arguments.dry_run,
            ..Default::default()
        };
        match client.adopt_probe(request).await {
            Ok(answer) => adopted.push(answer),
            Err(error) => exit = exit.max(Failure::from(error).report(output)),
        }
    }
    output.results(&adopted, |adopted| format!("{} {}", name(adopted), state(adopted).0))?;
    for adopted in adopted.iter().filter(|adopted| !adopted.enabled_in.is_empty()) {
        output.remark(&format!(
            "`{}` is switched on in other trace instances as well, and stays so: {}",
            name(adopted),
            instances(&adopted.enabled_in).join(", ")
        ));
    }
    if arguments.dry_run {
        output.planned(&adopted.iter().flat_map(|adopted| adopted.plan.clone()).collect::<Vec<_>>());
    }
    Ok(exit)
}
