//! `kprobectl doctor`: checks of the host with fixes, and the repair of probes.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{CheckStatus, ReconcileOutcome, ReconciledProbe};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Cell, Column, MessageRow, Output, Tone, state_name};

const AFTER_HELP: &str = "\
Exits with 1 if a check failed. FINDING is the result of a check; `fix:` is the command or setting that corrects it.

--repair has the daemon look at all probes now, and repair them. It does this by itself: when it starts, after another \
program has written to files that probes depend on, when modules are loaded or removed, and periodically (`[reconcile]` \
in its configuration). A probe that another program keeps changing is repaired less and less often, and is left alone \
after five repairs; --force starts again. OUTCOME is the result for each probe:
  as-wanted     it is as requested, or waits for its module; nothing was done
  repaired      its event was defined, enabled, disabled or filtered again
  not-repaired  the repair failed; the reason is printed below the table
  not-due       it was repaired a short time ago, and is not repaired yet
  left-alone    it was repaired too often
  would-repair  it would be repaired without --dry-run
Exit code 1: a probe is still not as requested.

Examples:
  kprobectl doctor
  kprobectl doctor -o json
  kprobectl doctor --repair
  kprobectl doctor --repair --dry-run
  kprobectl doctor --repair --force -o json";

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Look at all probes now, and repair what other programs have changed, instead of checking the host
    #[arg(long)]
    pub(crate) repair: bool,
    /// Also repair probes that were repaired too often or too recently
    #[arg(long, requires = "repair")]
    force: bool,
    /// Only look, show what would be done, and change nothing
    #[arg(long, requires = "repair")]
    pub(crate) dry_run: bool,
}

impl MessageRow for ReconciledProbe {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |probe| Cell::text(&probe.name)),
        Column::new("FOUND", |probe| state_name(probe.found()).into()),
        Column::new("OUTCOME", |probe| outcome_name(probe.outcome()).into()),
        Column::new("STATE", |probe| state_name(probe.state()).into()),
    ];
}

const fn outcome_name(outcome: ReconcileOutcome) -> (&'static str, Tone) {
    match outcome {
        ReconcileOutcome::AsWanted => ("as-wanted", Tone::Good),
        ReconcileOutcome::Repaired => ("repaired", Tone::Doubtful),
        ReconcileOutcome::NotRepaired => ("not-repaired", Tone::Bad),
        ReconcileOutcome::NotDue => ("not-due", Tone::Doubtful),
        ReconcileOutcome::LeftAlone => ("left-alone", Tone::Bad),
        ReconcileOutcome::WouldRepair => ("would-repair", Tone::Doubtful),
        ReconcileOutcome::Unspecified => ("unknown", Tone::Plain),
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    if arguments.repair {
        return repair(&client, &arguments, output).await;
    }
    let host = client.host().await?;
    output.host(&host)?;
    let failed = host.checks.iter().any(|check| check.status() == CheckStatus::Failed);
    Ok(if failed { Exit::Refused } else { Exit::Success })
}

async fn repair(client: &Client, arguments: &Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let (probes, plan) = if arguments.dry_run {
        let planned = client.plan_reconcile(arguments.force).await?;
        (planned.probes, planned.plan)
    } else {
        (client.reconcile_probes(arguments.force).await?, Vec::new())
    };
    output.rows(&probes)?;
    for probe in &probes {
        let ReconciledProbe { name, found_message, message, .. } = probe;
        if !found_message.is_empty() {
            output.remark(&format!("`{name}` was {}: {found_message}", state_name(probe.found()).0));
        }
        if !message.is_empty() {
            output.remark(&format!("`{name}` was not repaired: {message}"));
        }
    }
    if probes.is_empty() {
        output.remark("there are no probes");
    }
    output.plan(&plan);
    if arguments.dry_run {
        output.note("nothing was changed");
    }
    let is_well = |outcome| matches!(outcome, ReconcileOutcome::AsWanted | ReconcileOutcome::Repaired);
    let all_well = probes.iter().all(|probe| is_well(probe.outcome()));
    Ok(if all_well { Exit::Success } else { Exit::Refused })
}
