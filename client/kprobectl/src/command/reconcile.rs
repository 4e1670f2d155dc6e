//! `kprobectl reconcile`: look at the probes now.

use clap::Args;
use kprobed_client::api::ReconcileOutcome;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
The daemon looks by itself when it starts, soon after another program has written to what probes depend on, when modules come and go, \
and at times (`[reconcile]` in its configuration). A probe that another program keeps changing is repaired less and less often, and is \
left alone after five repairs; --force begins anew.

OUTCOME is what was done:
  as-wanted     nothing: it was as it should be, or waits for what it is to wait for
  repaired      its event was defined, switched or filtered again
  not-repaired  it could not be repaired; the reason stands under the table
  not-due       it was repaired a short time ago
  left-alone    it was repaired too often
  would-repair  nothing, because of --dry-run: it would be repaired

Exit code 1: a probe is still not as it should be.

Examples:
  kprobectl reconcile
  kprobectl reconcile --dry-run
  kprobectl reconcile --force
  kprobectl reconcile -o json";

/// Arguments of `reconcile`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Also repair probes that were repaired too often or too lately
    #[arg(long)]
    force: bool,
    /// Look, and show what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (probes, plan) = if arguments.dry_run {
        let planned = client.plan_reconcile(arguments.force).await?;
        (planned.probes, planned.plan)
    } else {
        (client.reconcile_probes(arguments.force).await?, Vec::new())
    };
    output.reconciled(&probes)?;
    if probes.is_empty() {
        output.empty("there are no probes");
    }
    output.plan(&plan);
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    let is_well = |outcome| matches!(outcome, ReconcileOutcome::AsWanted | ReconcileOutcome::Repaired);
    let all_well = probes.iter().all(|probe| is_well(probe.outcome()));
    Ok(if all_well { Exit::Success } else { Exit::Refused })
}
