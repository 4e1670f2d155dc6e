//! The roll-out's interface to real hosts, the state file and the output.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kprobed_client::api::probe_outcome::Outcome as Made;
use kprobed_client::api::{CheckStatus, HitProfile, Probe, ProbeLedger, ProbeState};
use kprobed_client::fleet::{FanOut, Host, Operation as _, Run};
use kprobed_client::{Client, Error};
use kprobed_document::Document;

use super::super::Failure;
use super::super::changes::is_taken_back;
use super::super::connection::parallel;
use super::super::documents::compare_one;
use super::super::many_hosts::raise_for;
use super::state_file::StateFile;
use crate::global::Global;
use crate::output::{Output, instant, state_name, waits_for_module};
use crate::progress::Progress;
use crate::rollout::{
    Armed, HostFailure, Note, Plan, ProbeReading, Reading, RolloutEvent, State, Target, World, only_marks,
    requests, settled,
};

/// The state in the file is at most this old while answers arrive. Later answers may be lost: another process
/// asks for them again.
const WRITE_EACH: Duration = Duration::from_millis(200);

/// The same while hosts are read, for `rollout status`.
const SHOW_EACH: Duration = Duration::from_secs(10);

/// Reason of a trip that has nothing to do with other probes.
const OWN_BUDGET: &str = "OVER_PROBE_BUDGET";

pub(super) struct LiveWorld<'a> {
    id: String,
    hosts: Vec<Host>,
    documents: Arc<Vec<Document>>,
    fan_out: FanOut,
    /// Absent: nothing is to outlive the process.
    file: Option<&'a StateFile>,
    written: Cell<Instant>,
    output: RefCell<&'a mut Output>,
    /// Seconds of the soak that is going on.
    soaking: RefCell<Option<Progress>>,
}

impl<'a> LiveWorld<'a> {
    /// The hosts are in the order of those in the state.
    pub(super) fn new(
        global: &Global,
        hosts: Vec<Host>,
        state: &State,
        file: Option<&'a StateFile>,
        output: &'a mut Output,
    ) -> Result<Self, Failure> {
        let default = FanOut::default();
        let fan_out = FanOut {
            parallel: parallel(global)?.unwrap_or(default.parallel),
            deadline: Client::time_for_changes(global.timeout, state.setting.documents.len()),
            fail_fast: false,
        };
        raise_for(&fan_out, hosts.len())?;
        Ok(Self {
            id: state.id.clone(),
            hosts,
            documents: Arc::new(state.setting.documents.clone()),
            fan_out,
            file,
            written: Cell::new(Instant::now()),
            output: RefCell::new(output),
            soaking: RefCell::new(None),
        })
    }

    /// Asks hosts, each with its own question. `progress`: of those that have answered.
    async fn ask<Q, T, F, A>(
        &self,
        state: &mut State,
        progress: Progress,
        asks: Vec<(usize, Q)>,
        write_each: Duration,
        operation: F,
        note: Note<'_, T>,
    ) -> Result<(), Failure>
    where
        Q: Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: Fn(Client, Q) -> A + Send + Sync + 'static,
        A: Future<Output = Result<T, HostFailure>> + Send + 'static,
    {
        let hosts: Vec<_> = asks.iter().filter_map(|(index, _)| self.hosts.get(*index).cloned()).collect();
        let asks: HashMap<_, _> = hosts.iter().map(|host| host.name.clone()).zip(asks).collect();
        let asks = Arc::new(asks);
        let asked = Arc::clone(&asks);
        let mut run = Run::start(hosts, self.fan_out, move |host, client| {
            operation(client, asked[&host.name].1.clone())
        });
        let mut done = 0;
        while let Some(report) = run.next().await {
            done += 1;
            progress.set(done);
            note(state, asks[&report.host.name].0, report.result.map_err(HostFailure::from));
            if self.written.get().elapsed() >= write_each {
                self.save(state)?;
            }
        }
        Ok(())
    }

