//! `kprobectl list`: probes by name.

use clap::Args;
use kprobed_client::api::ListProbesRequest;

use super::connection::connect;
use super::{Exit, Failure, glob};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
STATE is what the kernel has now:
  armed     records
  disabled  is switched off, as it was asked for
  waiting   its module is not loaded: the kernel arms it when the module comes
  drifted   is in the kernel, and not as it was asked for: the reason and a hint stand under the table
  failed    is not in the kernel: so do they

Examples:
  kprobectl list
  kprobectl list 'kprobes/*' -o wide
  kprobectl list -l 'team=storage,tier!=2,!reviewed'
  kprobectl list -l 'team in (storage,net)'
  kprobectl list -o json";

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`)
    glob: Option<String>,
    /// Only probes whose labels match: `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)`, `key notin (a,b)`; with commas all of them must
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let all = arguments.glob.is_none() && arguments.selector.trim().is_empty();
    let request = ListProbesRequest {
        name_glob: glob::of_names(arguments.glob.as_deref().unwrap_or_default()),
        label_selector: arguments.selector,
        ..Default::default()
    };
    let probes = client.select_probes(request).await?;
    output.probes(&probes)?;
    if probes.is_empty() {
        output.empty(if all {
            "there are no probes: `kprobectl add` defines one"
        } else {
            "no probe matches"
        });
    }
    Ok(Exit::Success)
}
