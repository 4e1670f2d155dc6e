//! Fake daemon that keeps probes and remembers request ids, for roll-outs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_outcome::Outcome;
use kprobed_client::api::*;
use tonic::Status;

use super::answers;

/// The probes of a host, shared with the test that looks at them.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Host>>);

#[derive(Default)]
struct Host {
    probes: BTreeMap<String, Probe>,
    /// The outcome of each request, by id.
    known: BTreeMap<String, Option<Probe>>,
    /// Changes that were carried out, in order.
    made: Vec<String>,
    next: i64,
    readings: u64,
    habits: Habits,
}

/// What goes wrong on the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habits {
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// The kernel skips so many hits between two readings.
    pub(crate) misses: u64,
    /// The ledger does not know what this probe lost.
    pub(crate) loss_is_shared: bool,
    /// Definitions with this text are refused.
    pub(crate) refuses: Option<String>,
    /// Changes are made, and never answered.
    pub(crate) never_answers: bool,
    /// What every definition records.
    pub(crate) meaning: Option<CheckedMeaning>,
    /// A check of the host fails.
    pub(crate) is_ill: bool,
    /// How often the daemon was started anew.
    pub(crate) restarts: i64,
}

impl Kept {
    /// A host of this kernel, without probes.
    pub(crate) fn new(kernel: &str) -> Self {
        let kept = Self::default();
        kept.change(|habits| kernel.clone_into(&mut habits.kernel));
        kept
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap()
    }

    /// Gives the host other habits.
    pub(crate) fn change(&self, how: impl FnOnce(&mut Habits)) {
        how(&mut self.host().habits);
    }

    pub(super) fn habits(&self) -> Habits {
        self.host().habits.clone()
    }

    /// Defines a probe, as another client would.
    pub(crate) fn define(&self, name: &str, definition: &str, filter: &str) {
        let mut host = self.host();
        host.next += 1;
        let request = CreateProbeRequest {
            definition: definition.to_owned(),
            enabled: true,
            filter: filter.to_owned(),
            ..CreateProbeRequest::default()
        };
        let probe = created(&request, name, host.next);
        host.probes.insert(name.to_owned(), probe);
    }

    /// All probes: names, definitions and filters.
    pub(crate) fn shown(&self) -> Vec<String> {
        let host = self.host();
        let one = |probe: &Probe| {
            format!("{} | {} | {} | {}", probe.name, probe.definition, probe.filter, probe.enabled)
        };
        host.probes.values().map(one).collect()
    }

    /// Changes that were carried out.
    pub(crate) fn made(&self) -> Vec<String> {
        self.host().made.clone()
    }

    pub(super) fn probes(&self) -> Vec<Probe> {
        self.host().probes.values().cloned().collect()
    }

    pub(super) fn answer(&self) -> GetHostResponse {
        let habits = self.habits();
        let mut host = answers::host();
        if let Some(time) = &mut host.daemon_start_time {
            time.seconds += habits.restarts;
        }
        if habits.is_ill {
            let (id, status) = ("instance_exists".to_owned(), CheckStatus::Failed.into());
            host.checks.push(HostCheck { id, status, ..HostCheck::default() });
        }
        GetHostResponse { kernel_release: habits.kernel, ..host }
    }

    pub(super) fn profiles(&self) -> Vec<HitProfile> {
        let mut host = self.host();
        host.readings += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let time = prost_types::Timestamp {
            seconds: i64::try_from(now.as_secs()).unwrap(),
            nanos: i32::try_from(now.subsec_nanos()).unwrap(),
        };
        let (hits, nmissed) = (host.readings * 10, host.readings * host.habits.misses);
        let one = |probe: &Probe| HitProfile {
            probe: probe.name.clone(),
            probe_uid: probe.uid,
            boot_id: "b0".to_owned(),
            time: Some(time),
            hits,
            nmissed,
            ..HitProfile::default()
        };
        host.probes.values().map(one).collect()
    }

    pub(super) fn ledger(&self) -> GetLedgerResponse {
        let host = self.host();
        let lost = (!host.habits.loss_is_shared).then_some(0);
        let one = |probe: &Probe| ProbeLedger {
            probe: probe.name.clone(),
            probe_uid: probe.uid,
            hits: Some(host.readings * 10),
            lost,
            ..ProbeLedger::default()
        };
        GetLedgerResponse { probes: host.probes.values().map(one).collect(), ..GetLedgerResponse::default() }
    }