    fn with_documents(&self, hosts: &[usize]) -> Vec<(usize, Arc<Vec<Document>>)> {
        hosts.iter().map(|index| (*index, Arc::clone(&self.documents))).collect()
    }
}

impl World for LiveWorld<'_> {
    type Error = Failure;

    async fn plan(&self, state: &mut State, hosts: &[usize], note: Note<'_, Plan>) -> Result<(), Failure> {
        let progress = self.output.borrow().progress("asking hosts", hosts.len());
        self.ask(state, progress, self.with_documents(hosts), WRITE_EACH, plan, note).await
    }

    async fn apply(
        &self,
        state: &mut State,
        targets: Vec<(usize, Vec<Target>)>,
        note: Note<'_, BTreeMap<String, Armed>>,
    ) -> Result<(), Failure> {
        let progress = self.output.borrow().progress("changing hosts", targets.len());
        self.ask(state, progress, targets, WRITE_EACH, apply, note).await
    }

    async fn read(&self, state: &mut State, hosts: &[usize], note: Note<'_, Reading>) -> Result<(), Failure> {
        let read = |client: Client, documents: Arc<Vec<Document>>| async move {
            Ok::<_, HostFailure>(reading(&client, &documents).await?.1)
        };
        self.ask(state, Progress::hidden(), self.with_documents(hosts), SHOW_EACH, read, note).await
    }

    fn save(&self, state: &State) -> Result<(), Failure> {
        if let Some(file) = self.file {
            file.write(state)?;
        }
        self.written.set(Instant::now());
        Ok(())
    }

    fn tell(&self, event: &RolloutEvent) -> Result<(), Failure> {
        self.soaking.take();
        let mut output = self.output.borrow_mut();
        output.rollout_event(&self.id, self.now_ms(), event)?;
        Ok(output.flush()?)
    }

    fn soaks(&self, done: Duration, whole: Duration) {
        let seconds = |time: Duration| usize::try_from(time.as_secs()).unwrap_or(usize::MAX);
        let mut soaking = self.soaking.borrow_mut();
        let begin = || self.output.borrow().progress("soaking, seconds", seconds(whole));
        soaking.get_or_insert_with(begin).set(seconds(done));
    }

    async fn wait(&self, time: Duration) -> Result<(), Failure> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

impl From<Failure> for HostFailure {
    fn from(failure: Failure) -> Self {
        Self::of(failure.outcome(), failure.to_string())
    }
}

async fn plan(client: Client, documents: Arc<Vec<Document>>) -> Result<Plan, HostFailure> {
    // Before the change, and before the host works on its verdict.
    let (kernel, reading) = reading(&client, &documents).await?;
    let live = live(&client).await?;
    let mut plan = Plan { kernel, reading, ..Plan::default() };
    let (mut names, mut changes) = (Vec::new(), Vec::new());
    for document in documents.iter() {
        let live = live.get(&document.name);
        let change = compare_one(&client, document, live).await?.1.filter(|change| !only_marks(change));
        plan.add(&document.name, live, change.is_some());
        if let Some(change) = change {
            names.push(&document.name);
            changes.push(change);
        }
    }
    let outcomes = if changes.is_empty() { Vec::new() } else { client.plan_probes(changes).await?.outcomes };
    for (wanted, outcome) in names.into_iter().zip(outcomes) {
        if let Err(error) = outcome {
            plan.refusals.push(format!("`{wanted}`: {error}"));
        }
    }
    Ok(plan)
}

async fn live(client: &Client) -> Result<BTreeMap<String, Probe>, Error> {
    Ok(client.list_probes("").await?.into_iter().map(|probe| (probe.name.clone(), probe)).collect())
}

