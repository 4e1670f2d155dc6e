//! `kprobectl add`: define probes from a line, a file or fields, or carry out a `-:` line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::{ApplyLineRequest, CreateProbeRequest, FileDefinition, Severity};
use kprobed_client::{Client, Definition, Error, PlannedChanges};

use super::connection::connect;
use super::create_all::{self, Creation};
use super::input::{definition, definitions, specs};
use super::label_arguments::{labels, pair};
use super::renew::for_so_long;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
The definition is a line of the kernel's `kprobe_events` language, the same with the names of 2009 (`a0`, `rv`), or a function
prototype of 2018. Put it in quotes: `$` and `(` are special to shells.

A file has one definition per line, in any of these languages. `#` starts a comment, and a backslash at the end of a line \
continues it. The command reads the whole file before it changes anything. A file without deletions is defined as a \
whole: if the daemon refuses a line, nothing is changed, and every refused line is reported. A file of more than 1000 \
definitions is checked as a whole, and defined 1000 at a time: all of those or none. A file with deletions \
is carried out line by line, up to the first refused line.

`--spec` takes definitions as fields, in JSON or YAML documents, as `kprobectl explain -o yaml` and \
`kprobectl get -o json` print them under `spec`. It defines all of them or none. `kprobectl apply` \
takes documents with all properties of probes.

Examples:
  kprobectl add 'p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string'
  kprobectl add 'r:opened do_sys_openat2 fd=$retval:s32' --filter 'fd < 0'
  kprobectl add 'ip_rcv(x64 skb | int skb[32])'
  kprobectl add p:fork kernel_clone --disabled
  kprobectl add p:fork kernel_clone -l team=storage -l tier=2
  kprobectl add p:fork kernel_clone --owner 'storage team' --description 'who forks'
  kprobectl add p:fork kernel_clone --for 2h
  kprobectl add -f probes.txt
  kprobectl add --spec probe.yaml
  echo 'p:fork kernel_clone' | kprobectl add -
  kprobectl add -:kprobes/open";

/// Arguments of `add`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present_any = ["delete", "file", "spec"], conflicts_with_all = ["delete", "file", "spec"])]
    definition: Vec<String>,
    /// Carry out every line of this file; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["delete", "filter"])]
    file: Option<PathBuf>,
    /// Define the probes in this JSON or YAML file; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["delete", "file"])]
    spec: Option<PathBuf>,
    /// Delete as the kernel's language does: `-:GROUP/EVENT`, `-:EVENT` or `-:GROUP/`
    #[arg(short = ':', value_name = "NAME")]
    delete: Option<String>,
    /// Define the probe without recording
    #[arg(long, conflicts_with = "delete")]
    disabled: bool,
    /// Record only events that pass this filter, in the kernel's filter language [default: all]
    #[arg(long, conflicts_with = "delete")]
    filter: Option<String>,
    /// Give the probes this label; may be given more than once
    #[arg(short = 'l', long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair, conflicts_with = "delete")]
    labels: Vec<(String, String)>,
    /// Describe the purpose of the probes
    #[arg(long, value_name = "TEXT", conflicts_with = "delete")]
    description: Option<String>,
    /// Name who answers questions about the probes
    #[arg(long, value_name = "TEXT", conflicts_with = "delete")]
    owner: Option<String>,
    /// Delete the probes after this time (`30m`, `2h`), unless `kprobectl renew` prolongs it [default: never]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "delete")]
    lasting: Option<Duration>,
    /// Only check the request, show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if let Some(path) = &arguments.file {
        return run_file(global, &arguments, path, output).await;
    }
    if let Some(path) = &arguments.spec {
        let specs = specs(path).await?;
        let several = specs.len() > 1;
        let asked = specs.into_iter().zip(1..).map(|(spec, number)| {
            let place = if several { format!("document {number}") } else { String::new() };
            Ok::<_, Failure>(Creation { request: creation(spec.into(), &arguments)?, place })
        });
        let asked = asked.collect::<Result<Vec<_>, _>>()?;
        return create_all::create(&connect(global).await?, &asked, arguments.dry_run, output).await;
    }
    let line = match &arguments.delete {
        Some(name) => format!("-:{name}"),
        None => definition(&arguments.definition).await?,
    };
    let deletes = line.trim_start().starts_with('-');
    if deletes && arguments.define() {
        return Err(Failure::usage(
            "a line that deletes a probe cannot have `--filter`, `--disabled`, `--label`, `--description`, `--owner` or `--for`"
                .to_owned(),
            None,
        ));
    }
    one(&connect(global).await?, line, deletes, &arguments, output).await?;
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(Exit::Success)
}

