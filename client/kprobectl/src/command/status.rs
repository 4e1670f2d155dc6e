//! `kprobectl status`: the daemon on one page, and what to do; `kprobectl ledger`: the account of every event; and
//! `kprobectl version`: the versions of this command and of the daemon.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use clap::Args;
use kprobed_client::api::{CheckStatus, ExporterState, GetHostResponse, GetLedgerResponse, Probe, ProbeKind};
use kprobed_client::{Client, Error, HitRates};
use serde::Serialize;

use super::connection::connect;
use super::hits::hits_of_last;
use super::{Exit, Failure, NoArguments};
use crate::global::Global;
use crate::output::{
    Interval, Output, Tone, can_be_hit, check_status, exporter_state, is_unexplained, ledger_closes,
    one_line, state_of, totals,
};

/// How far back hits are looked at.
const HITS_OF: Duration = Duration::from_mins(5);

/// `kprobectl ledger`.
pub(crate) async fn ledger(global: &Global, _: NoArguments, output: &mut Output) -> Result<Exit, Failure> {
    let ledger = connect(global).await?.ledger().await?;
    let closes = output.ledger(&ledger)?;
    Ok(if closes || !ledger.settled { Exit::Success } else { Exit::Refused })
}

/// Arguments of `version`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/version.txt"))]
pub(crate) struct VersionArguments {
    /// Print only the version of this command, and do not connect to the daemon
    #[arg(long)]
    pub(crate) client: bool,
}

pub(crate) async fn version(
    global: &Global,
    arguments: VersionArguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if arguments.client {
        show_versions(None, output)?;
        return Ok(Exit::Success);
    }
    let host = async { Ok::<_, Failure>(connect(global).await?.host_basics().await?) }.await;
    show_versions(host.as_ref().ok(), output)?;
    host.map(|_host| Exit::Success)
}

fn show_versions(host: Option<&GetHostResponse>, output: &mut Output) -> io::Result<()> {
    let client_version = env!("CARGO_PKG_VERSION");
    let mut versions = serde_json::json!({ "client_version": client_version });
    if let Some(GetHostResponse { daemon_version, hostname, kernel_release, .. }) = host {
        versions["daemon_version"] = daemon_version.as_str().into();
        versions["hostname"] = hostname.as_str().into();
        versions["kernel_release"] = kernel_release.as_str().into();
    }
    if output.structured(&versions)? {
        return Ok(());
    }
    output.line(&format!("kprobectl {client_version}"))?;
    if let Some(GetHostResponse { daemon_version, hostname, kernel_release, .. }) = host {
        output.line(&format!("kprobed {daemon_version} on {hostname} (Linux {kernel_release})"))?;
    }
    Ok(())
}

pub(crate) async fn run(global: &Global, _: NoArguments, output: &mut Output) -> Result<Exit, Failure> {
    let status = read(&connect(global).await?).await?;
    let is_well = show(&status, output)?;
    Ok(if is_well { Exit::Success } else { Exit::Refused })
}

async fn read(client: &Client) -> Result<Status, Failure> {
    let rates = hits_of_last(HITS_OF, 60, "*");
    let mut missing = Missing::default();
    let status = Status {
        host: missing.answer(Part::Host, client.host().await),
        probes: missing.answer(Part::Probes, client.list_probes("*").await),
        rates: missing.answer(Part::Hits, client.hits_over_time(rates).await),
        ledger: missing.answer(Part::Ledger, client.ledger().await),
        missing: missing.parts,
    };
    match missing.first {
        Some(error) if status.missing.len() == PARTS => Err(error.into()),
        _ => Ok(status),
    }
}

/// A part of the page, which the daemon answers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Host,
    Probes,
    Hits,
    Ledger,
}

const PARTS: usize = 4;

/// Answers that did not come.
#[derive(Default)]
struct Missing {
    parts: Vec<(Part, ToDo)>,
    first: Option<Error>,
}