async fn apply(client: Client, targets: Vec<Target>) -> Result<BTreeMap<String, Armed>, HostFailure> {
    let mut live = live(&client).await?;
    let mut changes = Vec::with_capacity(targets.len());
    for target in &targets {
        changes.push(compare_one(&client, &target.document, live.get(target.name())).await?.1);
    }
    let requests = requests(&targets, &live, changes)?;
    let outcomes =
        if requests.is_empty() { Vec::new() } else { client.apply_all_or_nothing(requests).await? };
    let mut taken_back = None;
    for outcome in outcomes {
        match outcome {
            Ok(Made::Probe(probe)) => drop(live.insert(probe.name.clone(), *probe)),
            Ok(Made::Deleted(deleted)) => drop(live.remove(&deleted.name)),
            Ok(Made::Failed(_)) => return Err(Error::Incomplete("outcomes").into()),
            // It says only that another one failed.
            Err(error) if is_taken_back(&error) => taken_back = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    taken_back.map_or_else(|| settled(&targets, &live), |error| Err(error.into()))
}

/// The release of the kernel, and all that gates are about. What the host does not say is absent.
async fn reading(client: &Client, documents: &[Document]) -> Result<(String, Reading), Error> {
    let (host, probes, profiles, ledger) =
        tokio::try_join!(client.host(), client.list_probes(""), Box::pin(client.hits("")), client.ledger())?;
    let names: BTreeSet<&str> = documents.iter().map(|document| document.name.as_str()).collect();
    let profiles: BTreeMap<_, _> = profiles
        .iter()
        .filter(|one| one.boot_id == host.boot_id)
        .map(|one| ((one.probe.as_str(), one.probe_uid), one))
        .collect();
    let terms: BTreeMap<_, _> =
        ledger.probes.iter().map(|one| ((one.probe.as_str(), one.probe_uid), one)).collect();
    let (mut tripped, mut own) = (BTreeMap::new(), BTreeMap::new());
    for probe in &probes {
        let is_own = names.contains(probe.name.as_str());
        if probe.state() == ProbeState::Tripped && (is_own || probe.state_reason != OWN_BUDGET) {
            tripped.insert(probe.uid, format!("`{}` is {}", probe.name, shown(probe)));
        }
        if is_own {
            let key = (probe.name.as_str(), probe.uid);
            let reading = probe_reading(probe, profiles.get(&key).copied(), terms.get(&key).copied());
            own.insert(probe.name.clone(), reading);
        }
    }
    let failed = host.checks.iter().filter(|check| check.status() == CheckStatus::Failed);
    let reading = Reading {
        daemon_start_ms: milliseconds(host.daemon_start_time.as_ref()).unwrap_or(0),
        failed_checks: failed.map(|check| check.id.clone()).collect(),
        boot_id: host.boot_id,
        probes: own,
        tripped,
    };
    Ok((host.kernel_release, reading))
}

fn probe_reading(probe: &Probe, profile: Option<&HitProfile>, ledger: Option<&ProbeLedger>) -> ProbeReading {
    ProbeReading {
        uid: probe.uid,
        etag: probe.etag.clone(),
        enabled: probe.enabled,
        is_as_wanted: match probe.state() {
            ProbeState::Armed => probe.enabled,
            ProbeState::Disabled => !probe.enabled,
            _ => waits_for_module(probe),
        },
        state: shown(probe),
        counted_ms: profile.and_then(|profile| milliseconds(profile.time.as_ref())),
        hits: profile.map(|profile| profile.hits),
        misses: profile.map(|profile| profile.nmissed),
        ledger_hits: ledger.and_then(|ledger| ledger.hits),
        lost: ledger.and_then(|ledger| ledger.lost),
    }
}

/// The state of a probe, with the reason.
fn shown(probe: &Probe) -> String {
    let (name, why) = (state_name(probe.state()).0, probe.state_message.as_str());
    if why.is_empty() { name.to_owned() } else { format!("{name}: {why}") }
}

fn milliseconds(time: Option<&prost_types::Timestamp>) -> Option<u64> {
    u64::try_from(instant(time)?.as_millisecond()).ok()
}
