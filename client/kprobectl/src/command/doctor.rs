//! `kprobectl doctor`: checks of the host with fixes, and the repair of probes.

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{CheckStatus, GetHostResponse, HostCheck, ReconcileOutcome, ReconciledProbe};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{
    Cell, Column, MessageRow, Output, Table, Tone, check_status, counted, moment, one_line, state_name,
};

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/doctor.txt"))]
pub(crate) struct Arguments {
    /// Compare all probes with the kernel now and repair what other programs changed, instead of checking the host
    #[arg(long)]
    pub(crate) repair: bool,
    /// Also repair probes that were repaired too often or too recently
    #[arg(long, requires = "repair")]
    force: bool,
    /// Show what would be repaired, and change nothing
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
    show(&host, output)?;
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
        if let Some(why) = why_not_now(probe.outcome()) {
            output.remark(&format!("{why}: `kprobectl doctor --repair --force` repairs `{name}` now"));
        }
    }
    if probes.is_empty() {
        output.remark("there are no probes");
    }
    if arguments.dry_run {
        output.planned(&plan);
    }
    let is_well = |outcome| matches!(outcome, ReconcileOutcome::AsWanted | ReconcileOutcome::Repaired);
    let all_well = probes.iter().all(|probe| is_well(probe.outcome()));
    Ok(if all_well { Exit::Success } else { Exit::Refused })
}

/// The buffers of the host in words.
fn buffers(host: &GetHostResponse) -> String {
    let GetHostResponse { cpus, buffer_kib, sub_buffer_bytes, .. } = host;
    let cpus = counted(*cpus, "CPU");
    format!("{cpus}, {buffer_kib} KiB each, sub-buffers of {sub_buffer_bytes} bytes")
}

/// Why a probe that is not as it was requested is not repaired now, though that is possible.
fn why_not_now(outcome: ReconcileOutcome) -> Option<&'static str> {
    match outcome {
        ReconcileOutcome::NotDue => {
            Some("it was repaired a short time ago, and the daemon waits longer each time")
        }
        ReconcileOutcome::LeftAlone => Some("another program changes it again and again"),
        _ => None,
    }
}

/// Prints what is known about the host, what was checked and what to do.
fn show(host: &GetHostResponse, output: &mut Output) -> io::Result<()> {
    if output.message_structured(host)? {
        return Ok(());
    }
    let labels: BTreeMap<_, _> = host.labels.iter().collect();
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let since = moment(host.daemon_start_time.as_ref()).unwrap_or_default();
    output.properties(&[
        ("host", host.hostname.clone()),
        ("kernel", format!("{} {} {}", host.kernel_release, host.machine, host.kernel_version)),
        ("boot", host.boot_id.clone()),
        ("labels", labels.join(", ")),
        ("daemon", format!("{}, since {since}", host.daemon_version)),
        ("tracefs", format!("{}, instance {}, clock {}", host.tracefs, host.instance, host.trace_clock)),
        ("buffers", buffers(host)),
    ])?;
    output.line("")?;
    show_checks(&host.checks, output)?;
    if !host.features.is_empty() {
        let mut table = Table::new(&["FEATURE", "AVAILABLE", "FOR"]).ending_in_sentences(true);
        for feature in &host.features {
            let available =
                if feature.available { Cell::text("yes") } else { Cell::toned("no", Tone::Faint) };
            table.row(vec![Cell::text(&feature.id), available, Cell::text(&feature.description)]);
        }
        output.line("")?;
        output.table(&table)?;
    }
    if !host.foreign_probes.is_empty() {
        let mut table = Table::new(&["FOREIGN PROBE", "DEFINITION"]);
        for probe in &host.foreign_probes {
            table.row(vec![Cell::text(&probe.name), Cell::text(&probe.kernel_definition)]);
        }
        output.line("")?;
        output.table(&table)?;
    }
    Ok(())
}

fn show_checks(checks: &[HostCheck], output: &mut Output) -> io::Result<()> {
    let mut table = Table::new(&["CHECK", "STATUS", "FINDING"]).ending_in_sentences(true);
    for check in checks {
        let status = check_status(check.status()).into();
        table.row(vec![Cell::text(&check.id), status, Cell::text(&check.finding)]);
    }
    output.table(&table)?;
    // Below the table, so that a command can be copied in one piece.
    for check in checks.iter().filter(|check| !check.fix.is_empty()) {
        let head = output.paint(Tone::Good, "fix:");
        output.line(&format!("{head} {}: {}", check.id, one_line(&check.fix)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_is_no_plural() {
        let of = |cpus| {
            buffers(&GetHostResponse { cpus, buffer_kib: 64, sub_buffer_bytes: 4096, ..Default::default() })
        };
        assert_eq!(of(1), "1 CPU, 64 KiB each, sub-buffers of 4096 bytes");
        assert_eq!(of(2), "2 CPUs, 64 KiB each, sub-buffers of 4096 bytes");
    }

    #[test]
    fn one_that_was_repaired_once_is_not_said_to_be_changed_again_and_again() {
        let why = |outcome| why_not_now(outcome).unwrap_or_default();
        assert!(why(ReconcileOutcome::NotDue).starts_with("it was repaired a short time ago"));
        assert!(why(ReconcileOutcome::LeftAlone).contains("again and again"));
        assert_eq!(why_not_now(ReconcileOutcome::Repaired), None);
    }
}
