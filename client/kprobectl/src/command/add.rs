//! `kprobectl add`: define probes from a line or a file.

use std::time::Duration;

use clap::Args;
use kprobed_client::api::CreateProbeRequest;

use super::changes::{self, RequestedChange};
use super::connection::connect;
use super::definitions::{by_source, confirm, definitions};
use super::input::{DefinitionFile, definition};
use super::probe_selection::{labels, pair};
use super::update::for_so_long;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

/// Arguments of `add`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/add.txt"))]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present_any = ["deletion", "file"], conflicts_with_all = ["deletion", "file"])]
    definition: Vec<String>,
    /// Define every line of this file; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "filter")]
    pub(crate) file: Option<DefinitionFile>,
    /// A line in the kernel's syntax that deletes, and looks like an option
    #[arg(short = ':', value_name = "NAME", hide = true)]
    deletion: Option<String>,
    /// Define the probe without recording
    #[arg(long)]
    disabled: bool,
    /// Record only events that pass this filter, in the kernel's filter language [default: all]
    #[arg(long)]
    filter: Option<String>,
    /// Give the probes this label; may be given more than once
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Describe the purpose of the probes
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The person or team that answers questions about the probes
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Delete the probes after this time (`30m`, `2h`), unless `kprobectl update` prolongs it [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if let Some(file) = &arguments.file {
        return run_file(global, &arguments, file, output).await;
    }
    let line = match &arguments.deletion {
        Some(name) => format!("-:{name}"),
        None => definition(&arguments.definition).await?,
    };
    require_no_deletion(&line, "this line")?;
    let client = connect(global).await?;
    let lines = definitions(&client, &global.lines, &[line], global.yes, output).await?.lines;
    let requests: Vec<_> =
        lines.into_iter().map(|line| creation(line, &arguments)).collect::<Result<_, _>>()?;
    let [request] = requests.as_slice() else {
        let place = |request: &CreateProbeRequest| format!("`{}`", request.definition);
        let asked = requests.iter().map(|request| RequestedChange::create(request.clone(), place(request)));
        return changes::create(&client, &asked.collect::<Vec<_>>(), arguments.dry_run, output).await;
    };
    let request = request.clone();
    if arguments.dry_run {
        let change = RequestedChange::create(request, String::new());
        return changes::create(&client, &[change], true, output).await;
    }
    output.probes_created(&[client.create_probe(request).await?])?;
    Ok(Exit::Success)
}

/// Refuses a line that deletes, with the command that does it.
fn require_no_deletion(line: &str, place: &str) -> Result<(), Failure> {
    let Some(name) = line.trim_start().strip_prefix("-:") else { return Ok(()) };
    let name = name.split(['#', ' ']).next().unwrap_or_default();
    let delete = match name.strip_suffix('/') {
        Some(group) => format!("`kprobectl delete '{group}/*'` does it"),
        None => format!("`kprobectl delete {name}` does it"),
    };
    Err(Failure::usage(format!("{place} deletes a probe"), &delete))
}

/// The request that creates a probe with this definition.
fn creation(definition: String, arguments: &Arguments) -> Result<CreateProbeRequest, Failure> {
    Ok(CreateProbeRequest {
        definition,
        enabled: !arguments.disabled,
        filter: arguments.filter.clone().unwrap_or_default(),
        labels: labels(&arguments.labels)?,
        description: arguments.description.clone().unwrap_or_default(),
        owner: arguments.owner.clone().unwrap_or_default(),
        lease: arguments.lease.map(for_so_long),
        ..CreateProbeRequest::default()
    })
}

async fn run_file(
    global: &Global,
    arguments: &Arguments,
    file: &DefinitionFile,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (text, end) = file.chunks()?;
    // The daemon divides the file; whether it takes a line, it says for all of them together.
    let mut lines = client.check_probes(text, false).await?;
    let (mut asked, mut expanded) = (Vec::new(), Vec::new());
    while let Some(one) = lines.next().await? {
        let place = format!("line {}", one.line);
        require_no_deletion(&one.definition, &place)?;
        let meant = one.check.map(|check| check.lines).filter(|meant| meant.len() > 1);
        expanded.extend(meant.is_some().then(|| one.definition.clone()));
        let meant = match meant {
            Some(meant) => meant,
            None => by_source(&client, &global.lines, &[one.definition], output).await?,
        };
        for definition in meant {
            asked.push(RequestedChange::create(creation(definition, arguments)?, place.clone()));
        }
    }
    end.wait().await?;
    confirm(&expanded, asked.len(), global.yes || expanded.is_empty())?;
    changes::create(&client, &asked, arguments.dry_run, output).await
}
