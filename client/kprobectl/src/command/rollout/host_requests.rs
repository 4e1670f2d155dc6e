//! Requests of a roll-out to one host, and what its answers mean.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome as Made;
use kprobed_client::api::{CheckStatus, GetHostResponse, HitProfile, Probe, ProbeLedger, ProbeState};
use kprobed_client::fleet::{NoAnswer, Operation, Outcome};
use kprobed_client::{Client, Error};
use kprobed_document::Document;

use super::super::Failure;
use super::super::document_changes::compare_one;
use crate::rollout::{
    ChangeDone, HostAnswer, HostFailure, HostQuery, Inspection, PlannedProbe, ProbeReading, Reading, Spent,
    Verdict, only_marks,
};

/// Why a host did not answer as it should.
pub(super) struct Problem {
    outcome: Outcome,
    message: String,
}

impl Operation for Problem {
    fn outcome(&self) -> Outcome {
        self.outcome
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self { outcome: failure.outcome(), message: failure.to_string() }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

/// What a failure of a host means for a roll-out.
pub(super) fn trouble(why: NoAnswer<Problem>) -> HostFailure {
    match why {
        NoAnswer::Operation { outcome, error } => {
            HostFailure { is_refusal: outcome == Outcome::Refused, message: error.message }
        }
        NoAnswer::Unreachable(Error::Connect { kind, .. }) => {
            HostFailure { is_refusal: false, message: kind.to_string() }
        }
        NoAnswer::TimedOut(deadline) => {
            HostFailure { is_refusal: false, message: format!("no answer within {deadline:?}") }
        }
        NoAnswer::Unreachable(error) => HostFailure { is_refusal: false, message: error.to_string() },
        NoAnswer::Broken(problem) => HostFailure { is_refusal: false, message: problem },
        _ => HostFailure { is_refusal: false, message: "it was not asked".to_owned() },
    }
}

/// Asks a host.
pub(super) async fn ask(
    client: Client,
    ask: HostQuery,
    documents: &[Document],
) -> Result<HostAnswer, Problem> {
    match ask {
        // They are large, and only two of several.
        HostQuery::Judge => Ok(HostAnswer::Judged(Box::new(Box::pin(verdict(&client, documents)).await?))),
        HostQuery::Look => Box::pin(look(&client, documents)).await,
        HostQuery::Make(changes) => make(&client, changes).await,
        HostQuery::Read => Ok(HostAnswer::Read(Box::new(reading(&client, documents).await?))),
        HostQuery::Probes => Ok(HostAnswer::Probes(client.list_probes("").await?)),
    }
}

async fn look(client: &Client, documents: &[Document]) -> Result<HostAnswer, Problem> {
    // Before the change, and before the host works on its verdict.
    let reading = reading(client, documents).await?;
    let verdict = verdict(client, documents).await?;
    Ok(HostAnswer::Inspected(Box::new(Inspection { verdict, reading })))
}

async fn verdict(client: &Client, documents: &[Document]) -> Result<Verdict, Problem> {
    let (host, probes) = tokio::try_join!(client.host_basics(), client.list_probes(""))?;
    let mut probes: BTreeMap<_, _> = probes.into_iter().map(|probe| (probe.name.clone(), probe)).collect();
    let mut planned = Vec::with_capacity(documents.len());
    for document in documents {
        let live = probes.remove(&document.name);
        let (_, change) = compare_one(client, document, live.as_ref()).await?;
        let change = change.filter(|change| !only_marks(change));
        planned.push(PlannedProbe { name: document.name.clone(), live, change });
    }
    let changed: Vec<_> = planned.iter().filter(|one| one.change.is_some()).collect();
    let asked: Vec<_> = changed.iter().filter_map(|one| one.change.clone()).collect();
    let outcomes = if asked.is_empty() { Vec::new() } else { client.plan_probes(asked).await?.outcomes };
    let refusal = |(one, outcome): (&&PlannedProbe, Result<Made, Error>)| match outcome {
        Ok(Made::Probe(probe)) if probe.name != one.name => {
            Some(Failure::OtherName { found: probe.name.clone(), wanted: one.name.clone() }.to_string())
        }
        Ok(_) => None,
        Err(error) => Some(format!("`{}`: {error}", one.name)),
    };
    let refusals = changed.iter().zip(outcomes).filter_map(refusal).collect();
    Ok(Verdict { kernel: host.kernel_release, planned, refusals })
}

async fn make(client: &Client, changes: Vec<Change>) -> Result<HostAnswer, Problem> {
    let outcomes = client.apply_all_or_nothing(changes).await?;
    let mut done = Vec::with_capacity(outcomes.len());
    let mut problem: Option<Problem> = None;
    for outcome in outcomes {
        match outcome {
            Ok(Made::Probe(probe)) => done.push(ChangeDone::Probe(probe)),
            Ok(Made::Deleted(_)) => done.push(ChangeDone::Deleted),
            Ok(Made::Failed(_)) => {
                problem = Some(Error::Incomplete("outcomes").into());
            }
            Err(error) => {
                // The others say only that this one failed.
                let is_cause = error.rpc().is_none_or(|rpc| rpc.reason != BATCH_FAILED);
                if is_cause || problem.is_none() {
                    problem = Some(error.into());
                }
            }
        }
    }
    problem.map_or(Ok(HostAnswer::Made(done)), Err)
}

/// Reason of a change that was taken back because another one failed.
const BATCH_FAILED: &str = "BATCH_FAILED";

/// Reason of a trip that has nothing to do with other probes.
const OWN_BUDGET: &str = "OVER_PROBE_BUDGET";

/// Reads all that gates are about. Nothing of it is made up where the host does not say it.
async fn reading(client: &Client, documents: &[Document]) -> Result<Reading, Error> {
    let (host, probes, profiles, ledger) =
        tokio::try_join!(client.host(), client.list_probes(""), Box::pin(client.hits("")), client.ledger())?;
    let names: BTreeSet<&str> = documents.iter().map(|document| document.name.as_str()).collect();
    let profiles: BTreeMap<_, _> =
        profiles.iter().map(|one| ((one.probe.as_str(), one.probe_uid), one)).collect();
    let terms: BTreeMap<_, _> =
        ledger.probes.iter().map(|one| ((one.probe.as_str(), one.probe_uid), one)).collect();
    let (own, others): (Vec<_>, Vec<_>) =
        probes.iter().partition(|probe| names.contains(probe.name.as_str()));
    let others_tripped = others
        .into_iter()
        .filter(|probe| probe.state() == ProbeState::Tripped && probe.state_reason != OWN_BUDGET)
        .map(|probe| (probe.name.clone(), state(probe)))
        .collect();
    let probes = own
        .into_iter()
        .map(|probe| {
            let key = (probe.name.as_str(), probe.uid);
            let profile = profiles.get(&key).copied().filter(|profile| profile.boot_id == host.boot_id);
            (probe.name.clone(), probe_reading(probe, profile, terms.get(&key).copied()))
        })
        .collect();
    Ok(Reading {
        daemon_start_ms: milliseconds(host.daemon_start_time.as_ref()).unwrap_or(0),
        spent: spent(&host),
        failed_checks: failed_checks(&host),
        boot_id: host.boot_id,
        probes,
        others_tripped,
    })
}

fn failed_checks(host: &GetHostResponse) -> BTreeSet<String> {
    let failed = host.checks.iter().filter(|check| check.status() == CheckStatus::Failed);
    failed.map(|check| check.id.clone()).collect()
}

/// What the daemon has used. One without the other says nothing.
fn spent(host: &GetHostResponse) -> Option<Spent> {
    let nanoseconds = |time: Option<&prost_types::Duration>| {
        let time = Duration::try_from(*time?).ok()?;
        u64::try_from(time.as_nanos()).ok()
    };
    Some(Spent {
        processor_ns: nanoseconds(host.processor_time.as_ref())?,
        uptime_ns: nanoseconds(host.uptime.as_ref())?,
    })
}

/// The state of a probe, with the reason.
fn state(probe: &Probe) -> String {
    let name =
        probe.state().as_str_name().trim_start_matches("PROBE_STATE_").to_lowercase().replace('_', "-");
    let why = probe.state_message.as_str();
    if why.is_empty() { name } else { format!("{name}: {why}") }
}

fn probe_reading(probe: &Probe, profile: Option<&HitProfile>, ledger: Option<&ProbeLedger>) -> ProbeReading {
    let is_as_wanted = match probe.state() {
        ProbeState::Armed => probe.enabled,
        ProbeState::Disabled => !probe.enabled,
        // It waits for its module, as defined.
        ProbeState::PendingModule => true,
        _ => false,
    };
    ProbeReading {
        uid: probe.uid,
        etag: probe.etag.clone(),
        enabled: probe.enabled,
        is_as_wanted,
        is_tripped: probe.state() == ProbeState::Tripped,
        state: state(probe),
        counted_ms: profile.and_then(|profile| milliseconds(profile.time.as_ref())),
        hits: profile.map(|profile| profile.hits),
        misses: profile.map(|profile| profile.nmissed),
        ledger_hits: ledger.and_then(|ledger| ledger.hits),
        lost: ledger.and_then(|ledger| ledger.lost),
    }
}

fn milliseconds(time: Option<&prost_types::Timestamp>) -> Option<u64> {
    let time = time?;
    let seconds = u64::try_from(time.seconds).ok()?;
    seconds.checked_mul(1000)?.checked_add(u64::try_from(time.nanos).ok()? / 1_000_000)
}
