//! `kprobectl status`: the daemon on one page, and what to do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use kprobed_client::api::{
    AttachedEvent, CheckStatus, ExporterState, GetHostResponse, GetLedgerResponse, ListHitsRequest, Probe,
};
use kprobed_client::{Client, HitRates};
use serde::Serialize;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{
    Output, Tone, check_status, exporter_state, ledger_closes, one_line, state_name, to_proto_time,
};

const AFTER_HELP: &str = "\
HITS are of the last five minutes. Exits with 1 if something needs attention: a check that failed, a probe that \
does not record what was asked, an exporter that fails, or a ledger that does not close. The commands behind the \
page are `doctor`, `list`, `hits`, `ledger` and `audit`.

Examples:
  kprobectl status
  kprobectl status -o json";

/// How far back hits are looked at.
const HITS_OF: Duration = Duration::from_mins(5);

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let status = read(&connect(global).await?).await?;
    let is_well = show(&status, output)?;
    Ok(if is_well { Exit::Success } else { Exit::Refused })
}

async fn read(client: &Client) -> Result<Status, Failure> {
    let since = Timestamp::now().checked_sub(HITS_OF).unwrap_or(Timestamp::UNIX_EPOCH);
    let rates = ListHitsRequest {
        name_glob: "*".to_owned(),
        start_time: Some(to_proto_time(since)),
        step_seconds: 60,
        ..Default::default()
    };
    Ok(Status {
        host: client.host().await?,
        probes: client.list_probes("*").await?,
        attached: client.attached_events().await?,
        rates: client.hits_over_time(rates).await?,
        ledger: client.ledger().await?,
    })
}

/// Probes that are named with their rate.
const BUSIEST: usize = 3;

/// What the page is made of.
#[derive(Debug)]
struct Status {
    /// The host and its checks.
    host: GetHostResponse,
    /// All probes.
    probes: Vec<Probe>,
    /// All attached events.
    attached: Vec<AttachedEvent>,
    /// Their hits of the last minutes.
    rates: HitRates,
    /// Where events went, and the exporters.
    ledger: GetLedgerResponse,
}

/// The same, summed up, as JSON and YAML. Numbers of 64 bits are text, as in all JSON of the API.
#[derive(Serialize)]
struct StatusView {
    hostname: String,
    kernel_release: String,
    daemon_version: String,
    /// Of one CPU, since the daemon started.
    cpu_share: Option<f64>,
    uptime_seconds: Option<f64>,
    checks: BTreeMap<&'static str, usize>,
    probes: BTreeMap<&'static str, usize>,
    attached_events: usize,
    hits_per_second: Option<f64>,
    busiest: Vec<Busy>,
    events_read: String,
    events_lost: String,
    /// Of all probes whose loss is not shared with others.
    ledger_closes: bool,
    subscribers: usize,
    exporters: BTreeMap<String, &'static str>,
    audit_entries: Option<String>,
    to_do: Vec<ToDo>,
    /// Nothing has failed: see [`is_well`].
    ok: bool,
}

#[derive(Serialize)]
struct Busy {
    probe: String,
    hits_per_second: f64,
}

/// What needs attention.
#[derive(Serialize)]
struct ToDo {
    what: String,
    why: String,
    /// Empty if nothing is known to do.
    fix: String,
}

impl StatusView {
    fn new(status: &Status) -> Self {
        let Status { host, probes, attached, rates, ledger } = status;
        let seconds = |duration: Option<prost_types::Duration>| {
            duration.map(|duration| duration.seconds as f64 + f64::from(duration.nanos) / 1e9)
        };
        let (used, uptime) = (seconds(host.processor_time), seconds(host.uptime));
        let share = used.zip(uptime).filter(|(_, uptime)| *uptime > 0.0).map(|(used, uptime)| used / uptime);
        let mut busy = busy(probes, rates);
        let watched =
            rates.series.iter().flat_map(|series| &series.points).any(|point| point.covered_seconds > 0);
        let total = busy.iter().map(|one| one.hits_per_second).sum();
        busy.retain(|one| one.hits_per_second > 0.0);
        busy.truncate(BUSIEST);
        let sum = |terms: &mut dyn Iterator<Item = u64>| terms.fold(0_u64, u64::saturating_add).to_string();
        Self {
            hostname: host.hostname.clone(),
            kernel_release: host.kernel_release.clone(),
            daemon_version: host.daemon_version.clone(),
            cpu_share: share,
            uptime_seconds: uptime,
            checks: counted(host.checks.iter().map(|check| check_status(check.status()).0)),
            probes: counted(probes.iter().map(|probe| state_name(probe.state()).0)),
            attached_events: attached.len(),
            hits_per_second: watched.then_some(total),
            busiest: busy,
            events_read: sum(&mut ledger.buffers.iter().map(|buffer| buffer.read)),
            events_lost: sum(&mut ledger.buffers.iter().map(|buffer| {
                buffer.overrun.saturating_add(buffer.commit_overrun).saturating_add(buffer.dropped_events)
            })),
            ledger_closes: ledger_closes(ledger),
            subscribers: ledger.subscribers.len(),
            exporters: ledger
                .exporters
                .iter()
                .map(|exporter| (exporter.name.clone(), exporter_state(exporter).0))
                .collect(),
            audit_entries: host.audit_head.as_ref().map(|head| head.sequence.to_string()),
            to_do: to_do(status),
            ok: is_well(status),
        }
    }
}