impl Missing {
    /// An answer, or nothing and a note of why. One that fails keeps no other from being shown.
    fn answer<T: Default>(&mut self, part: Part, answer: Result<T, Error>) -> T {
        let error = match answer {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        let what = match part {
            Part::Host => "the host",
            Part::Probes => "probes",
            Part::Hits => "hits",
            Part::Ledger => "the ledger",
        };
        let (what, why) = (format!("{what}: not known"), error.to_string());
        let fix = error.hints().into_iter().next().unwrap_or_default();
        self.parts.push((part, ToDo { what, why, fix }));
        self.first.get_or_insert(error);
        T::default()
    }
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
    /// Their hits of the last minutes.
    rates: HitRates,
    /// Where events went, and the exporters.
    ledger: GetLedgerResponse,
    /// The parts that the daemon did not answer, which are empty, and why.
    missing: Vec<(Part, ToDo)>,
}

impl Status {
    fn knows(&self, part: Part) -> bool {
        self.missing.iter().all(|(missing, _)| *missing != part)
    }
}

/// The same, summed up, as JSON and YAML. Numbers of 64 bits are text, as in all JSON of the API. What the daemon did
/// not answer is null, and named in `to_do`.
#[derive(Serialize)]
struct StatusView {
    hostname: Option<String>,
    kernel_release: Option<String>,
    daemon_version: Option<String>,
    /// Of one CPU, since the daemon started.
    cpu_share: Option<f64>,
    uptime_seconds: Option<f64>,
    checks: Option<BTreeMap<&'static str, usize>>,
    probes: Option<BTreeMap<&'static str, usize>>,
    hits_per_second: Option<f64>,
    busiest: Vec<Busy>,
    events_read: Option<String>,
    /// Null too if another program has emptied a buffer: how many events were in it is counted nowhere.
    events_lost: Option<String>,
    /// Of all probes whose loss is not shared with others.
    ledger_closes: Option<bool>,
    /// Nothing was recorded while the ledger was read. If it is not settled, it may not close.
    ledger_settled: Option<bool>,
    subscribers: Option<usize>,
    exporters: Option<BTreeMap<String, &'static str>>,
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
#[derive(Clone, Debug, Serialize)]
struct ToDo {
    what: String,
    why: String,
    /// Empty if nothing is known to do.
    fix: String,
}

impl StatusView {
    fn new(status: &Status) -> Self {
        let Status { host, probes, rates, ledger, missing: _ } = status;
        let seconds = |duration: Option<prost_types::Duration>| {
            duration.map(|duration| duration.seconds as f64 + f64::from(duration.nanos) / 1e9)
        };
        let (used, uptime) = (seconds(host.processor_time), seconds(host.uptime));
        let share = used.zip(uptime).filter(|(_, uptime)| *uptime > 0.0).map(|(used, uptime)| used / uptime);
        let mut busy = busy(probes, rates);
        let mut points = rates.series.iter().flat_map(|series| &series.points);
        let watched = points.any(|point| point.covered_seconds > 0) && status.knows(Part::Probes);
        // The sum of no numbers is -0.
        let total = busy.iter().map(|one| one.hits_per_second).sum::<f64>() + 0.0;
        busy.retain(|one| one.hits_per_second > 0.0);
        busy.truncate(BUSIEST);
        let [has_host, has_ledger] = [Part::Host, Part::Ledger].map(|part| status.knows(part));
        let sum = |terms: &mut dyn Iterator<Item = u64>| {
            has_ledger.then(|| terms.fold(0_u64, u64::saturating_add).to_string())
        };
        let exporters = ledger.exporters.iter();
        let exporters = exporters.map(|exporter| (exporter.name.clone(), exporter_state(exporter).0));
        let of_host = |text: &String| has_host.then(|| text.clone());
        Self {
            hostname: of_host(&host.hostname),
            kernel_release: of_host(&host.kernel_release),
            daemon_version: of_host(&host.daemon_version),
            cpu_share: share,
            uptime_seconds: uptime,
            checks: has_host.then(|| counted(host.checks.iter().map(|check| check_status(check.status()).0))),
            probes: status.knows(Part::Probes).then(|| counted(probes.iter().map(|probe| state_of(probe).0))),
            hits_per_second: watched.then_some(total),
            busiest: busy,
            events_read: sum(&mut ledger.buffers.iter().map(|buffer| buffer.read)),
            events_lost: sum(&mut ledger.buffers.iter().map(|buffer| {
                let refused = buffer.commit_overrun.saturating_add(buffer.dropped_events);
                buffer.overrun.saturating_add(refused).saturating_add(buffer.taken)
            }))
            .filter(|_| ledger.buffers.iter().all(|buffer| buffer.resets == 0)),
            ledger_closes: has_ledger.then(|| ledger_closes(ledger)),
            ledger_settled: has_ledger.then_some(ledger.settled),
            subscribers: has_ledger.then_some(ledger.subscribers.len()),
            exporters: has_ledger.then(|| exporters.collect()),
            audit_entries: host.audit_head.as_ref().map(|head| head.sequence.to_string()),
            to_do: to_do(status),
            ok: is_well(status),
        }
    }
}

/// The probes by their rate over the time that was watched, the highest first.
fn busy(probes: &[Probe], rates: &HitRates) -> Vec<Busy> {
    let totals = totals(rates);
    let of = |probe: &Probe| {
        let hits_per_second = totals.get(&probe.uid).filter(|_| can_be_hit(probe.state()))?.rate()?;
        Some(Busy { probe: probe.name.clone(), hits_per_second })
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

/// Whether everything is known, no check has failed, every probe does what was asked, no hit is missing, no exporter
/// fails, and the ledger closes or is not settled. What is only a warning does not count.
fn is_well(status: &Status) -> bool {
    status.missing.is_empty()
        && !is_broken(&status.ledger)
        && missing_hits(status).is_empty()
        && status.host.checks.iter().all(|check| check.status() != CheckStatus::Failed)
        && status.probes.iter().all(|probe| state_of(probe).1 != Tone::Bad)
        && status.ledger.exporters.iter().all(|exporter| exporter.state() != ExporterState::Failing)
}

/// Whether the ledger does not close, and no event that was recorded while it was read explains that.
fn is_broken(ledger: &GetLedgerResponse) -> bool {
    ledger.settled && !ledger_closes(ledger)
}

fn to_do(status: &Status) -> Vec<ToDo> {
    let mut found: Vec<_> = status.missing.iter().map(|(_, why)| why.clone()).collect();
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
        if !probe.state_message.is_empty() && state_of(probe).1 != Tone::Good {
            found.push(ToDo {
                what: probe.name.clone(),
                why: probe.state_message.clone(),
                fix: probe.state_hint.clone(),
            });
        }
    }
    if is_broken(&status.ledger) {
        found.push(ToDo {
            what: "the ledger".to_owned(),
            why: "it DOES NOT CLOSE, although it is settled".to_owned(),
            fix: "please report this, with the file of `kprobectl debug bundle`".to_owned(),
        });
    }
    found.extend(missing_hits(status));
    for exporter in
        status.ledger.exporters.iter().filter(|exporter| exporter.state() == ExporterState::Failing)
    {
        let why = exporter.error.clone();
        let fix = "its events wait in the history: `kprobectl ledger` shows how many".to_owned();
        found.push(ToDo { what: format!("exporter {}", exporter.name), why, fix });
    }
    found
}

/// Hits that may be lost, and runs that the kernel skips now.
fn missing_hits(status: &Status) -> Vec<ToDo> {
    let mut found = Vec::new();
    for probe in status.ledger.probes.iter().filter(|probe| is_unexplained(probe)) {
        let missing = probe.unexplained.unwrap_or_default();
        let hits = probe.hits.unwrap_or_default();
        found.push(ToDo {
            what: probe.probe.clone(),
            why: format!(
                "{missing} of {hits} hits are not explained: another program has changed what is recorded"
            ),
            fix: "find that program: the daemon's log names the files, `journalctl -u kprobed`".to_owned(),
        });
    }
    let totals = totals(&status.rates);
    for probe in &status.probes {
        let Some(Interval { nmissed: nmissed @ 1.., .. }) = totals.get(&probe.uid) else { continue };
        let fix = if probe.kind() == ProbeKind::Return {
            "define it with room for more calls at a time, as `rN:NAME FUNCTION`"
        } else {
            "it is hit while another probe runs on the same CPU: probe another address; before Linux 5.14, each read of \
             memory that failed counts too"
        };
        found.push(ToDo {
            what: probe.name.clone(),
            why: format!("the kernel has skipped {nmissed} runs in the last five minutes (NMISSED)"),
            fix: fix.to_owned(),
        });
    }
    found
}
/// What the daemon did not answer.
const NOT_KNOWN: &str = "not known";

/// `2 armed, 1 failed`.
fn listed(counted: Option<&BTreeMap<&'static str, usize>>) -> String {
    let Some(counted) = counted else { return NOT_KNOWN.to_owned() };
    if counted.is_empty() {
        return "none".to_owned();
    }
    // The other words are no nouns.
    let ending = |name: &str, count: usize| if name == "warning" && count != 1 { "s" } else { "" };
    let words = counted.iter().map(|(name, count)| format!("{count} {name}{}", ending(name, *count)));
    words.collect::<Vec<_>>().join(", ")
}

/// Prints the page, and says whether nothing has failed.
fn show(status: &Status, output: &mut Output) -> io::Result<bool> {
    let view = StatusView::new(status);
    if output.structured(&view)? {
        return Ok(view.ok);
    }
    let known = |text: Option<String>| text.unwrap_or_else(|| NOT_KNOWN.to_owned());
    let host =
        view.hostname.zip(view.kernel_release).map(|(name, kernel)| format!("{name} (Linux {kernel})"));
    let usage = view.uptime_seconds.zip(view.cpu_share);
    let usage = usage.map(|(uptime, share)| format!(", up {uptime:.0} s, {:.1} % of a CPU", share * 100.0));
    let daemon = view.daemon_version.map(|version| version + &usage.unwrap_or_default());
    let not_watched =
        if status.knows(Part::Hits) && status.knows(Part::Probes) { "not watched yet" } else { NOT_KNOWN };
    let mut hits =
        view.hits_per_second.map_or_else(|| not_watched.to_owned(), |rate| format!("{rate:.1} a second"));
    for Busy { probe, hits_per_second } in &view.busiest {
        _ = write!(hits, ", {} {hits_per_second:.1}", one_line(probe));
    }
    let exporters = view.exporters.map(|exporters| {
        let states = exporters.iter().map(|(name, state)| format!("{} {state}", one_line(name)));
        let states: Vec<_> = states.collect();
        if states.is_empty() { "none".to_owned() } else { states.join(", ") }
    });
    let events = view.events_read.map(|read| {
        let emptied = || "an unknown number of events (another program emptied a buffer)".to_owned();
        let lost = view.events_lost.unwrap_or_else(emptied);
        let closes = match (view.ledger_closes, view.ledger_settled) {
            (Some(true), _) => "closes",
            (_, Some(true)) => "DOES NOT CLOSE",
            _ => "does not close, and it is not settled: events were recorded while it was read",
        };
        format!("{read} read, {lost} lost; the ledger {closes}")
    });
    output.properties(&[
        ("host", known(host)),
        ("daemon", known(daemon)),
        ("checks", listed(view.checks.as_ref())),
        ("probes", listed(view.probes.as_ref())),
        ("hits", hits),
        ("events", known(events)),
        ("subscribers", known(view.subscribers.map(|count| count.to_string()))),
        ("exporters", known(exporters)),
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
    use kprobed_client::api::{BufferLedger, HitRate, HitSeries, ProbeLedger, ProbeState};

    use super::*;

    fn with(state: ProbeState) -> Status {
        let probe = Probe { state: state.into(), state_message: "a reason".to_owned(), ..Probe::default() };
        Status {
            host: GetHostResponse::default(),
            probes: vec![probe],
            rates: HitRates::default(),
            ledger: GetLedgerResponse::default(),
            missing: Vec::new(),
        }
    }

    /// A probe that was hit 60 times in a minute.
    fn hit(state: ProbeState) -> StatusView {
        let mut status = with(state);
        let point = HitRate { covered_seconds: 60, hits: 60, ..HitRate::default() };
        let series = vec![HitSeries { points: vec![point], ..HitSeries::default() }];
        status.rates = HitRates { step_seconds: 60, series };
        StatusView::new(&status)
    }

    #[test]
    fn words_that_are_nouns_have_a_plural() {
        let counted = BTreeMap::from([("failed", 2), ("ok", 1), ("warning", 2)]);
        assert_eq!(listed(Some(&counted)), "2 failed, 1 ok, 2 warnings");
        assert_eq!(listed(Some(&BTreeMap::from([("warning", 1)]))), "1 warning");
    }

    #[test]
    fn rates_are_of_probes_that_can_be_hit() {
        let armed = hit(ProbeState::Armed);
        assert_eq!((armed.hits_per_second, armed.busiest.len()), (Some(1.0), 1));
        let failed = hit(ProbeState::Failed);
        let rate = failed.hits_per_second.unwrap();
        assert_eq!((format!("{rate:.1}"), failed.busiest.len()), ("0.0".to_owned(), 0), "and not -0.0");
    }

    #[test]
    fn what_is_not_answered_is_named_and_the_rest_is_shown() {
        let mut missing = Missing::default();
        let ledger = missing.answer(Part::Ledger, Err(Error::Incomplete("ledger")));
        let status = Status { ledger, missing: missing.parts, ..with(ProbeState::Armed) };
        let view = StatusView::new(&status);
        assert!(!view.ok && view.probes.is_some() && view.ledger_closes.is_none());
        assert_eq!(view.to_do[0].what, "the ledger: not known");
        assert_eq!(view.to_do[0].why, "the daemon's answer lacks `ledger`");
    }

    #[test]
    fn hits_that_may_be_lost_and_skipped_runs_need_attention() {
        let mut status = with(ProbeState::Armed);
        assert!(to_do(&status).is_empty());
        let unexplained = ProbeLedger { hits: Some(9), unexplained: Some(4), ..ProbeLedger::default() };
        status.ledger.probes = vec![unexplained, ProbeLedger::default()];
        let points = vec![HitRate { nmissed: 190, ..HitRate::default() }; 2];
        status.rates.series = vec![HitSeries { points, ..HitSeries::default() }];
        let said: Vec<_> = to_do(&status).into_iter().map(|todo| todo.why).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("4 of 9 hits are not explained"), "{said:?}");
        assert!(said[1].contains("skipped 380 runs"), "{said:?}");
        assert!(!is_well(&status));
        // Each of them alone.
        status.ledger.probes.clear();
        assert!(!is_well(&status));
        status.rates.series.clear();
        assert!(is_well(&status));
        status.ledger.probes = vec![ProbeLedger { unexplained: Some(4), ..ProbeLedger::default() }];
        assert!(!is_well(&status));
    }

    #[test]
    fn what_was_in_a_buffer_that_another_program_emptied_is_not_called_nothing() {
        let mut status = with(ProbeState::Armed);
        status.ledger.buffers = vec![BufferLedger { read: 9, overrun: 2, ..BufferLedger::default() }; 2];
        let lost = |status: &Status| {
            let view = StatusView::new(status);
            (view.events_read, view.events_lost)
        };
        assert_eq!(lost(&status), (Some("18".to_owned()), Some("4".to_owned())));
        status.ledger.buffers[1].resets = 1;
        assert_eq!(lost(&status), (Some("18".to_owned()), None));
    }

    #[test]
    fn a_ledger_that_is_not_settled_needs_no_attention() {
        let mut status = with(ProbeState::Armed);
        // 9 hits of which 8 are in no term.
        status.ledger.probes = vec![ProbeLedger { hits: Some(9), read: 1, ..ProbeLedger::default() }];
        let view = StatusView::new(&status);
        assert_eq!((view.ok, view.ledger_closes, view.ledger_settled), (true, Some(false), Some(false)));
        assert!(view.to_do.is_empty());
        status.ledger.settled = true;
        let view = StatusView::new(&status);
        assert!(!view.ok && view.to_do.len() == 1 && view.to_do[0].what == "the ledger");
    }

    #[test]
    fn a_probe_that_does_not_do_what_was_asked_needs_attention() {
        for state in [ProbeState::Failed, ProbeState::Drifted, ProbeState::HeldBack, ProbeState::Tripped] {
            let view = StatusView::new(&with(state));
            assert!(!view.ok && view.to_do.len() == 1, "{state:?}");
        }
        for state in [ProbeState::Armed, ProbeState::Disabled] {
            assert!(StatusView::new(&with(state)).ok, "{state:?}");
        }
        let mut waiting = with(ProbeState::HeldBack);
        waiting.probes[0].state_reason = "MODULE_ABSENT".to_owned();
        let view = StatusView::new(&waiting);
        assert!(view.ok && view.to_do.len() == 1, "it is said, and needs no attention");
    }
}
