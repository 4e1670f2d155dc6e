//! `kprobectl add`: define a probe, or do what a `-:` line asks for.

use clap::Args;
use kprobed_client::api::{ApplyLineRequest, CreateProbeRequest};

use super::connection::connect;
use super::definition::definition;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The definition is a line of the kernel's `kprobe_events` language. Quote it: `$` and `(` mean something to shells.

Examples:
  kprobectl add 'p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string'
  kprobectl add 'r:opened do_sys_openat2 fd=$retval:s32' --filter 'fd < 0'
  kprobectl add p:fork kernel_clone --disabled
  echo 'p:fork kernel_clone' | kprobectl add -
  kprobectl add -:kprobes/open";

/// Arguments of `add`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present = "delete", conflicts_with = "delete")]
    definition: Vec<String>,
    /// Delete as the kernel's language does: `-:GROUP/EVENT`, `-:EVENT` or `-:GROUP/`
    #[arg(short = ':', value_name = "NAME")]
    delete: Option<String>,
    /// Define the probe and leave it switched off
    #[arg(long, conflicts_with = "delete")]
    disabled: bool,
    /// Record only events that pass this kernel filter
    #[arg(long, conflicts_with = "delete")]
    filter: Option<String>,
    /// Check everything and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let line = match &arguments.delete {
        Some(name) => format!("-:{name}"),
        None => definition(&arguments.definition).await?,
    };
    if line.trim_start().starts_with('-') {
        if arguments.filter.is_some() || arguments.disabled {
            return Err(Failure::usage(
                "a line that deletes takes no `--filter` and no `--disabled`".to_owned(),
                None,
            ));
        }
        return apply(global, line, arguments.dry_run, output).await;
    }
    let client = connect(global).await?;
    let request = CreateProbeRequest {
        definition: line,
        enabled: !arguments.disabled,
        filter: arguments.filter.unwrap_or_default(),
        validate_only: arguments.dry_run,
        ..Default::default()
    };
    let probe = client.create_probe(request).await?;
    output.probe_created(&probe)?;
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    Ok(Exit::Success)
}

async fn apply(global: &Global, line: String, dry_run: bool, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let request = ApplyLineRequest { line, validate_only: dry_run, ..Default::default() };
    let response = client.apply_line(request).await?;
    output.names_deleted(&response.deleted)?;
    if dry_run {
        output.note("nothing was changed");
    }
    Ok(Exit::Success)
}