    /// Each change for itself, or all or none, as the daemon makes them.
    pub(super) fn apply(&self, changes: Vec<Change>, all_or_nothing: bool) -> Vec<ProbeOutcome> {
        let mut host = self.host();
        let before = (host.probes.clone(), host.known.clone(), host.made.clone());
        let mut outcomes: Vec<_> = changes
            .into_iter()
            .map(|change| {
                let outcome = host.make(change).unwrap_or_else(|status| answers::outcome(Err(status)));
                ProbeOutcome { outcome: Some(outcome) }
            })
            .collect();
        let has_failed = outcomes.iter().any(|one| matches!(one.outcome, Some(Outcome::Failed(_))));
        if all_or_nothing && has_failed {
            (host.probes, host.known, host.made) = before;
            answers::all_or_nothing(&mut outcomes);
        }
        outcomes
    }
}

impl Host {
    fn make(&mut self, change: Change) -> Result<Outcome, Status> {
        let (id, name, only_checked) = match &change {
            Change::Create(request) => {
                let named = request.definition.split([':', ' ']).nth(1).unwrap_or_default();
                let name = if request.name.is_empty() { named } else { &request.name };
                (request.request_id.clone(), name.to_owned(), request.validate_only)
            }
            Change::Update(request) => {
                (request.request_id.clone(), request.name.clone(), request.validate_only)
            }
            Change::Delete(request) => {
                (request.request_id.clone(), request.name.clone(), request.validate_only)
            }
        };
        if let Some(known) = self.known.get(&id) {
            return Ok(outcome(known.clone(), name));
        }
        let live = self.probes.get(&name).cloned();
        let exists = || Status::not_found(format!("there is no probe `{name}`"));
        self.next += 1;
        let (after, told) = match change {
            Change::Create(request) => {
                self.judge(&request.definition)?;
                if live.is_some() {
                    return Err(Status::already_exists(format!("`{name}` exists")));
                }
                (Some(created(&request, &name, self.next)), "create")
            }
            Change::Update(request) => {
                let live = live.ok_or_else(exists)?;
                same_etag(&live, &request.etag)?;
                self.judge(request.definition.as_deref().unwrap_or_default())?;
                (Some(updated(live, request, self.next)), "update")
            }
            Change::Delete(request) => {
                same_etag(&live.ok_or_else(exists)?, &request.etag)?;
                (None, "delete")
            }
        };
        if !only_checked {
            match &after {
                Some(probe) => self.probes.insert(name.clone(), probe.clone()),
                None => self.probes.remove(&name),
            };
            self.made.push(format!("{told} {name}"));
            if !id.is_empty() {
                self.known.insert(id, after.clone());
            }
        }
        Ok(outcome(after, name))
    }

    fn judge(&self, definition: &str) -> Result<(), Status> {
        match &self.habits.refuses {
            Some(text) if definition.contains(text) => Err(answers::refused(definition)),
            _ => Ok(()),
        }
    }
}

fn same_etag(probe: &Probe, etag: &str) -> Result<(), Status> {
    if etag.is_empty() || etag == probe.etag { Ok(()) } else { Err(Status::aborted("it has changed")) }
}

fn outcome(probe: Option<Probe>, name: String) -> Outcome {
    match probe {
        Some(probe) => Outcome::Probe(Box::new(probe)),
        None => Outcome::Deleted(DeletedProbe { name, ..DeletedProbe::default() }),
    }
}

fn state(enabled: bool) -> i32 {
    if enabled { ProbeState::Armed } else { ProbeState::Disabled }.into()
}

fn created(request: &CreateProbeRequest, name: &str, number: i64) -> Probe {
    Probe {
        name: name.to_owned(),
        uid: number,
        etag: format!("e{number}"),
        definition: request.definition.clone(),
        enabled: request.enabled,
        filter: request.filter.clone(),
        labels: request.labels.clone(),
        description: request.description.clone(),
        owner: request.owner.clone(),
        on_kernel_change: KernelChange::Hold.into(),
        state: state(request.enabled),
        ..Probe::default()
    }
}

fn updated(live: Probe, request: UpdateProbeRequest, number: i64) -> Probe {
    let mut probe = live;
    if let Some(definition) = request.definition {
        (probe.definition, probe.uid) = (definition, number);
    }
    probe.etag = format!("e{number}");
    probe.enabled = request.enabled.unwrap_or(probe.enabled);
    probe.filter = request.filter.unwrap_or(probe.filter);
    probe.labels.retain(|key, _| !request.remove_labels.contains(key));
    probe.labels.extend(request.set_labels);
    probe.state = state(probe.enabled);
    probe
}