impl Arguments {
    /// Whether any of them sets a property of a new probe.
    fn define(&self) -> bool {
        let texts = [&self.filter, &self.description, &self.owner];
        self.disabled
            || self.lasting.is_some()
            || !self.labels.is_empty()
            || texts.iter().any(|text| text.is_some())
    }
}

/// Carries out one line.
async fn one(
    client: &Client,
    line: String,
    deletes: bool,
    arguments: &Arguments,
    output: &mut Output,
) -> Result<(), Failure> {
    if deletes {
        let request = ApplyLineRequest { line, validate_only: arguments.dry_run, ..Default::default() };
        let response = client.apply_line(request).await?;
        return Ok(output.names_deleted(&response.deleted)?);
    }
    let request = creation(line.into(), arguments)?;
    if !arguments.dry_run {
        let probe = client.create_probe(request).await?;
        return Ok(output.probe_created(&probe)?);
    }
    let PlannedChanges { mut outcomes, plan } = client.plan_probes(vec![Change::Create(request)]).await?;
    if let Outcome::Probe(probe) = outcomes.pop().unwrap_or(Err(Error::Incomplete("outcomes")))? {
        output.probe_created(&probe)?;
        output.plan(&plan);
    }
    Ok(())
}

/// The request that creates a probe with this definition.
fn creation(definition: Definition, arguments: &Arguments) -> Result<CreateProbeRequest, Failure> {
    Ok(CreateProbeRequest {
        enabled: !arguments.disabled,
        filter: arguments.filter.clone().unwrap_or_default(),
        labels: labels(&arguments.labels)?,
        description: arguments.description.clone().unwrap_or_default(),
        owner: arguments.owner.clone().unwrap_or_default(),
        lease: arguments.lasting.map(for_so_long),
        ..definition.into()
    })
}

async fn run_file(
    global: &Global,
    arguments: &Arguments,
    path: &Path,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let found = definitions(&client, path).await?;
    let unreadable: Vec<_> = found.iter().filter(|one| !is_readable(one)).collect();
    if !unreadable.is_empty() {
        for one in unreadable {
            output.unreadable(one);
        }
        output.note("nothing was changed");
        return Ok(Exit::Refused);
    }
    if found.iter().any(|one| one.deletes) {
        return one_by_one(&client, found, arguments, output).await;
    }
    let asked = found.into_iter().map(|one| {
        let place = format!("line {}", one.line);
        Ok::<_, Failure>(Creation { request: creation(one.text.into(), arguments)?, place })
    });
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    create_all::create(&client, &asked, arguments.dry_run, output).await
}

/// Carries out lines in order, up to the first that is refused.
async fn one_by_one(
    client: &Client,
    lines: Vec<FileDefinition>,
    arguments: &Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    for FileDefinition { line, text, deletes, .. } in lines {
        if let Err(failure) = one(client, text, deletes, arguments, output).await {
            output
                .note(&format!("stopped at line {line}: this line and those after it were not carried out"));
            return Err(failure);
        }
    }
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(Exit::Success)
}

fn is_readable(definition: &FileDefinition) -> bool {
    definition.diagnostics.iter().all(|diagnostic| diagnostic.severity() == Severity::Warning)
}
