//! Change of hosts, and the undo of it: each probe as its document says, or as it was before.
//!
//! Owns that what was before is in the state before a change is sent, and what a probe shows: whether it is
//! as before, as this roll-out left it, or changed by another client. No request is kept: it follows from the
//! document and the probe, and is found anew after a crash.

use std::collections::BTreeMap;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::{DeleteProbeRequest, Probe};
use kprobed_document::{Document, changed, document_of};
use serde::{Deserialize, Serialize};

use super::answers::{Answers, REFUSED, fail, go_on_without, reason};
use super::drive::happened;
use super::state::{Phase, State, Step};
use super::world::{HostFailure, Plan, World};

/// A probe as the change left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Armed {
    pub(crate) uid: i64,
    pub(crate) etag: String,
}

impl Armed {
    pub(super) fn of(probe: &Probe) -> Self {
        Self { uid: probe.uid, etag: probe.etag.clone() }
    }
}

/// A probe that the roll-out changes on a host, or puts back.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Begins the request id, and is the same after a crash.
    id: String,
    /// The document of the roll-out.
    pub(crate) document: Document,
    /// The etag before the change. Absent: there was no probe.
    etag: Option<String>,
    /// The probe before the change.
    before: Option<Document>,
    /// Absent: no answer of the host to the change was recorded.
    armed: Option<Armed>,
    is_back: bool,
}

impl Target {
    pub(crate) fn name(&self) -> &str {
        &self.document.name
    }

    /// Whether a probe is as it was before the change.
    fn is_as_before(&self, live: Option<&Probe>) -> bool {
        let has_etag = live.is_some_and(|live| self.etag.as_ref() == Some(&live.etag));
        has_etag || self.before == live.map(document_of)
    }

    /// Whether a probe is as this roll-out has made it. `change` is what would make it as the document says.
    fn is_made(&self, live: &Probe, change: Option<&Change>) -> bool {
        self.armed.as_ref().map_or(change.is_none(), |armed| *armed == Armed::of(live))
    }

    /// The request that puts a probe back.
    fn reversal(&self, live: &Probe) -> Option<Change> {
        let Some(before) = &self.before else {
            let (name, etag) = (live.name.clone(), live.etag.clone());
            return Some(Change::Delete(DeleteProbeRequest { name, etag, ..DeleteProbeRequest::default() }));
        };
        let definition = (before.definition != live.definition).then(|| before.definition.clone());
        changed(before, live, definition).map(Change::Update)
    }

    /// The request with an id that is the same for every attempt: the daemon carries the request out once.
    fn with_id(&self, mut change: Change, live: Option<&Probe>) -> Change {
        let id = format!("{}-{}", self.id, live.map_or("new", |live| live.etag.as_str()));
        match &mut change {
            Change::Create(request) => request.request_id = id,
            Change::Update(request) => request.request_id = id,
            Change::Delete(request) => request.request_id = id,
        }
        change
    }
}

/// The requests that are left to send to a host: all that its targets need, or none. `live` has all of its
/// probes, and `changes` what would make the probe of each target as its document says.
///
/// # Errors
/// When another client has changed a probe.
pub(crate) fn requests(
    targets: &[Target],
    live: &BTreeMap<String, Probe>,
    changes: Vec<Option<Change>>,
) -> Result<Vec<Change>, HostFailure> {
    let (mut requests, mut made, mut left, mut foreign) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let is_back = targets.iter().any(|target| target.is_back);
    for (target, change) in targets.iter().zip(changes) {
        let found = live.get(target.name());
        let request = match found {
            _ if target.is_as_before(found) => {
                left.push(target.name());
                change.filter(|_change| !is_back)
            }
            Some(live) if target.is_made(live, change.as_ref()) => {
                made.push(target.name());
                if is_back { target.reversal(live) } else { None }
            }
            _ => {
                foreign.push(target.name());
                None
            }
        };
        requests.extend(request.map(|request| target.with_id(request, found)));
    }
    if !is_back && !made.is_empty() {
        // Changes of a host are all made or none: these were, and were taken back.
        foreign.append(&mut left);
    }
    if foreign.is_empty() {
        return Ok(requests);
    }
    let names: Vec<_> = foreign.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("{} was changed by someone else since", names.join(", "));
    Err(if is_back {
        HostFailure::Foreign(format!(
            "{message}, and is left alone: put it back by hand, then `kprobectl rollout undo` again"
        ))
    } else if made.is_empty() {
        HostFailure::Refused(message)
    } else {
        HostFailure::Foreign(message)
    })
}