/// The probes by their rate over the time that was watched, the highest first.
fn busy(probes: &[Probe], rates: &HitRates) -> Vec<Busy> {
    // A series is of one boot.
    let mut totals = BTreeMap::<i64, (u64, u64)>::new();
    for series in &rates.series {
        let (hits, covered) = totals.entry(series.probe_uid).or_default();
        for point in &series.points {
            (*hits, *covered) = (*hits + point.hits, *covered + u64::from(point.covered_seconds));
        }
    }
    let of = |probe: &Probe| {
        let (hits, covered) = totals.get(&probe.uid).filter(|(_, covered)| *covered > 0)?;
        Some(Busy { probe: probe.name.clone(), hits_per_second: *hits as f64 / *covered as f64 })
    };
    let mut busy: Vec<_> = probes.iter().filter_map(of).collect();
    busy.sort_by(|one, other| other.hits_per_second.total_cmp(&one.hits_per_second));
    busy
}

fn counted(names: impl Iterator<Item = &'static str>) -> BTreeMap<&'static str, usize> {
    let mut counted = BTreeMap::new();
    for name in names {
        *counted.entry(name).or_default() += 1;
    }
    counted
}

/// Whether no check has failed, every probe does what was asked, no exporter fails, and the ledger
/// closes. What is only a warning does not count.
fn is_well(status: &Status) -> bool {
    ledger_closes(&status.ledger)
        && status.host.checks.iter().all(|check| check.status() != CheckStatus::Failed)
        && status.probes.iter().all(|probe| state_name(probe.state()).1 != Tone::Bad)
        && status.ledger.exporters.iter().all(|exporter| exporter.state() != ExporterState::Failing)
}

fn to_do(status: &Status) -> Vec<ToDo> {
    let mut found = Vec::new();
    for check in &status.host.checks {
        if matches!(check.status(), CheckStatus::Warning | CheckStatus::Failed) {
            found.push(ToDo {
                what: format!("check {}", check.id),
                why: check.finding.clone(),
                fix: check.fix.clone(),
            });
        }
    }
    for probe in &status.probes {
        if !probe.state_message.is_empty() && state_name(probe.state()).1 != Tone::Good {
            found.push(ToDo {
                what: probe.name.clone(),
                why: probe.state_message.clone(),
                fix: probe.state_hint.clone(),
            });
        }
    }
    for exporter in
        status.ledger.exporters.iter().filter(|exporter| exporter.state() == ExporterState::Failing)
    {
        let why = exporter.error.clone();
        let fix = "its events wait in the history: `kprobectl ledger` shows how many".to_owned();
        found.push(ToDo { what: format!("exporter {}", exporter.name), why, fix });
    }
    found
}

/// `2 armed, 1 failed`.
fn listed(counted: &BTreeMap<&'static str, usize>) -> String {
    if counted.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<_> = counted.iter().map(|(name, count)| format!("{count} {name}")).collect();
    words.join(", ")
}

/// Prints the page, and says whether nothing has failed.
fn show(status: &Status, output: &mut Output) -> io::Result<bool> {
    let view = StatusView::new(status);
    if output.structured(&view)? {
        return Ok(view.ok);
    }
    let daemon = match (view.uptime_seconds, view.cpu_share) {
        (Some(uptime), Some(share)) => {
            format!("{}, up {:.0} s, {:.1} % of a CPU", view.daemon_version, uptime, share * 100.0)
        }
        _ => view.daemon_version.clone(),
    };
    let mut hits = view
        .hits_per_second
        .map_or_else(|| "not watched yet".to_owned(), |rate| format!("{rate:.1} a second"));
    for Busy { probe, hits_per_second } in &view.busiest {
        _ = write!(hits, ", {} {hits_per_second:.1}", one_line(probe));
    }
    let exporters: Vec<_> =
        view.exporters.iter().map(|(name, state)| format!("{} {state}", one_line(name))).collect();
    output.properties(&[
        ("host", format!("{} (Linux {})", view.hostname, view.kernel_release)),
        ("daemon", daemon),
        ("checks", listed(&view.checks)),
        ("probes", listed(&view.probes)),
        ("attached events", view.attached_events.to_string()),
        ("hits", hits),
        (
            "events",
            format!(
                "{} read, {} lost; the ledger {}",
                view.events_read,
                view.events_lost,
                if view.ledger_closes { "closes" } else { "DOES NOT CLOSE" }
            ),
        ),
        ("subscribers", view.subscribers.to_string()),
        ("exporters", if exporters.is_empty() { "none".to_owned() } else { exporters.join(", ") }),
        ("audit entries", view.audit_entries.unwrap_or_default()),
    ])?;
    for ToDo { what, why, fix } in &view.to_do {
        output.line("")?;
        output.line(&format!("{}: {}", one_line(what), one_line(why)))?;
        if !fix.is_empty() {
            let head = output.paint(Tone::Good, "fix:");
            output.line(&format!("  {head} {}", one_line(fix)))?;
        }
    }
    Ok(view.ok)
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::ProbeState;

    use super::*;

    fn with(state: ProbeState) -> Status {
        let probe = Probe { state: state.into(), state_message: "a reason".to_owned(), ..Probe::default() };
        Status {
            host: GetHostResponse::default(),
            probes: vec![probe],
            attached: Vec::new(),
            rates: HitRates::default(),
            ledger: GetLedgerResponse::default(),
        }
    }

    #[test]
    fn a_probe_that_does_not_do_what_was_asked_needs_attention() {
        for state in [ProbeState::Failed, ProbeState::Drifted, ProbeState::HeldBack, ProbeState::Tripped] {
            let view = StatusView::new(&with(state));
            assert!(!view.ok && view.to_do.len() == 1, "{state:?}");
        }
        for state in [ProbeState::Armed, ProbeState::Disabled, ProbeState::PendingModule] {
            assert!(StatusView::new(&with(state)).ok, "{state:?}");
        }
    }
}