/// The probes of a host that the targets have left on it. `live` has all probes, after the requests were
/// carried out.
///
/// # Errors
/// When a probe was put back, and is not as it was.
pub(crate) fn settled(
    targets: &[Target],
    live: &BTreeMap<String, Probe>,
) -> Result<BTreeMap<String, Armed>, HostFailure> {
    let mut armed = BTreeMap::new();
    for target in targets {
        let live = live.get(target.name());
        if !target.is_back {
            armed.extend(live.map(|live| (target.name().to_owned(), Armed::of(live))));
        } else if !target.is_as_before(live) {
            let message = format!("`{}` was put back, and is not as it was", target.name());
            return Err(HostFailure::Foreign(message));
        }
    }
    Ok(armed)
}

/// The probes of hosts that the roll-out changes, or puts back.
fn targets(state: &State, hosts: &[usize], is_back: bool) -> Vec<(usize, Vec<Target>)> {
    let documents = by_name(&state.setting.documents);
    let of_host = |index: &usize| {
        let host = &state.hosts[*index];
        let before = by_name(&host.before);
        let one = |(number, (name, etag)): (usize, (&String, &Option<String>))| {
            Some(Target {
                id: format!("{}-{number}", state.id),
                document: (*documents.get(name)?).clone(),
                etag: etag.clone(),
                before: before.get(name).copied().cloned(),
                armed: host.armed.get(name).cloned(),
                is_back,
            })
        };
        (*index, host.changes.iter().enumerate().filter_map(one).collect())
    };
    hosts.iter().map(of_host).collect()
}

fn by_name(documents: &[Document]) -> BTreeMap<&String, &Document> {
    documents.iter().map(|document| (&document.name, document)).collect()
}

/// Asks the hosts of a wave once more for their verdict, and records what is there before the change.
pub(super) async fn intend<W: World>(world: &W, state: &mut State, hosts: &[usize]) -> Result<(), W::Error> {
    let mut answers = Answers::default();
    let mut note = |state: &mut State, index: usize, answer: Result<Plan, HostFailure>| {
        let host = &mut state.hosts[index];
        let recorded = answer.and_then(Plan::accepted).map(|plan| {
            (host.kernel, host.base, host.is_resumed) = (plan.kernel, Some(plan.reading), false);
            (host.changes, host.before, host.armed) = (plan.changes, plan.before, plan.armed);
        });
        answers.note(state, index, recorded);
    };
    world.plan(state, hosts, &mut note).await?;
    if !answers.refused.is_empty() {
        return fail(world, state, REFUSED, &answers.refused);
    }
    if !go_on_without(world, state, &answers.silent)? {
        return Ok(());
    }
    for index in &answers.done {
        let host = &mut state.hosts[*index];
        host.step = if host.changes.is_empty() { Step::Changed } else { Step::Intended };
    }
    happened(world, state, "intended", &answers.done, String::new())
}

/// Changes the hosts whose state before is recorded.
pub(super) async fn make<W: World>(world: &W, state: &mut State, hosts: &[usize]) -> Result<(), W::Error> {
    let mut answers = Answers::default();
    let mut note = |state: &mut State, index: usize, answer: Result<BTreeMap<_, _>, HostFailure>| {
        let host = &mut state.hosts[index];
        let answer = answer.map(|armed| {
            host.armed.extend(armed);
            host.step = Step::Changed;
        });
        if matches!(answer, Err(HostFailure::Refused(_))) {
            // All or nothing: such a host has no change.
            host.step = Step::Waiting;
            host.changes.clear();
            host.before.clear();
        }
        answers.note(state, index, answer);
    };
    let targets = targets(state, hosts, false);
    world.apply(state, targets, &mut note).await?;
    if !answers.done.is_empty() {
        happened(world, state, "changed", &answers.done, String::new())?;
    }
    if !answers.refused.is_empty() {
        return fail(world, state, "the change failed", &answers.refused);
    }
    go_on_without(world, state, &answers.silent).map(drop)
}

/// Puts back all hosts that may have the change. The roll-out stays in its phase while one could not be.
pub(super) async fn undo<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    let touched: Vec<_> = (0..state.hosts.len()).filter(|index| state.hosts[*index].is_touched()).collect();
    let mut answers = Answers::default();
    let mut note = |state: &mut State, index: usize, answer: Result<BTreeMap<_, _>, HostFailure>| {
        if answer.is_ok() {
            state.hosts[index].step = Step::Undone;
        }
        answers.note(state, index, answer.map(drop));
    };
    let targets = targets(state, &touched, true);
    world.apply(state, targets, &mut note).await?;
    if !answers.done.is_empty() {
        happened(world, state, "undone", &answers.done, String::new())?;
    }
    let mut left = [answers.silent, answers.refused].concat();
    left.sort_unstable();
    if left.is_empty() {
        state.phase = Phase::Undone;
        return happened(world, state, "undone", &[], String::new());
    }
    let message = reason(state, "not everything could be put back", &left);
    happened(world, state, "undoing", &left, message)
}
